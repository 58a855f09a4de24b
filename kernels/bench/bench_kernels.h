// SPDX-License-Identifier: Apache-2.0
// Launches of the harness's own kernels.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kvtier/kernels.h"

namespace kvtier::kernels::bench {

void LaunchFillRandom(void* data, kvt_dtype dtype, size_t count, uint64_t seed,
                      cudaStream_t stream);

// Reads `bytes` (a multiple of 16) and writes nothing that counts; `sink` is 4 bytes of device
// memory.
void LaunchRead(const void* data, size_t bytes, void* sink, cudaStream_t stream);

}  // namespace kvtier::kernels::bench
