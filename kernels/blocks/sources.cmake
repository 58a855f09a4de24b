# SPDX-License-Identifier: Apache-2.0
# Kernels over whole blocks, and their references on the CPU.
target_sources(kvtier_kernel_reference PRIVATE blocks/block_reference.cc)
if(KVTIER_HAS_CUDA_KERNELS)
  target_sources(kvtier_kernels PRIVATE
    blocks/checksum_blocks.cu
    blocks/copy_blocks.cu
    blocks/fill_blocks.cu
    blocks/merge_lse.cu
  )
endif()
