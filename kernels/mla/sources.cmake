# SPDX-License-Identifier: Apache-2.0
# Decode over a latent cache: one translation unit for each type.
if(KVTIER_HAS_CUDA_KERNELS)
  target_sources(kvtier_kernels PRIVATE
    mla/latent_map.cc
    mla/mla.cc
    mla/mla_bf16.cu
    mla/mla_fp16.cu
    mla/mla_fp8.cu
  )
endif()
