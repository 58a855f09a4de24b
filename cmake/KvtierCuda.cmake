# SPDX-License-Identifier: Apache-2.0
# Whether the CUDA device is built: KVTIER_CUDA is AUTO (if the toolkit is there), ON or OFF; the
# outcome is KVTIER_HAS_CUDA. The runtime is linked statically and the driver's library not at all,
# so one binary serves machines with and without a driver. KVTIER_DRIVER is the oldest driver that
# serves the build, KVTIER_DRIVER_CUDA its name for its version of CUDA.

set(KVTIER_CUDA AUTO CACHE STRING "Build the CUDA device: AUTO, ON or OFF")
set_property(CACHE KVTIER_CUDA PROPERTY STRINGS AUTO ON OFF)

set(KVTIER_HAS_CUDA FALSE)
set(why_not "")
if(KVTIER_CUDA STREQUAL "ON")
  find_package(CUDAToolkit 12.4 REQUIRED)
elseif(KVTIER_CUDA STREQUAL "AUTO")
  find_package(CUDAToolkit 12.4 QUIET)
else()
  set(why_not "KVTIER_CUDA is ${KVTIER_CUDA}")
endif()
if(CUDAToolkit_FOUND AND NOT CUDAToolkit_NVCC_EXECUTABLE)
  set(why_not "the CUDA ${CUDAToolkit_VERSION} toolkit has no compiler (nvcc)")
elseif(CUDAToolkit_FOUND AND TARGET CUDA::cudart_static)
  set(KVTIER_HAS_CUDA TRUE)
  message(STATUS "CUDA device: built with CUDA ${CUDAToolkit_VERSION}")
elseif(CUDAToolkit_FOUND)
  set(why_not "the CUDA ${CUDAToolkit_VERSION} toolkit has no static runtime (libcudart_static.a)")
elseif(CUDAToolkit_VERSION)
  set(why_not "CUDA ${CUDAToolkit_VERSION} was found, 12.4 or later is needed")
elseif(NOT why_not)
  set(why_not "no CUDA toolkit was found (12.4 or later; -DCUDAToolkit_ROOT=DIRECTORY names one)")
endif()
if(KVTIER_HAS_CUDA AND CUDAToolkit_VERSION VERSION_LESS 13.0)
  set(KVTIER_DRIVER 550)
  set(KVTIER_DRIVER_CUDA 12040)
else()
  set(KVTIER_DRIVER 580)
  set(KVTIER_DRIVER_CUDA 13000)
endif()
# tools/build.sh, which shows nothing else of a build that works, repeats lines that begin so.
if(NOT KVTIER_HAS_CUDA)
  message(NOTICE "kvtier: built WITHOUT CUDA: ${why_not}.")
  message(NOTICE "kvtier: left out: pools in VRAM, the kernels, kvtier-gpu-bench and the tests on "
    "GPUs. Built all the same: kvtierd with pools in host memory, the client library, all tools.")
endif()
