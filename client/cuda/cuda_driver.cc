// SPDX-License-Identifier: Apache-2.0
#include "client/cuda/cuda_driver.h"

#include <dlfcn.h>

namespace kvtier::client {
namespace {

template <typename Function>
Status Find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(::dlsym(library, name));
  if (*function != nullptr) return {};
  return MakeError(ErrorCode::kUnsupported, "cuda_driver_too_old",
                   std::string("the driver has no ") + name);
}

// The names are those of the versions in the functions' types.
Status FindAll(void* library, DriverApi* driver) {
  const auto find = [library](const char* name, auto* function) {
    return Find(library, name, function);
  };
  KVT_RETURN_IF_ERROR(find("cuInit", &driver->init));
  KVT_RETURN_IF_ERROR(find("cuGetErrorName", &driver->get_error_name));
  KVT_RETURN_IF_ERROR(find("cuDeviceGet", &driver->device_get));
  KVT_RETURN_IF_ERROR(find("cuDeviceGetCount", &driver->device_count));
  KVT_RETURN_IF_ERROR(find("cuDeviceGetUuid_v2", &driver->device_uuid));
  KVT_RETURN_IF_ERROR(find("cuCtxGetDevice", &driver->ctx_device));
  KVT_RETURN_IF_ERROR(find("cuDevicePrimaryCtxRetain", &driver->primary_ctx_retain));
  KVT_RETURN_IF_ERROR(find("cuDevicePrimaryCtxRelease_v2", &driver->primary_ctx_release));
  KVT_RETURN_IF_ERROR(find("cuCtxPushCurrent_v2", &driver->ctx_push));
  KVT_RETURN_IF_ERROR(find("cuCtxPopCurrent_v2", &driver->ctx_pop));
  KVT_RETURN_IF_ERROR(find("cuMemGetAllocationGranularity", &driver->mem_granularity));
  KVT_RETURN_IF_ERROR(find("cuMemCreate", &driver->mem_create));
  KVT_RETURN_IF_ERROR(find("cuMemExportToShareableHandle", &driver->mem_export));
  KVT_RETURN_IF_ERROR(find("cuMemsetD8Async", &driver->fill));
  KVT_RETURN_IF_ERROR(find("cuMemImportFromShareableHandle", &driver->mem_import));
  KVT_RETURN_IF_ERROR(find("cuMemGetAllocationPropertiesFromHandle", &driver->mem_properties));
  KVT_RETURN_IF_ERROR(find("cuMemAddressReserve", &driver->mem_address_reserve));
  KVT_RETURN_IF_ERROR(find("cuMemAddressFree", &driver->mem_address_free));
  KVT_RETURN_IF_ERROR(find("cuMemMap", &driver->mem_map));
  KVT_RETURN_IF_ERROR(find("cuMemUnmap", &driver->mem_unmap));
  KVT_RETURN_IF_ERROR(find("cuMemSetAccess", &driver->mem_set_access));
  KVT_RETURN_IF_ERROR(find("cuMemRelease", &driver->mem_release));
  KVT_RETURN_IF_ERROR(find("cuStreamCreate", &driver->stream_create));
  KVT_RETURN_IF_ERROR(find("cuStreamDestroy_v2", &driver->stream_destroy));
  KVT_RETURN_IF_ERROR(find("cuStreamSynchronize", &driver->stream_synchronize));
  KVT_RETURN_IF_ERROR(find("cuStreamWaitValue32_v2", &driver->stream_wait_value));
  KVT_RETURN_IF_ERROR(find("cuCtxSynchronize", &driver->ctx_synchronize));
  KVT_RETURN_IF_ERROR(find("cuMemHostRegister_v2", &driver->mem_host_register));
  KVT_RETURN_IF_ERROR(find("cuMemHostUnregister", &driver->mem_host_unregister));
  KVT_RETURN_IF_ERROR(find("cuMemHostGetDevicePointer_v2", &driver->mem_host_get_device_pointer));
  KVT_RETURN_IF_ERROR(find("cuMemcpyHtoDAsync_v2", &driver->copy_to_device));
  KVT_RETURN_IF_ERROR(find("cuMemcpyDtoHAsync_v2", &driver->copy_to_host));
  return find("cuMemcpyDtoDAsync_v2", &driver->copy_on_device);
}

}  // namespace

Result<DriverApi> DriverApi::Load() {
  // The library is never closed, because the driver cannot be unloaded.
  void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const why = ::dlerror();
    return MakeError(ErrorCode::kUnsupported, "no_cuda_driver", why == nullptr ? "" : why);
  }
  DriverApi driver;
  KVT_RETURN_IF_ERROR(FindAll(library, &driver));
  KVT_RETURN_IF_ERROR(driver.Check(driver.init(0), "starting the driver"));
  return driver;
}

Status DriverApi::Check(CUresult code, const char* attempted) const {
  if (code == CUDA_SUCCESS) return {};
  const char* name = nullptr;
  if (get_error_name(code, &name) != CUDA_SUCCESS || name == nullptr) name = "CUDA_ERROR";
  return MakeError(ErrorCode::kIoError, name, attempted);
}

}  // namespace kvtier::client
