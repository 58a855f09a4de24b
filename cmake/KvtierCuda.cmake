# SPDX-License-Identifier: Apache-2.0
# Whether the CUDA device is built: KVTIER_CUDA is AUTO (if the toolkit is there), ON or OFF; the
# outcome is KVTIER_HAS_CUDA. The runtime is linked statically and the driver's library not at all,
# so one binary serves machines with and without a driver. Before 13.0 batched copies had another
# signature.

set(KVTIER_CUDA AUTO CACHE STRING "Build the CUDA device: AUTO, ON or OFF")
set_property(CACHE KVTIER_CUDA PROPERTY STRINGS AUTO ON OFF)

set(KVTIER_HAS_CUDA FALSE)
if(KVTIER_CUDA STREQUAL "ON")
  find_package(CUDAToolkit 13.0 REQUIRED)
elseif(KVTIER_CUDA STREQUAL "AUTO")
  find_package(CUDAToolkit 13.0 QUIET)
endif()
if(CUDAToolkit_FOUND AND NOT TARGET CUDA::cudart_static)
  message(STATUS "CUDA toolkit without a static runtime")
elseif(CUDAToolkit_FOUND)
  set(KVTIER_HAS_CUDA TRUE)
endif()
message(STATUS "CUDA device: ${KVTIER_HAS_CUDA} ${CUDAToolkit_VERSION}")
