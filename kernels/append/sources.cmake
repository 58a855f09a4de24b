# Append attention: one translation unit for each type of operands, since they take long to compile.
if(KVTIER_HAS_CUDA_KERNELS)
  target_sources(kvtier_kernels PRIVATE
    append/append.cc
    append/append_bf16.cu
    append/append_fp16.cu
    append/append_fp8.cu
    append/append_short.cu
    append/short_choice.cc
    append/split_choice.cc
    append/tensor_map.cc
  )
endif()
