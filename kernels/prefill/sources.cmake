# SPDX-License-Identifier: Apache-2.0
# Prefill attention: one translation unit for each type of operands, since they take long to compile.
if(KVTIER_HAS_CUDA_KERNELS)
  target_sources(kvtier_kernels PRIVATE
    prefill/prefill.cc
    prefill/prefill_bf16.cu
    prefill/prefill_fp16.cu
    prefill/prefill_fp8.cu
    prefill/prefill_short.cu
    prefill/short_choice.cc
    prefill/split_choice.cc
    hopper/tensor_map.cc
  )
endif()
