// SPDX-License-Identifier: Apache-2.0
// Rotary embedding, quantisation and paged write of a step's keys and values in one pass. A thread
// owns sixteen elements of each row of its run. Work on data that earlier launches cannot change is
// done before they have ended: addresses are computed, settled tables read. Then rows are asked for
// at once, before it is known where they go.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/hopper/launch.cuh"
#include "kernels/write/kv_write.h"
#include "kernels/write/row_chunks.cuh"
#include "kernels/write/rows_in_flight.cuh"
#include "kvtier/kv_write.h"

namespace kvtier::kernels {

constexpr float kFp8Max = 448.0f;

// How the cache keeps a row.
enum class RowFormat { kSame, kFp8, kFp8Dynamic };

__device__ __forceinline__ int64_t LoadSlot(const int64_t* address) {
  int64_t slot;
  asm volatile("ld.global.s64 %0, [%1];" : "=l"(slot) : "l"(address) : "memory");
  return slot;
}

__device__ __forceinline__ int32_t LoadPosition(const int32_t* address) {
  int32_t position;
  asm volatile("ld.global.s32 %0, [%1];" : "=r"(position) : "l"(address) : "memory");
  return position;
}

// Which run of which token a thread has, and which of a row's threads it is.
struct Share {
  uint32_t token;
  uint32_t run;
  uint32_t lane;
};

__device__ __forceinline__ Share ShareOf(const WritePlan& plan, const FastDivide& runs,
                                         uint32_t thread) {
  Share share;
  share.token = runs.Divide(thread >> plan.lane_shift, share.run);
  share.lane = thread & ((1u << plan.lane_shift) - 1);
  return share;
}

// A run of queries.
template <typename T, bool kHalves, typename Shape>
class QueryRun {
 public:
  static constexpr Family kFamily = Shape::kFamily;
  static constexpr int kPairs = Shape::kShape.query_pairs;
  using Rows = RowsInFlight<kPairs, Shape::kShape.query_stages, Shape::kShape.threads>;

  __device__ QueryRun(const WritePlan& plan, const void* shared, uint32_t thread)
      : plan_(plan),
        p_(plan.params),
        share_(ShareOf(plan, plan.query_runs, thread)),
        place_(PartOf(plan.rotary_dim, share_.lane, 1u << plan.lane_shift)),
        heads_(p_.query_heads - FirstHead()),
        rows_(shared, heads_, From(0), From(1), ChunksOf(place_), ChunksOf(place_)) {}

  __device__ __forceinline__ void SettleAddresses() { rows_.SettleAddresses(); }
  __device__ __forceinline__ void Queue(int place) { rows_.Queue(place, RowSteps()); }

  __device__ __forceinline__ void LookUp() {
    if (place_.turns) {
      angles_ =
          LoadAngles<kHalves>(p_.rope, LoadPosition(p_.rope.positions + share_.token), place_);
    }
  }

  __device__ __forceinline__ void Write() {
    const Chunks chunks = ChunksOf(place_);
    char* to =
        static_cast<char*>(p_.query_output) + chunks.first +
        (share_.token * p_.query_output_token_stride + FirstHead() * p_.query_output_head_stride) *
            sizeof(T);
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      if (2 * pair >= heads_) break;
      rows_.WaitForOldest();
      const int place = pair % Rows::kAtOnce;
      const Held first = Turned(rows_.Take(place, 0)), second = Turned(rows_.Take(place, 1));
      rows_.Refill(place, RowSteps());
      StoreRow(to, chunks, first);
      if (2 * pair + 1 < heads_) {
        StoreRow(to + p_.query_output_head_stride * sizeof(T), chunks, second);
      }
      to += plan_.output_step;
    }
  }

 private:
  __device__ Steps RowSteps() const { return {plan_.query_step, plan_.query_step}; }
  __device__ uint32_t FirstHead() const { return share_.run * 2 * kPairs; }
  __device__ const char* From(int row) const {
    return static_cast<const char*>(p_.query) + ChunksOf(place_).first +
           (share_.token * p_.query_token_stride + (FirstHead() + row) * p_.query_head_stride) *
               sizeof(T);
  }
  __device__ __forceinline__ Held Turned(const Held& held) const {
    return place_.turns ? Rotate<T, kHalves>(held, angles_) : held;
  }

