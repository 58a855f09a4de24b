// SPDX-License-Identifier: Apache-2.0
// The work of both prefill kernels on a tile: where its elements lie in shared memory, which keys a
// thread's rows see, the two multiplications, and where results go.
//
// A tile of queries, keys or values lies as atoms [row / 8][dim / 64] of 8 rows by 64 elements,
// each swizzled as wgmma's 128-byte mode wants it.
#pragma once

#include <cstdint>

#include "kernels/attention/score_tile.cuh"
#include "kernels/hopper/wgmma.cuh"
#include "kernels/prefill/prefill_schedule.cuh"

namespace kvtier::kernels {

constexpr int kAtomBytes = 1024;  // 8 rows of 128 bytes

// Byte offset of 16-byte chunk `chunk` of row `row` in a tile.
template <typename Traits>
__device__ __forceinline__ uint32_t ChunkOffset(uint32_t row, uint32_t chunk) {
  return row / 8 * Traits::kGroupBytes + chunk / 8 * kAtomBytes + row % 8 * 128 +
         ((chunk % 8) ^ (row % 8)) * 16;
}

// The visible keys of rows `row` and `row` + 8 of an item with `rows` rows. Rows behind the last
// one are computed, though never written, as if they were it.
__device__ __forceinline__ VisibleKeys VisibleKeysOf(const PrefillPlan& plan,
                                                     const PrefillItem& item, int32_t row,
                                                     int32_t rows) {
  VisibleKeys visible;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int32_t token = PositionOf(plan, item, min(row + 8 * r, rows - 1)).token;
    visible.last[r] = LastKey(plan.params, item, token);
    visible.first[r] = FirstKey(plan.params, item, token, visible.last[r]);
  }
  return visible;
}

// Queues scores = queries * keys^T. Queries come from registers (`query_words`), or from shared
// memory.
template <typename Traits, bool kFromRegisters>
__device__ __forceinline__ void QueueScores(float (&scores)[Traits::kKeys / 2],
                                            const uint32_t* query_words, uint64_t query,
                                            uint64_t keys) {
#pragma unroll
  for (int step = 0; step < Traits::kHeadDim / 16; ++step) {
    const uint32_t offset = step / 4 * kAtomBytes + step % 4 * 32;
    if constexpr (kFromRegisters) {
      wgmma::FromRegisters<typename Traits::Element, 0>(scores, query_words + 4 * step,
                                                        wgmma::Advance(keys, offset), step > 0);
    } else {
      wgmma::FromShared<typename Traits::Element>(scores, wgmma::Advance(query, offset),
                                                  wgmma::Advance(keys, offset), step > 0);
    }
  }
  wgmma::Commit();
}

// Queues output += probabilities * values.
template <typename Traits>
__device__ __forceinline__ void QueueOutput(float (&output)[Traits::kHeadDim / 2],
                                            const uint32_t (&probabilities)[Traits::kKeys / 4],
                                            uint64_t values) {
#pragma unroll
  for (int step = 0; step < Traits::kKeys / 16; ++step) {
    wgmma::FromRegisters<typename Traits::Element, 1>(
        output, probabilities + 4 * step, wgmma::Advance(values, step * 2 * Traits::kGroupBytes),
        1);
  }
  wgmma::Commit();
}

// Whether results leave as bf16: over an fp8 cache the operands of the multiplication have another
// type.
template <typename Traits>
__device__ __forceinline__ bool WritesBf16(const PrefillPlan& plan) {
  return Traits::kFp8 ? plan.params.query_dtype == KVT_BF16
                      : wgmma::kIsBf16<typename Traits::Element>;
}

}  // namespace kvtier::kernels
