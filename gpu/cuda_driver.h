// SPDX-License-Identifier: Apache-2.0
// The driver's functions for memory that processes share and for counting on streams, which the
// runtime does not have. Found at run time: nothing links against the driver. Only for .cc files of
// this room.
#pragma once

#include <cuda.h>
#include <cudaTypedefs.h>

#include "base/result.h"

namespace kvtier {

struct CudaDriver {
  PFN_cuMemGetAllocationGranularity_v10020 mem_get_allocation_granularity = nullptr;
  PFN_cuMemCreate_v10020 mem_create = nullptr;
  PFN_cuMemRelease_v10020 mem_release = nullptr;
  PFN_cuMemExportToShareableHandle_v10020 mem_export = nullptr;
  PFN_cuMemAddressReserve_v10020 mem_address_reserve = nullptr;
  PFN_cuMemAddressFree_v10020 mem_address_free = nullptr;
  PFN_cuMemMap_v10020 mem_map = nullptr;
  PFN_cuMemUnmap_v10020 mem_unmap = nullptr;
  PFN_cuMemSetAccess_v10020 mem_set_access = nullptr;
  PFN_cuStreamWriteValue32_v11070 stream_write_value = nullptr;

  // Errors: kUnsupported "cuda_driver_too_old" naming the function that is missing.
  [[nodiscard]] static Result<CudaDriver> Load();
};

}  // namespace kvtier
