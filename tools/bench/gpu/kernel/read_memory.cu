// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/gpu/kernel/read_memory.h"

namespace kvtier {
namespace {

constexpr int kThreads = 512;
constexpr int kBlocksPerMultiprocessor = 4;
// Loads under way in each thread.
constexpr int kUnroll = 8;

__global__ void __launch_bounds__(kThreads)
    ReadMemoryKernel(const uint4* memory, uint64_t vectors, uint32_t* digest) {
  const uint64_t stride = uint64_t{gridDim.x} * blockDim.x;
  uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  uint32_t sum = 0;
  for (; i + (kUnroll - 1) * stride < vectors; i += kUnroll * stride) {
    uint4 loaded[kUnroll];
#pragma unroll
    for (int j = 0; j < kUnroll; ++j) loaded[j] = __ldcs(memory + i + j * stride);
#pragma unroll
    for (int j = 0; j < kUnroll; ++j) {
      sum ^= loaded[j].x ^ loaded[j].y ^ loaded[j].z ^ loaded[j].w;
    }
  }
  for (; i < vectors; i += stride) sum ^= memory[i].x;
  // Hardly ever true, which the compiler cannot know.
  if (sum == 0x5bd1e995) *digest = sum;
}

}  // namespace

cudaError_t ReadMemory(const void* memory, uint64_t bytes, uint32_t* digest, int multiprocessors,
                       cudaStream_t stream) {
  ReadMemoryKernel<<<multiprocessors * kBlocksPerMultiprocessor, kThreads, 0, stream>>>(
      static_cast<const uint4*>(memory), bytes / sizeof(uint4), digest);
  return cudaGetLastError();
}

}  // namespace kvtier
