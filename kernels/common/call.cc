// SPDX-License-Identifier: Apache-2.0
#include "kernels/common/call.h"

#include <cuda_runtime_api.h>

namespace kvtier::kernels {

bool QueryDevice(Device* device) {
  return cudaGetDevice(&device->id) == cudaSuccess &&
         cudaDeviceGetAttribute(&device->processors, cudaDevAttrMultiProcessorCount, device->id) ==
             cudaSuccess &&
         cudaDeviceGetAttribute(&device->major, cudaDevAttrComputeCapabilityMajor, device->id) ==
             cudaSuccess;
}

}  // namespace kvtier::kernels

const char* kvt_kernel_status_text(kvt_kernel_status status) {
  switch (status) {
    case KVT_KERNEL_OK:
      return "ok";
    case KVT_KERNEL_INVALID_ARGUMENT:
      return "an argument makes no sense";
    case KVT_KERNEL_UNSUPPORTED:
      return "no kernel is built for these types, sizes or this device";
    case KVT_KERNEL_WORKSPACE_TOO_SMALL:
      return "the workspace is too small";
    case KVT_KERNEL_LAUNCH_FAILED:
      return "CUDA refused the launch";
    case KVT_KERNEL_OUT_OF_MEMORY:
      return "the device's memory is used up";
  }
  return "unknown status";
}
