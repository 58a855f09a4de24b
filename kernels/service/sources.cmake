# SPDX-License-Identifier: Apache-2.0
# For programs that open the library at run time, and the table that they look up in it.
add_library(kvtier_kernel_library STATIC
  service/device_buffer.cc
  service/device_stream.cc
  service/kernel_library.cc)
target_include_directories(kvtier_kernel_library PUBLIC include ${PROJECT_SOURCE_DIR})
target_link_libraries(kvtier_kernel_library PRIVATE ${CMAKE_DL_LIBS})
# Attention on the CPU, for pools in host memory.
target_sources(kvtier_kernel_reference PRIVATE service/host_attention.cc)
# Debug builds too must compute in seconds, not minutes.
set_source_files_properties(service/host_attention.cc PROPERTIES COMPILE_OPTIONS -O3)
if(KVTIER_HAS_CUDA_KERNELS)
  target_sources(kvtier_kernels PRIVATE service/kernel_table.cc)
  set_source_files_properties(service/kernel_table.cc PROPERTIES
    COMPILE_DEFINITIONS KVTIER_KERNELS_VERSION="${PROJECT_VERSION}")
endif()
