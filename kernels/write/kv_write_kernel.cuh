// Rotary embedding, quantisation and paged write of a step's keys and values in one pass. A thread
// owns sixteen elements of the keys and values of kHeads heads of a token, or of twice as many
// queries. All of them are on their way before it is known where they go. With one head they wait
// in registers; with more in shared memory, where the thread takes them up itself, head by head, in
// a loop that is not unrolled: at this length of a launch, instructions that are fetched for the
// first time cost as much as data.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/append/pipeline.cuh"
#include "kernels/blocks/overlapped_launch.cuh"
#include "kernels/write/kv_write_launch.h"
#include "kernels/write/row_chunks.cuh"
#include "kvtier/kv_write.h"

namespace kvtier::kernels {

constexpr float kFp8Max = 448.0f;
constexpr int kWriteThreads = 64;
constexpr int kWriteCtas = 16;  // of a multiprocessor

// How the cache keeps a row.
enum class RowFormat { kSame, kFp8, kFp8Dynamic };

// Once, streamed past L1, and issued where it is written.
__device__ __forceinline__ uint4 LoadStreamed(const void* address) {
  uint4 v;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(address)
               : "memory");
  return v;
}

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

// A thread's chunks of kRows rows, from the moment they are asked for.
template <typename T, int kRows, bool kInRegisters>
class RowsUnderWay {
 public:
  static constexpr int kPitch = kWriteThreads * 16;
  static constexpr int kSharedBytes = kInRegisters ? 0 : kRows * 2 * kPitch;

  __device__ explicit RowsUnderWay(void* shared) : own_(SharedAddress(shared) + threadIdx.x * 16) {}

  __device__ __forceinline__ void Queue(int row, const T* from, const Place& place) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const T* const chunk = from + place.chunk[c] * kChunk;
      if constexpr (kInRegisters) {
        held_[row].chunk[c] = LoadStreamed(chunk);
      } else {
        CopyChunk(own_ + (2 * row + c) * kPitch, chunk, true);
      }
    }
  }
  // Before the first Take.
  __device__ __forceinline__ void Wait() const {
    if constexpr (!kInRegisters) WaitForChunks();
  }
  __device__ __forceinline__ Held Take(int row) const {
    if constexpr (kInRegisters) return held_[row];
    return {LoadShared(own_ + 2 * row * kPitch), LoadShared(own_ + (2 * row + 1) * kPitch)};
  }

 private:
  uint32_t own_;
  Held held_[kInRegisters ? kRows : 1];
};

template <typename T, RowFormat kFormat, bool kHalves, int kHeads>
class RowWriter {
 public:
  using Rows = RowsUnderWay<T, 2 * kHeads, kHeads == 1>;
  // How often a loop over rows is unrolled.
  static constexpr int kUnrolled = kHeads == 1 ? 2 : 1;

  __device__ RowWriter(const WritePlan& plan, void* shared, uint32_t token, uint32_t unit,
                       uint32_t lane)
      : plan_(plan),
        p_(plan.params),
        rows_(shared),
        token_(token),
        unit_(unit),
        lane_(lane),
        straight_(PlaceOf(0, lane, 1u << plan.lane_shift)),
        place_(PlaceOf(plan.rotary_dim, lane, 1u << plan.lane_shift)) {}

  // Where the token goes, and the angles that turn it.
  __device__ __forceinline__ void LookUp() {
    slot_ = LoadSlot(p_.slot_mapping + token_);
    if (place_.turns) {
      angles_ = LoadAngles<kHalves>(p_.rope, LoadPosition(p_.rope.positions + token_), place_);
    }
  }

  __device__ __forceinline__ void QueueQueries() {
    const T* const from = static_cast<const T*>(p_.query) + token_ * p_.query_token_stride +
                          FirstQuery() * p_.query_head_stride;
#pragma unroll
    for (int row = 0; row < 2 * kHeads; ++row) {
      if (FirstQuery() + row < p_.query_heads) {
        rows_.Queue(row, from + row * p_.query_head_stride, place_);
      }
    }
  }

  __device__ __forceinline__ void WriteQueries() const {
    T* const to = static_cast<T*>(p_.query_output) + token_ * p_.query_output_token_stride +
                  FirstQuery() * p_.query_output_head_stride;
    rows_.Wait();
#pragma unroll kUnrolled
    for (int row = 0; row < 2 * kHeads; ++row) {
      if (FirstQuery() + row >= p_.query_heads) break;
      StoreRow(to + row * p_.query_output_head_stride, place_, Turned(rows_.Take(row)));
    }
  }

  __device__ __forceinline__ void QueueKeysAndValues() {
    const T* const values = static_cast<const T*>(p_.value) + token_ * p_.value_token_stride;
    const T* const keys = static_cast<const T*>(p_.key) + token_ * p_.key_token_stride;
#pragma unroll
    for (int i = 0; i < kHeads; ++i) {
      if (HeadAt(i) >= p_.cache.kv_heads) break;
      rows_.Queue(2 * i, values + HeadAt(i) * p_.value_head_stride, straight_);
      rows_.Queue(2 * i + 1, keys + HeadAt(i) * p_.key_head_stride, place_);
    }
  }

