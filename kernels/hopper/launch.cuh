// SPDX-License-Identifier: Apache-2.0
// Launches, and what blocks of one launch, or of two that follow each other on a stream, do with
// each other.
//
// A launch may begin before the work ahead of it on its stream has ended ("programmatic dependent
// launch"): what such a kernel does before WaitOnDependentGrids overlaps with that work's tail, and
// a kernel that calls LaunchDependentGrids lets the next one come up beside it. Without the launch
// attribute, or in front of other kernels, both calls do nothing.
//
// Only Hopper's kernels overlap. Kernels of other families begin when the work ahead has ended, so
// both calls are empty in them, and their launches do not have the attribute: it would promise the
// wait that they lack.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/common/call.h"

namespace kvtier::kernels {

inline constexpr int kMaxSharedBytes = 227 * 1024;  // of a block that has a multiprocessor alone

// Returns when all earlier work of the stream has ended and its writes are visible. Nothing that
// this work may write is read, and nothing that it may read is written, before.
template <Family kFamily = Family::kHopper>
__device__ __forceinline__ void WaitOnDependentGrids() {
  if constexpr (kFamily == Family::kHopper) asm volatile("griddepcontrol.wait;" ::: "memory");
}

template <Family kFamily = Family::kHopper>
__device__ __forceinline__ void LaunchDependentGrids() {
  if constexpr (kFamily == Family::kHopper) {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  }
}

// Counters in global memory through which blocks hand over: the one thread that adds releases the
// block's writes before its last barrier, and acquires the writes that other blocks released.
// Returns the previous value.
__device__ __forceinline__ int32_t AddAcquireRelease(int32_t* global, int32_t value) {
  int32_t before = 0;
  asm volatile("atom.add.acq_rel.gpu.global.s32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(global), "r"(value)
               : "memory");
  return before;
}

__device__ __forceinline__ int32_t LoadAcquire(const int32_t* global) {
  int32_t value = 0;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(global) : "memory");
  return value;
}

// Returns how the launch itself went: `<<<>>>` leaves that to the thread's last error, in which an
// earlier failure of the caller's own may still stand.
template <Family kFamily = Family::kHopper, typename... Parameters, typename... Arguments>
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
  config.numAttrs = kFamily == Family::kHopper ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

}  // namespace kvtier::kernels
