// SPDX-License-Identifier: Apache-2.0
// A launch that says how it itself went: `<<<>>>` leaves that to the thread's last error, in which
// a failure of the caller's own, long before, may still stand.
#pragma once

#include <cuda_runtime.h>

namespace kvtier::kernels {

template <typename... Parameters, typename... Arguments>
cudaError_t LaunchKernel(void (*kernel)(Parameters...), dim3 grid, unsigned threads,
                         cudaStream_t stream, const Arguments&... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

}  // namespace kvtier::kernels
