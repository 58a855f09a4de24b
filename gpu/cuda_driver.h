// SPDX-License-Identifier: Apache-2.0
// Shared by the files of this folder that use CUDA: its errors as the project's, the driver's
// functions that the runtime lacks, and host memory registered with CUDA. Internal to gpu/.
#pragma once

#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#include <atomic>
#include <string>

#include "base/result.h"
#include "gpu/host_pinner.h"

namespace kvtier {

// The reason is CUDA's name for it, for example "cudaErrorInvalidValue"; memory that cannot be had
// is kResourceExhausted, all else kIoError.
[[nodiscard]] tl::unexpected<Error> CudaError(cudaError_t code, std::string context);
// The driver's codes have the same numbers and meanings.
[[nodiscard]] tl::unexpected<Error> CudaError(CUresult code, std::string context);

// The driver's function as it is since a version of CUDA (12080 for 12.8); null if it has none.
[[nodiscard]] void* FindInDriver(const char* name, unsigned int version);

// The driver's functions for memory that processes share and for counting on streams, which the
// runtime does not have. They are found at run time, so that nothing links against the driver.
struct CudaDriver {
  PFN_cuMemGetAllocationGranularity_v10020 mem_get_allocation_granularity = nullptr;
  PFN_cuMemCreate_v10020 mem_create = nullptr;
  PFN_cuMemRelease_v10020 mem_release = nullptr;
  PFN_cuMemExportToShareableHandle_v10020 mem_export = nullptr;
  PFN_cuMemImportFromShareableHandle_v10020 mem_import = nullptr;
  PFN_cuMemGetAllocationPropertiesFromHandle_v10020 mem_get_properties = nullptr;
  PFN_cuMemGetAddressRange_v3020 mem_get_address_range = nullptr;
  PFN_cuMemAddressReserve_v10020 mem_address_reserve = nullptr;
  PFN_cuMemAddressFree_v10020 mem_address_free = nullptr;
  PFN_cuMemMap_v10020 mem_map = nullptr;
  PFN_cuMemUnmap_v10020 mem_unmap = nullptr;
  PFN_cuMemSetAccess_v10020 mem_set_access = nullptr;
  PFN_cuStreamWriteValue32_v11070 stream_write_value = nullptr;

  // Errors: kUnsupported "cuda_driver_too_old" naming the function that is missing.
  [[nodiscard]] static Result<CudaDriver> Load();
};

// Registers host memory with CUDA.
class CudaHostPinner final : public HostPinner {
 public:
  // Whose context does the work: that of the device which is named first. Memory is pinned for all
  // devices. Any thread.
  void UseContextOf(int ordinal) {
    int none = kNone;
    (void)ordinal_.compare_exchange_strong(none, ordinal);
  }

  [[nodiscard]] Status Pin(std::span<std::byte> memory) override;
  void Unpin(std::span<std::byte> memory) override;

  [[nodiscard]] const PinnedRanges& ranges() const { return ranges_; }
  // Held by calls that must not wait while memory is pinned piece by piece.
  [[nodiscard]] PinGate& gate() { return gate_; }

 private:
  static constexpr int kNone = -1;
  std::atomic<int> ordinal_ = kNone;
  PinnedRanges ranges_;
  PinGate gate_;
};

}  // namespace kvtier

// Returns a CUDA error from the calling function.
#define KVT_RETURN_IF_CUDA_ERROR(expression, context)                        \
  do {                                                                       \
    if (const auto kvt_code = (expression); static_cast<int>(kvt_code) != 0) \
      return ::kvtier::CudaError(kvt_code, context);                         \
  } while (false)
