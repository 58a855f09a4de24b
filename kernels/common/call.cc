// SPDX-License-Identifier: Apache-2.0
#include "kernels/common/call.h"

#include <cuda_runtime_api.h>

namespace kvtier::kernels {
namespace {

// A build for tests: a Hopper device, too, gets the kernels that are compiled for all devices.
#ifdef KVTIER_AMPERE_KERNELS_ONLY
constexpr bool kAmpereOnly = true;
#else
constexpr bool kAmpereOnly = false;
#endif

}  // namespace

bool QueryDevice(Device* device) {
  if (cudaGetDevice(&device->id) != cudaSuccess) return false;
  const auto read = [&](cudaDeviceAttr attribute, int* value) {
    return cudaDeviceGetAttribute(value, attribute, device->id) == cudaSuccess;
  };
  if (!read(cudaDevAttrMultiProcessorCount, &device->processors) ||
      !read(cudaDevAttrComputeCapabilityMajor, &device->major) ||
      !read(cudaDevAttrMaxSharedMemoryPerMultiprocessor, &device->shared_bytes)) {
    return false;
  }
  const bool hopper = device->major == kHopperMajor && !kAmpereOnly;
  device->family = hopper ? Family::kHopper : Family::kAmpere;
  return true;
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
