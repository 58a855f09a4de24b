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

Status FindAll(void* library, DriverApi* driver) {
#define KVT_X(member, name, Type) KVT_RETURN_IF_ERROR(Find(library, name, &driver->member));
  KVT_DRIVER_FUNCTIONS(KVT_X)
#undef KVT_X
  return {};
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
