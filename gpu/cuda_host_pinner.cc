// SPDX-License-Identifier: Apache-2.0
#include "gpu/cuda_host_pinner.h"

#include <fmt/format.h>

#include "base/byte_size.h"
#include "gpu/cuda_error.h"

namespace kvtier {

Status CudaHostPinner::Pin(std::span<std::byte> memory) {
  gate_.Wait();
  KVT_RETURN_IF_CUDA_ERROR(cudaSetDevice(ordinal_), "choosing a device");
  const cudaError_t code = cudaHostRegister(memory.data(), memory.size(), cudaHostRegisterPortable);
  if (code != cudaSuccess) {
    (void)cudaGetLastError();  // or the next call of this thread would report it
    return CudaError(code, fmt::format("page-locking {}", FormatByteSize(memory.size())));
  }
  ranges_.Add(memory);
  return {};
}

void CudaHostPinner::Unpin(std::span<std::byte> memory) {
  if (!ranges_.Remove(memory)) return;
  if (cudaSetDevice(ordinal_) == cudaSuccess) (void)cudaHostUnregister(memory.data());
}

}  // namespace kvtier
