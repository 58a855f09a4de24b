// SPDX-License-Identifier: Apache-2.0
#include "gpu/cuda_driver.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <utility>

#include "base/units.h"

namespace kvtier {
tl::unexpected<Error> CudaError(cudaError_t code, std::string context) {
  const ErrorCode kind =
      code == cudaErrorMemoryAllocation ? ErrorCode::kResourceExhausted : ErrorCode::kIoError;
  context.append(": ").append(cudaGetErrorString(code));
  return MakeError(kind, cudaGetErrorName(code), std::move(context));
}

tl::unexpected<Error> CudaError(CUresult code, std::string context) {
  return CudaError(static_cast<cudaError_t>(code), std::move(context));
}

namespace {

// The newest of them are of CUDA 11.7.
constexpr unsigned int kVersion = 11070;

template <typename Function>
Status Find(const char* name, Function* function) {
  void* const address = FindInDriver(name, kVersion);
  if (address == nullptr) {
    return MakeError(ErrorCode::kUnsupported, "cuda_driver_too_old",
                     fmt::format("the driver has no {}", name));
  }
  *function = reinterpret_cast<Function>(address);
  return {};
}

}  // namespace

void* FindInDriver(const char* name, unsigned int version) {
  void* address = nullptr;
#if CUDART_VERSION >= 12050
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t code =
      cudaGetDriverEntryPointByVersion(name, &address, version, cudaEnableDefault, &found);
  const bool is_found = code == cudaSuccess && found == cudaDriverEntryPointSuccess;
#else
  // Earlier runtimes look for functions of their own version; the driver's lookup knows all.
  void* lookup = nullptr;
  if (cudaGetDriverEntryPoint("cuGetProcAddress", &lookup, cudaEnableDefault) != cudaSuccess ||
      lookup == nullptr) {
    return nullptr;
  }
  const bool is_found = reinterpret_cast<PFN_cuGetProcAddress_v12000>(lookup)(
                            name, &address, static_cast<int>(version), CU_GET_PROC_ADDRESS_DEFAULT,
                            nullptr) == CUDA_SUCCESS;
#endif
  return is_found ? address : nullptr;
}

Result<CudaDriver> CudaDriver::Load() {
  CudaDriver driver;
  KVT_RETURN_IF_ERROR(
      Find("cuMemGetAllocationGranularity", &driver.mem_get_allocation_granularity));
  KVT_RETURN_IF_ERROR(Find("cuMemCreate", &driver.mem_create));
  KVT_RETURN_IF_ERROR(Find("cuMemRelease", &driver.mem_release));
  KVT_RETURN_IF_ERROR(Find("cuMemExportToShareableHandle", &driver.mem_export));
  KVT_RETURN_IF_ERROR(Find("cuMemImportFromShareableHandle", &driver.mem_import));
  KVT_RETURN_IF_ERROR(Find("cuMemGetAllocationPropertiesFromHandle", &driver.mem_get_properties));
  KVT_RETURN_IF_ERROR(Find("cuMemGetAddressRange", &driver.mem_get_address_range));
  KVT_RETURN_IF_ERROR(Find("cuMemAddressReserve", &driver.mem_address_reserve));
  KVT_RETURN_IF_ERROR(Find("cuMemAddressFree", &driver.mem_address_free));
  KVT_RETURN_IF_ERROR(Find("cuMemMap", &driver.mem_map));
  KVT_RETURN_IF_ERROR(Find("cuMemUnmap", &driver.mem_unmap));
  KVT_RETURN_IF_ERROR(Find("cuMemSetAccess", &driver.mem_set_access));
  KVT_RETURN_IF_ERROR(Find("cuStreamWriteValue32", &driver.stream_write_value));
  return driver;
}

Status CudaHostPinner::Pin(std::span<std::byte> memory) {
  (void)gate_.Wait();
  KVT_RETURN_IF_CUDA_ERROR(cudaSetDevice(ordinal_), "choosing a device");
  const cudaError_t code = cudaHostRegister(memory.data(), memory.size(), cudaHostRegisterPortable);
  if (code != cudaSuccess) {
    (void)cudaGetLastError();  // or the next call of this thread would report it
    return CudaError(code, fmt::format("page-locking {}", FormatByteSize(memory.size())));
  }
  ranges_.Add(memory);
  return {};
}

void CudaHostPinner::Unpin(std::span<std::byte> memory) {
  if (!ranges_.Remove(memory)) return;
  if (cudaSetDevice(ordinal_) == cudaSuccess) (void)cudaHostUnregister(memory.data());
}

}  // namespace kvtier