  const WritePlan& plan_;
  const kvt_kv_write_params& p_;
  Share share_;
  RowPart place_;
  uint32_t heads_;
  Rows rows_;
  Angles angles_;
};

// A run of keys and values.
template <typename T, RowFormat kFormat, bool kHalves, typename Shape>
class KvRun {
 public:
  static constexpr Family kFamily = Shape::kFamily;
  static constexpr int kPairs = Shape::kShape.heads;
  using Rows = RowsInFlight<kPairs, Shape::kShape.stages, Shape::kShape.threads>;

  __device__ KvRun(const WritePlan& plan, const void* shared, uint32_t thread)
      : plan_(plan),
        p_(plan.params),
        share_(ShareOf(plan, plan.kv_runs, thread)),
        straight_(PartOf(0, share_.lane, 1u << plan.lane_shift)),
        place_(PartOf(plan.rotary_dim, share_.lane, 1u << plan.lane_shift)),
        heads_(Heads()),
        rows_(shared, 2 * heads_,
              From(p_.value, p_.value_token_stride, p_.value_head_stride, straight_),
              From(p_.key, p_.key_token_stride, p_.key_head_stride, place_), ChunksOf(straight_),
              ChunksOf(place_)) {}

  __device__ __forceinline__ void SettleAddresses() { rows_.SettleAddresses(); }
  __device__ __forceinline__ void Queue(int place) { rows_.Queue(place, RowSteps()); }

  // Where the token goes, and the angles that turn it.
  __device__ __forceinline__ void LookUp() {
    // Both on their way before either is used.
    slot_ = LoadSlot(p_.slot_mapping + share_.token);
    const int32_t position = place_.turns ? LoadPosition(p_.rope.positions + share_.token) : 0;
    if (place_.turns) angles_ = LoadAngles<kHalves>(p_.rope, position, place_);
    value_to_ = To(p_.cache.value, straight_);
    key_to_ = To(p_.cache.key, place_);
  }

  __device__ __forceinline__ void Write() {
    // Loaded while rows are on their way: the scales of one head, or of all if they share theirs.
    float value_inverse = GivenInverse(p_.cache.value_scales, share_.run);
    float key_inverse = GivenInverse(p_.cache.key_scales, share_.run);
    if (slot_ < 0) return;
    const bool own_scales =
        (p_.cache.key_scales.head_stride | p_.cache.value_scales.head_stride) != 0;
#pragma unroll 2
    for (int pair = 0; pair < kPairs; ++pair) {
      if (pair >= heads_) break;
      const uint32_t head = HeadAt(pair);
      rows_.WaitForOldest();
      const int place = pair % Rows::kAtOnce;
      const Held value = rows_.Take(place, 0), key = rows_.Take(place, 1);
      rows_.Refill(place, RowSteps());
      if (pair > 0 && own_scales) {
        value_inverse = GivenInverse(p_.cache.value_scales, head);
        key_inverse = GivenInverse(p_.cache.key_scales, head);
      }
      Store(value_to_, straight_, value, p_.cache.value_scales, head, value_inverse);
      Store(key_to_, place_, place_.turns ? Rotate<T, kHalves>(key, angles_) : key,
            p_.cache.key_scales, head, key_inverse);
      value_to_ += plan_.cache_step;
      key_to_ += plan_.cache_step;
    }
  }

 private:
  static constexpr int kCacheBytes = kFormat == RowFormat::kSame ? sizeof(T) : 1;

  __device__ Steps RowSteps() const { return {plan_.value_step, plan_.key_step}; }
  __device__ uint32_t HeadAt(int pair) const { return share_.run + pair * plan_.kv_runs.divisor(); }
  __device__ uint32_t Heads() const {
    uint32_t heads = 1;
#pragma unroll
    for (int pair = 1; pair < kPairs; ++pair) heads += HeadAt(pair) < p_.cache.kv_heads;
    return heads;
  }
  __device__ const char* From(const void* base, int64_t token_stride, int64_t head_stride,
                              const RowPart& place) const {
    return static_cast<const char*>(base) + ChunksOf(place).first +
           (share_.token * token_stride + share_.run * head_stride) * sizeof(T);
  }
  __device__ __forceinline__ int64_t Block() const { return slot_ >> plan_.page_shift; }
  __device__ __forceinline__ int64_t TokenInBlock() const {
    return slot_ & (p_.cache.page_tokens - 1);
  }
  __device__ __forceinline__ char* To(void* cache, const RowPart& place) const {
    return static_cast<char*>(cache) + place.chunk[0] * kChunk * kCacheBytes +
           (Block() * p_.cache.block_stride + TokenInBlock() * p_.cache.token_stride +
            share_.run * p_.cache.head_stride) *
               kCacheBytes;
  }