  __device__ __forceinline__ void WriteKeysAndValues() const {
    // While rows are on their way. Of one head, or of all if they share theirs.
    const kvt_scales &key_scales = p_.cache.key_scales, &value_scales = p_.cache.value_scales;
    float key_inverse = GivenInverse(key_scales, HeadAt(0));
    float value_inverse = GivenInverse(value_scales, HeadAt(0));
    if (slot_ < 0) return;
    const bool own_scales = (key_scales.head_stride | value_scales.head_stride) != 0;
    rows_.Wait();
#pragma unroll 1
    for (int i = 0; i < kHeads; ++i) {
      const uint32_t head = HeadAt(i);
      if (head >= p_.cache.kv_heads) break;
      const Held value = rows_.Take(2 * i), key = rows_.Take(2 * i + 1);
      if (i > 0 && own_scales) {
        key_inverse = GivenInverse(key_scales, head);
        value_inverse = GivenInverse(value_scales, head);
      }
      Write(p_.cache.value, head, straight_, value, value_scales, value_inverse);
      Write(p_.cache.key, head, place_, Turned(key), key_scales, key_inverse);
    }
  }

 private:
  __device__ int32_t FirstQuery() const { return (unit_ - plan_.kv_runs) * 2 * kHeads; }
  __device__ int32_t HeadAt(int i) const { return unit_ + i * plan_.kv_runs; }
  __device__ int64_t Block() const { return slot_ >> plan_.page_shift; }
  __device__ int64_t TokenInBlock() const { return slot_ & (p_.cache.page_tokens - 1); }

  __device__ __forceinline__ Held Turned(const Held& held) const {
    return place_.turns ? Rotate<T, kHalves>(held, angles_) : held;
  }

  __device__ __forceinline__ int64_t ScaleAt(const kvt_scales& scales, int32_t head) const {
    // One for each head does not wait for the slot.
    const bool by_token = (scales.block_stride | scales.token_stride) != 0 && slot_ >= 0;
    const int64_t row =
        by_token ? Block() * scales.block_stride + TokenInBlock() * scales.token_stride : 0;
    return row + head * scales.head_stride;
  }

  __device__ __forceinline__ float GivenInverse(const kvt_scales& scales, int32_t head) const {
    if (kFormat != RowFormat::kFp8 || scales.values == nullptr) return 1.0f;
    return __frcp_rn(scales.values[ScaleAt(scales, head)]);
  }

  // The inverse of a row's scale, found and written by the row's first thread.
  __device__ __forceinline__ float FoundInverse(const kvt_scales& scales, int32_t head,
                                                const Held& held) const {
    const float maximum = RowMaximum<T>(held, 1u << plan_.lane_shift);
    const float scale = maximum > 0.0f ? __fdiv_rn(maximum, kFp8Max) : 1.0f;
    if (lane_ == 0) const_cast<float*>(scales.values)[ScaleAt(scales, head)] = scale;
    return __frcp_rn(scale);
  }

  __device__ __forceinline__ void Write(void* cache, int32_t head, const Place& place,
                                        const Held& held, const kvt_scales& scales,
                                        float inverse) const {
    const int64_t at = Block() * p_.cache.block_stride + TokenInBlock() * p_.cache.token_stride +
                       head * p_.cache.head_stride;
    if constexpr (kFormat == RowFormat::kSame) {
      StoreRow(static_cast<T*>(cache) + at, place, held);
    } else {
      if (kFormat == RowFormat::kFp8Dynamic) inverse = FoundInverse(scales, head, held);
      StoreFp8<T>(static_cast<uint8_t*>(cache) + at, place, held, inverse);
    }
  }

  const WritePlan& plan_;
  const kvt_kv_write_params& p_;
  Rows rows_;
  uint32_t token_;
  uint32_t unit_;
  uint32_t lane_;
  Place straight_;  // in values
  Place place_;     // in what the rope turns
  int64_t slot_ = 0;
  Angles angles_;
};

template <typename T, RowFormat kFormat, bool kHalves, int kHeads>
__global__ void __launch_bounds__(kWriteThreads, kWriteCtas)
    KvWriteKernel(const __grid_constant__ WritePlan plan) {
  extern __shared__ uint4 shared[];
  LetLaterGridsStart();
  const uint32_t thread = blockIdx.x * kWriteThreads + threadIdx.x;
  if (thread >= plan.threads) return;
  uint32_t unit;
  const uint32_t token = plan.units.Divide(thread >> plan.lane_shift, unit);
  RowWriter<T, kFormat, kHalves, kHeads> writer(plan, shared, token, unit,
                                                thread & ((1u << plan.lane_shift) - 1));
  // Worth it only for blocks that may come up before earlier launches have ended.
  const bool settled = plan.params.tables_settled != 0 && blockIdx.x < plan.first_blocks;
  if (settled) writer.LookUp();
  WaitForEarlierGrids();
  if (unit >= plan.kv_runs) {
    writer.QueueQueries();
    if (!settled) writer.LookUp();
    writer.WriteQueries();
  } else {
    writer.QueueKeysAndValues();
    if (!settled) writer.LookUp();
    writer.WriteKeysAndValues();
  }
}

}  // namespace kvtier::kernels
