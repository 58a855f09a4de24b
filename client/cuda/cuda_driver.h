// SPDX-License-Identifier: Apache-2.0
// The driver's functions, loaded from its library, and contexts made current for a while. Only for
// .cc files that use CUDA.
#pragma once

#include <cuda.h>
#include <cudaTypedefs.h>

#include <string>

#include "base/result.h"

namespace kvtier::client {

// X(member, name in the library, type): the names are those of the versions in the types.
#define KVT_DRIVER_FUNCTIONS(X)                                                                 \
  X(init, "cuInit", PFN_cuInit_v2000)                                                           \
  X(get_error_name, "cuGetErrorName", PFN_cuGetErrorName_v6000)                                 \
  X(device_get, "cuDeviceGet", PFN_cuDeviceGet_v2000)                                           \
  X(device_count, "cuDeviceGetCount", PFN_cuDeviceGetCount_v2000)                               \
  X(device_uuid, "cuDeviceGetUuid_v2", PFN_cuDeviceGetUuid_v11040)                              \
  X(ctx_device, "cuCtxGetDevice", PFN_cuCtxGetDevice_v2000)                                     \
  X(primary_ctx_retain, "cuDevicePrimaryCtxRetain", PFN_cuDevicePrimaryCtxRetain_v7000)         \
  X(primary_ctx_release, "cuDevicePrimaryCtxRelease_v2", PFN_cuDevicePrimaryCtxRelease_v11000)  \
  X(ctx_push, "cuCtxPushCurrent_v2", PFN_cuCtxPushCurrent_v4000)                                \
  X(ctx_pop, "cuCtxPopCurrent_v2", PFN_cuCtxPopCurrent_v4000)                                   \
  X(mem_granularity, "cuMemGetAllocationGranularity", PFN_cuMemGetAllocationGranularity_v10020) \
  X(mem_create, "cuMemCreate", PFN_cuMemCreate_v10020)                                          \
  X(mem_export, "cuMemExportToShareableHandle", PFN_cuMemExportToShareableHandle_v10020)        \
  X(fill, "cuMemsetD8Async", PFN_cuMemsetD8Async_v3020)                                         \
  X(mem_import, "cuMemImportFromShareableHandle", PFN_cuMemImportFromShareableHandle_v10020)    \
  X(mem_properties, "cuMemGetAllocationPropertiesFromHandle",                                   \
    PFN_cuMemGetAllocationPropertiesFromHandle_v10020)                                          \
  X(mem_address_reserve, "cuMemAddressReserve", PFN_cuMemAddressReserve_v10020)                 \
  X(mem_address_free, "cuMemAddressFree", PFN_cuMemAddressFree_v10020)                          \
  X(mem_map, "cuMemMap", PFN_cuMemMap_v10020)                                                   \
  X(mem_unmap, "cuMemUnmap", PFN_cuMemUnmap_v10020)                                             \
  X(mem_set_access, "cuMemSetAccess", PFN_cuMemSetAccess_v10020)                                \
  X(mem_release, "cuMemRelease", PFN_cuMemRelease_v10020)                                       \
  X(stream_create, "cuStreamCreate", PFN_cuStreamCreate_v2000)                                  \
  X(stream_destroy, "cuStreamDestroy_v2", PFN_cuStreamDestroy_v4000)                            \
  X(stream_synchronize, "cuStreamSynchronize", PFN_cuStreamSynchronize_v2000)                   \
  X(stream_wait_value, "cuStreamWaitValue32_v2", PFN_cuStreamWaitValue32_v11070)                \
  X(ctx_synchronize, "cuCtxSynchronize", PFN_cuCtxSynchronize_v2000)                            \
  X(mem_host_register, "cuMemHostRegister_v2", PFN_cuMemHostRegister_v6050)                     \
  X(mem_host_unregister, "cuMemHostUnregister", PFN_cuMemHostUnregister_v4000)                  \
  X(mem_host_get_device_pointer, "cuMemHostGetDevicePointer_v2",                                \
    PFN_cuMemHostGetDevicePointer_v3020)                                                        \
  X(copy_to_device, "cuMemcpyHtoDAsync_v2", PFN_cuMemcpyHtoDAsync_v3020)                        \
  X(copy_to_host, "cuMemcpyDtoHAsync_v2", PFN_cuMemcpyDtoHAsync_v3020)                          \
  X(copy_on_device, "cuMemcpyDtoDAsync_v2", PFN_cuMemcpyDtoDAsync_v3020)

struct DriverApi {
#define KVT_X(member, name, Type) Type member = nullptr;
  KVT_DRIVER_FUNCTIONS(KVT_X)
#undef KVT_X

  // Loads and initialises the driver, which stays loaded. Errors: kUnsupported "no_cuda_driver",
  // "cuda_driver_too_old"; kIoError when there is no device to drive.
  [[nodiscard]] static Result<DriverApi> Load();

  // Nothing, or kIoError with the driver's name for `code`.
  [[nodiscard]] Status Check(CUresult code, const char* attempted) const;
};

// The caller's context comes back when this goes. A null context changes nothing.
class CurrentContext {
 public:
  CurrentContext(const DriverApi& driver, CUcontext context) : driver_(driver) {
    pushed_ = context != nullptr && driver_.ctx_push(context) == CUDA_SUCCESS;
  }
  ~CurrentContext() {
    CUcontext popped = nullptr;
    if (pushed_) (void)driver_.ctx_pop(&popped);
  }
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;

 private:
  const DriverApi& driver_;
  bool pushed_ = false;
};

}  // namespace kvtier::client
