// SPDX-License-Identifier: Apache-2.0
// Which of the kernels writes a step, and its launch. Compiled for each Family (KVT_FAMILY) and
// inputs of each 16-bit type (KVT_OPERANDS).

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "kernels/write/kv_write.h"
#include "kernels/write/kv_write_kernel.cuh"

namespace kvtier::kernels {

// A small step leaves all but so much of the device empty: about where both shapes end together.
constexpr uint32_t kSmallShare = 3;

// In small steps, whose threads should be many.
template <Family kFamilyValue>
struct FewRows {
  static constexpr Family kFamily = kFamilyValue;
  static constexpr WriteShape kShape{
      .threads = 64, .blocks = 16, .heads = 1, .query_pairs = 1, .stages = 0, .query_stages = 0};
};

// In larger ones. Rows that shrink are written sooner if not all of them are asked for at once.
template <Family kFamilyValue, RowFormat kFormat>
struct ManyRows {
  static constexpr Family kFamily = kFamilyValue;
  static constexpr WriteShape kShape{.threads = 64,
                                     .blocks = 16,
                                     .heads = 2,
                                     .query_pairs = 2,
                                     .stages = kFormat == RowFormat::kSame ? 2 : 1,
                                     .query_stages = 2};
};

template <typename T, RowFormat kFormat, bool kHalves, typename Shape>
struct ShapedKernel {
  static constexpr int kKvShared = KvRun<T, kFormat, kHalves, Shape>::Rows::kSharedBytes;
  static constexpr int kQueryShared = QueryRun<T, kHalves, Shape>::Rows::kSharedBytes;
  static constexpr auto kFunction = KvWriteKernel<T, kFormat, kHalves, Shape>;

  // Loads it. Where it needs shared memory, that is for as many blocks as its registers allow: the
  // driver might leave too much to L1.
  static cudaError_t Prepare() {
    return cudaFuncSetAttribute(
        kFunction, cudaFuncAttributePreferredSharedMemoryCarveout,
        kKvShared > 0 ? cudaSharedmemCarveoutMaxShared : cudaSharedmemCarveoutDefault);
  }

  static cudaError_t Launch(const WritePlan& plan, cudaStream_t stream) {
    const int shared = plan.query_blocks > 0 ? std::max(kKvShared, kQueryShared) : kKvShared;
    return LaunchOverlapped<Shape::kFamily>(kFunction, plan.kv_blocks + plan.query_blocks,
                                            Shape::kShape.threads, shared, stream, plan);
  }
};

template <Family kFamily, typename T, RowFormat kFormat, bool kHalves>
cudaError_t LaunchFormat(const kvt_kv_write_params& params, int processors, cudaStream_t stream) {
  using FewShape = FewRows<kFamily>;
  using ManyShape = ManyRows<kFamily, kFormat>;
  using Few = ShapedKernel<T, kFormat, kHalves, FewShape>;
  using Many = ShapedKernel<T, kFormat, kHalves, ManyShape>;
  // Both, so that a first large step after small ones has nothing left to load.
  for (const cudaError_t error : {Few::Prepare(), Many::Prepare()}) {
    if (error != cudaSuccess) return error;
  }
  const WritePlan plan = PlanWrite(params, FewShape::kShape, processors);
  const bool few = (plan.kv_blocks + plan.query_blocks) * kSmallShare <= plan.first_blocks;
  if (few) return Few::Launch(plan, stream);
  return Many::Launch(PlanWrite(params, ManyShape::kShape, processors), stream);
}

template <Family kFamily, typename T, bool kHalves>
cudaError_t LaunchStyle(const kvt_kv_write_params& params, int processors, cudaStream_t stream) {
  if (params.cache.dtype != KVT_FP8_E4M3) {
    return LaunchFormat<kFamily, T, RowFormat::kSame, kHalves>(params, processors, stream);
  }
  return params.dynamic_scales != 0
             ? LaunchFormat<kFamily, T, RowFormat::kFp8Dynamic, kHalves>(params, processors, stream)
             : LaunchFormat<kFamily, T, RowFormat::kFp8, kHalves>(params, processors, stream);
}

template <Family kFamily, Operands kOperands>
cudaError_t LaunchKvWrite(const kvt_kv_write_params& params, int processors, cudaStream_t stream) {
  using T = std::conditional_t<kOperands == Operands::kBf16, __nv_bfloat16, __half>;
  return params.rope.style == KVT_ROPE_GPTJ
             ? LaunchStyle<kFamily, T, false>(params, processors, stream)
             : LaunchStyle<kFamily, T, true>(params, processors, stream);
}

template cudaError_t LaunchKvWrite<Family::KVT_FAMILY, Operands::KVT_OPERANDS>(
    const kvt_kv_write_params& params, int processors, cudaStream_t stream);

}  // namespace kvtier::kernels
