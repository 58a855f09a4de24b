# SPDX-License-Identifier: Apache-2.0
# KV write with rope and fp8, and its reference on the CPU.
target_sources(kvtier_kernel_reference PRIVATE write/kv_write_reference.cc)
if(KVTIER_HAS_CUDA_KERNELS)
  target_sources(kvtier_kernels PRIVATE write/kv_write.cc
    write/kv_write_bf16.cu
    write/kv_write_fp16.cu)
endif()
