// SPDX-License-Identifier: Apache-2.0
// Fills blocks with a pattern, e.g. to poison what nobody has written yet.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "kernels/blocks/kernel_launch.cuh"
#include "kvtier/block_ops.h"

namespace kvtier::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kMaxCtasPerBlock = 64;

__global__ void __launch_bounds__(kThreads)
    FillBlocksKernel(const __grid_constant__ kvt_block_list list, uint32_t pattern) {
  const int64_t id = list.block_ids != nullptr ? list.block_ids[blockIdx.x] : int64_t{blockIdx.x};
  if (id < 0) return;
  auto* block = reinterpret_cast<uint4*>(static_cast<char*>(list.base) + id * list.block_stride);
  const int64_t chunks = list.block_bytes / static_cast<int64_t>(sizeof(uint4));
  const uint4 value = make_uint4(pattern, pattern, pattern, pattern);
  for (int64_t i = int64_t{blockIdx.y} * kThreads + threadIdx.x; i < chunks;
       i += int64_t{gridDim.y} * kThreads) {
    block[i] = value;
  }
}

}  // namespace
}  // namespace kvtier::kernels

extern "C" kvt_kernel_status kvt_fill_blocks(const kvt_block_list* list, uint32_t pattern,
                                             void* stream) {
  using namespace kvtier::kernels;
  if (list == nullptr || list->base == nullptr || list->blocks < 0 || list->block_bytes <= 0 ||
      (reinterpret_cast<int64_t>(list->base) | list->block_stride | list->block_bytes) % 16 != 0) {
    return KVT_KERNEL_INVALID_ARGUMENT;
  }
  if (list->blocks == 0) return KVT_KERNEL_OK;
  const int64_t ctas = (list->block_bytes / 16 + kThreads * 8 - 1) / (kThreads * 8);
  const dim3 grid(list->blocks,
                  static_cast<unsigned>(std::clamp<int64_t>(ctas, 1, kMaxCtasPerBlock)));
  const cudaError_t error = LaunchKernel(FillBlocksKernel, grid, kThreads,
                                         static_cast<cudaStream_t>(stream), *list, pattern);
  return error == cudaSuccess ? KVT_KERNEL_OK : KVT_KERNEL_LAUNCH_FAILED;
}
