// SPDX-License-Identifier: Apache-2.0
// A kernel that never ends by itself, as one that is under way when its process is killed.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace kvtier {

// Has `stream` write ever new numbers to `bytes` (a multiple of 4) of device memory, over and over.
// Returns the launch's error.
[[nodiscard]] cudaError_t WriteEndlessly(void* memory, uint64_t bytes, cudaStream_t stream);

}  // namespace kvtier
