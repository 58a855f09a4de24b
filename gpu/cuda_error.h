// SPDX-License-Identifier: Apache-2.0
// CUDA's errors as the project's. Only for .cc files of this room.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <string>

#include "base/result.h"

namespace kvtier {

// The reason is CUDA's name for it, for example "cudaErrorInvalidValue"; memory that cannot be had
// is kResourceExhausted, all else kIoError.
[[nodiscard]] tl::unexpected<Error> CudaError(cudaError_t code, std::string context);
// The driver's codes have the same numbers and meanings.
[[nodiscard]] tl::unexpected<Error> CudaError(CUresult code, std::string context);

}  // namespace kvtier

// Returns a CUDA error from the calling function.
#define KVT_RETURN_IF_CUDA_ERROR(expression, context)                        \
  do {                                                                       \
    if (const auto kvt_code = (expression); static_cast<int>(kvt_code) != 0) \
      return ::kvtier::CudaError(kvt_code, context);                         \
  } while (false)
