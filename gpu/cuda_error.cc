// SPDX-License-Identifier: Apache-2.0
#include "gpu/cuda_error.h"

#include <utility>

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

}  // namespace kvtier
