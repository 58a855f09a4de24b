// SPDX-License-Identifier: Apache-2.0
// Launches that may begin before the work ahead of them on their stream has ended ("programmatic
// dependent launch"): what such a kernel does before WaitForEarlierGrids overlaps with that work's
// tail, and a kernel that calls LetLaterGridsStart lets the next one come up beside it. Without the
// launch attribute, or in front of other kernels, both calls do nothing.
#pragma once

#include <cuda_runtime.h>

namespace kvtier::kernels {

// Returns when all earlier work of the stream has ended and its writes are visible. Nothing that
// this work may write is read, and nothing that it may read is written, before.
__device__ __forceinline__ void WaitForEarlierGrids() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

__device__ __forceinline__ void LetLaterGridsStart() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

template <typename... Parameters, typename... Arguments>
cudaError_t LaunchOverlapped(void (*kernel)(Parameters...), unsigned grid, unsigned threads,
                             size_t shared_bytes, cudaStream_t stream,
                             const Arguments&... arguments) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(grid);
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

}  // namespace kvtier::kernels
