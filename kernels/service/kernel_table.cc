// SPDX-License-Identifier: Apache-2.0
#include "kvtier/kernel_table.h"

#include <cuda_runtime_api.h>

#include "kernels/common/refusal.h"

namespace {

using kvtier::kernels::StatusOf;

const char* CudaErrorText() { return cudaGetErrorString(cudaPeekAtLastError()); }

kvt_kernel_status SelectDevice(int32_t ordinal) { return StatusOf(cudaSetDevice(ordinal)); }

kvt_kernel_status CreateStream(void** stream) {
  cudaStream_t created = nullptr;
  const cudaError_t error = cudaStreamCreateWithFlags(&created, cudaStreamNonBlocking);
  *stream = created;
  return StatusOf(error);
}

void DestroyStream(void* stream) { (void)cudaStreamDestroy(static_cast<cudaStream_t>(stream)); }

kvt_kernel_status Synchronize(void* stream) {
  return StatusOf(cudaStreamSynchronize(static_cast<cudaStream_t>(stream)));
}

kvt_kernel_status Allocate(void** memory, size_t bytes) {
  *memory = nullptr;
  cudaError_t error = cudaMalloc(memory, bytes);
  if (error == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();  // or a later call of this thread would report it
    return KVT_KERNEL_OUT_OF_MEMORY;
  }
  if (error == cudaSuccess) error = cudaMemsetAsync(*memory, 0, bytes, cudaStreamLegacy);
  // The caller's streams do not wait for that one: zeros must not come after what they write.
  if (error == cudaSuccess) error = cudaStreamSynchronize(cudaStreamLegacy);
  return StatusOf(error);
}

void Release(void* memory) { (void)cudaFree(memory); }

kvt_kernel_status Copy(void* to, const void* from, size_t bytes, void* stream) {
  return StatusOf(
      cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, static_cast<cudaStream_t>(stream)));
}

constexpr kvt_kernel_table kTable = {
    .abi = KVT_KERNELS_ABI,
    .table_bytes = sizeof(kvt_kernel_table),
    .decode_params_bytes = sizeof(kvt_decode_params),
    .prefill_params_bytes = sizeof(kvt_prefill_params),
    .kv_write_params_bytes = sizeof(kvt_kv_write_params),
    .version = KVTIER_KERNELS_VERSION,
    .status_text = kvt_kernel_status_text,
    .last_error_detail = kvt_kernel_last_error_detail,
    .cuda_error_text = CudaErrorText,
    .decode_workspace_bytes = kvt_decode_workspace_bytes,
    .decode = kvt_decode,
    .prefill_workspace_bytes = kvt_prefill_workspace_bytes,
    .prefill = kvt_prefill,
    .kv_write = kvt_kv_write,
    .select_device = SelectDevice,
    .create_stream = CreateStream,
    .destroy_stream = DestroyStream,
    .synchronize = Synchronize,
    .allocate = Allocate,
    .release = Release,
    .copy = Copy,
};

}  // namespace

const kvt_kernel_table* kvt_kernels_table(uint32_t abi) {
  return abi == KVT_KERNELS_ABI ? &kTable : nullptr;
}
