// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/endless_writer/endless_writer.h"

namespace kvtier {
namespace {

__global__ void WriteEndlesslyKernel(volatile uint32_t* memory, uint64_t words) {
  const uint64_t stride = uint64_t{gridDim.x} * blockDim.x;
  for (uint32_t round = 1; round != 0; ++round) {
    for (uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < words; i += stride) {
      memory[i] = round;
    }
    if (round == UINT32_MAX) round = 1;
  }
}

}  // namespace

cudaError_t WriteEndlessly(void* memory, uint64_t bytes, cudaStream_t stream) {
  WriteEndlesslyKernel<<<4, 256, 0, stream>>>(static_cast<volatile uint32_t*>(memory),
                                              bytes / sizeof(uint32_t));
  return cudaGetLastError();
}

}  // namespace kvtier