  __device__ __forceinline__ int64_t ScaleAt(const kvt_scales& scales, uint32_t head) const {
    // One for each head does not wait for the slot.
    const bool by_token = (scales.block_stride | scales.token_stride) != 0 && slot_ >= 0;
    const int64_t row =
        by_token ? Block() * scales.block_stride + TokenInBlock() * scales.token_stride : 0;
    return row + head * scales.head_stride;
  }

  __device__ __forceinline__ float GivenInverse(const kvt_scales& scales, uint32_t head) const {
    if (kFormat != RowFormat::kFp8 || scales.values == nullptr) return 1.0f;
    return __frcp_rn(scales.values[ScaleAt(scales, head)]);
  }

  // The inverse of a row's scale, found and written by the row's first thread.
  __device__ __forceinline__ float FoundInverse(const kvt_scales& scales, uint32_t head,
                                                const Held& held) const {
    const float maximum = RowMaximum<T>(held, 1u << plan_.lane_shift);
    const float scale = maximum > 0.0f ? __fdiv_rn(maximum, kFp8Max) : 1.0f;
    if (share_.lane == 0) const_cast<float*>(scales.values)[ScaleAt(scales, head)] = scale;
    return __frcp_rn(scale);
  }

  __device__ __forceinline__ void Store(char* to, const RowPart& place, const Held& held,
                                        const kvt_scales& scales, uint32_t head,
                                        float inverse) const {
    if constexpr (kFormat == RowFormat::kSame) {
      StoreRow(to, ChunksOf(place), held);
    } else {
      if (kFormat == RowFormat::kFp8Dynamic) inverse = FoundInverse(scales, head, held);
      StoreFp8<T>(to, ChunksOf(place), held, inverse);
    }
  }

  const WritePlan& plan_;
  const kvt_kv_write_params& p_;
  Share share_;
  RowPart straight_;  // in values
  RowPart place_;     // in the elements that the rope turns
  uint32_t heads_;
  Rows rows_;
  int64_t slot_ = 0;
  char* value_to_ = nullptr;
  char* key_to_ = nullptr;
  Angles angles_;
};

// Asks for the first rows when earlier launches have ended.
template <typename Run>
__device__ __forceinline__ void Begin(Run& run) {
  run.SettleAddresses();
  WaitOnDependentGrids<Run::kFamily>();
#pragma unroll
  for (int place = 0; place < Run::Rows::kAtOnce; ++place) run.Queue(place);
}

template <typename Run>
__device__ __forceinline__ void WriteRun(Run run, bool settled) {
  if (!settled) Begin(run);
  run.LookUp();
  if (settled) Begin(run);
  run.Write();
}

template <typename T, RowFormat kFormat, bool kHalves, typename Shape>
__global__ void __launch_bounds__(Shape::kShape.threads, Shape::kShape.blocks)
    KvWriteKernel(const __grid_constant__ WritePlan plan) {
  extern __shared__ uint4 shared[];
  LaunchDependentGrids<Shape::kFamily>();
  const bool queries = blockIdx.x >= plan.kv_blocks;
  const uint32_t block = queries ? blockIdx.x - plan.kv_blocks : blockIdx.x;
  const uint32_t thread = block * Shape::kShape.threads + threadIdx.x;
  // Worth it only for blocks that may come up before earlier launches have ended.
  const bool settled = plan.params.tables_settled != 0 && blockIdx.x < plan.first_blocks;
  if (queries) {
    if (thread >= plan.query_threads) return;
    WriteRun(QueryRun<T, kHalves, Shape>(plan, shared, thread), settled);
  } else {
    if (thread >= plan.kv_threads) return;
    WriteRun(KvRun<T, kFormat, kHalves, Shape>(plan, shared, thread), settled);
  }
}

}  // namespace kvtier::kernels
