// SPDX-License-Identifier: Apache-2.0
// A kernel that reads memory and does little else, as attention does while decoding.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace kvtier {

// Reads `bytes` (a multiple of 16) from device memory and writes a digest of them to `digest`, a
// word of device memory. Returns the launch's error.
[[nodiscard]] cudaError_t ReadMemory(const void* memory, uint64_t bytes, uint32_t* digest,
                                     int multiprocessors, cudaStream_t stream);

}  // namespace kvtier
