// SPDX-License-Identifier: Apache-2.0
// CUDA's errors for measurements. Only for .cc files.
#pragma once

#include <cuda_runtime_api.h>

#include "base/result.h"

namespace kvtier {

[[nodiscard]] inline Status CheckCuda(cudaError_t code) {
  if (code == cudaSuccess) return {};
  return MakeError(ErrorCode::kIoError, cudaGetErrorName(code), cudaGetErrorString(code));
}

}  // namespace kvtier
