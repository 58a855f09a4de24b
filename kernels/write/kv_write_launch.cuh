// Which of the kernels writes a step, and its launch.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/write/kv_write_kernel.cuh"
#include "kernels/write/kv_write_launch.h"

namespace kvtier::kernels {

constexpr int kFewHeads = 1;   // of a thread, in small steps
constexpr int kManyHeads = 2;  // in those that fill the device

template <typename T, RowFormat kFormat, bool kHalves, int kHeads>
struct HeadsKernel {
  static constexpr int kShared = RowWriter<T, kFormat, kHalves, kHeads>::Rows::kSharedBytes;
  static constexpr auto kFunction = KvWriteKernel<T, kFormat, kHalves, kHeads>;

  // Loads it. Where it needs shared memory, that is for as many blocks as its registers allow: the
  // driver might leave too much to L1.
  static cudaError_t Prepare() {
    return cudaFuncSetAttribute(
        kFunction, cudaFuncAttributePreferredSharedMemoryCarveout,
        kShared > 0 ? cudaSharedmemCarveoutMaxShared : cudaSharedmemCarveoutDefault);
  }

  static cudaError_t Launch(const kvt_kv_write_params& params, int processors,
                            cudaStream_t stream) {
    const WritePlan plan = PlanHeads(params, kHeads, processors * kWriteCtas);
    const unsigned grid = (plan.threads + kWriteThreads - 1) / kWriteThreads;
    return LaunchOverlapped(kFunction, grid, kWriteThreads, kShared, stream, plan);
  }
};

template <typename T, RowFormat kFormat, bool kHalves>
cudaError_t LaunchFormat(const kvt_kv_write_params& params, int processors, cudaStream_t stream) {
  using Few = HeadsKernel<T, kFormat, kHalves, kFewHeads>;
  using Many = HeadsKernel<T, kFormat, kHalves, kManyHeads>;
  // Both, so that a first large step after small ones has nothing left to load.
  for (const cudaError_t error : {Few::Prepare(), Many::Prepare()}) {
    if (error != cudaSuccess) return error;
  }
  const int64_t room = int64_t{processors} * kWriteCtas * kWriteThreads;
  const bool small = PlanHeads(params, kFewHeads, 0).threads <= room;
  return small ? Few::Launch(params, processors, stream) : Many::Launch(params, processors, stream);
}

template <typename T, bool kHalves>
cudaError_t LaunchStyle(const kvt_kv_write_params& params, int processors, cudaStream_t stream) {
  if (params.cache.dtype != KVT_FP8_E4M3) {
    return LaunchFormat<T, RowFormat::kSame, kHalves>(params, processors, stream);
  }
  return params.dynamic_scales != 0
             ? LaunchFormat<T, RowFormat::kFp8Dynamic, kHalves>(params, processors, stream)
             : LaunchFormat<T, RowFormat::kFp8, kHalves>(params, processors, stream);
}

template <typename T>
cudaError_t LaunchType(const kvt_kv_write_params& params, int processors, cudaStream_t stream) {
  return params.rope.style == KVT_ROPE_GPTJ ? LaunchStyle<T, false>(params, processors, stream)
                                            : LaunchStyle<T, true>(params, processors, stream);
}

}  // namespace kvtier::kernels
