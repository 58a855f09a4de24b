// SPDX-License-Identifier: Apache-2.0
// A block's tile of queries and its keys and values on their way through shared memory: rows of
// 16-bit elements, whose 16-byte chunks are XORed so that eight rows' chunks of one column fall
// into different banks.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/hopper/math.cuh"
#include "kernels/hopper/shared_memory.cuh"
#include "kernels/prefill/ampere_prefill.h"
#include "kernels/prefill/prefill_schedule.cuh"

namespace kvtier::kernels {

constexpr int kAmpereThreads = 128;
constexpr int kAmpereKeys = 32;   // of a tile
constexpr int kAmpereStages = 2;  // one tile comes while the other is computed with

template <Operands kOperands, int kHeadDimValue>
struct AmpereTraits {
  using Math = std::conditional_t<kOperands == Operands::kBf16, Bf16Math, Fp16Math>;
  static constexpr bool kFp8 = kOperands == Operands::kFp8;
  static constexpr int kHeadDim = kHeadDimValue;
  static constexpr int kRowBytes = kHeadDim * 2;
  static constexpr int kRowChunks = kRowBytes / 16;
  static constexpr int kTileBytes = kAmpereKeys * kRowBytes;
  // Shared memory: queries; for each stage keys, values; for each stage their scales.
  static constexpr int kKeysAt = kAmpereRows * kRowBytes;
  static constexpr int kScalesAt = kKeysAt + kAmpereStages * 2 * kTileBytes;
  static constexpr int kSharedBytes = kScalesAt + kAmpereStages * 2 * kAmpereKeys * 4;
  static_assert(kSharedBytes <= 97 * 1024);  // the smallest devices have 99 KB
};

template <typename Traits>
__device__ __forceinline__ uint32_t AmpereChunk(int row, int chunk) {
  return row * Traits::kRowBytes + ((chunk ^ (row & 7)) << 4);
}

// The item of block `block`; not valid: there is none. Tiles of a sequence come last first, since
// in causal order those see the most keys.
__device__ inline PrefillItem FindAmpereItem(const AmperePrefillPlan& plan, int64_t block) {
  const kvt_prefill_params& p = plan.params;
  PrefillItem item{};
  item.kv_head = static_cast<int32_t>(block % p.kv.kv_heads);
  int64_t index = block / p.kv.kv_heads;
  for (int s = 0; s < p.sequences.sequences; ++s) {
    const int32_t start = p.query_starts[s];
    const int32_t length = max(0, p.query_starts[s + 1] - start);
    const int64_t tiles = (int64_t{length} * plan.group + kAmpereRows - 1) / kAmpereRows;
    if (index < tiles) {
      item.valid = 1;
      item.sequence = s;
      item.query_start = start;
      item.query_length = length;
      // Lengths above the promised maximum are cut: block tables have no more entries.
      item.kv_length = min(max(0, p.sequences.kv_lengths[s]), p.sequences.max_kv_length);
      item.first_row = static_cast<int32_t>(tiles - 1 - index) * kAmpereRows;
      return item;
    }
    index -= tiles;
  }
  return item;
}

// A row's token within its sequence and its head among all. Rows behind the last one are computed,
// though never written, as if they were it.
__device__ inline RowPosition AmperePosition(const AmperePrefillPlan& plan, const PrefillItem& item,
                                             int row) {
  const int32_t packed = min(item.first_row + row, item.query_length * plan.group - 1);
  const int32_t token = packed / plan.group;
  return {token, item.kv_head * plan.group + packed - token * plan.group};
}

// The keys [begin, end) that any row of the item sees; nothing else is read.
struct KeySpan {
  int32_t begin;
  int32_t end;
};

__device__ inline KeySpan SpanOfKeys(const AmperePrefillPlan& plan, const PrefillItem& item) {
  const kvt_prefill_params& p = plan.params;
  const int32_t first = AmperePosition(plan, item, 0).token;
  const int32_t last = AmperePosition(plan, item, kAmpereRows - 1).token;
  KeySpan span = {FirstKey(p, item, first, LastKey(p, item, first)),
                  max(0, LastKey(p, item, last) + 1)};
  if (p.tokens_behind == nullptr || p.window_tokens == 0) return span;
  for (int32_t token = first + 1; token <= last; ++token) {
    span.begin = min(span.begin, FirstKey(p, item, token, LastKey(p, item, token)));
  }
  return span;
}

// The queries' rows, in the type of the product. All threads of the block call.
template <typename Traits>
__device__ void LoadQueries(const AmperePrefillPlan& plan, const PrefillItem& item,
                            uint32_t shared) {
  const kvt_prefill_params& p = plan.params;
  const bool narrows = Traits::kFp8 && p.query_dtype == KVT_BF16;
  for (int i = threadIdx.x; i < kAmpereRows * Traits::kRowChunks; i += kAmpereThreads) {
    const int row = i / Traits::kRowChunks, chunk = i % Traits::kRowChunks;
    const RowPosition place = AmperePosition(plan, item, row);
    const auto* const from = static_cast<const uint16_t*>(p.query) +
                             (int64_t{item.query_start} + place.token) * p.query_token_stride +
                             place.head * p.query_head_stride + chunk * 8;
    uint4 words = *reinterpret_cast<const uint4*>(from);
    if (narrows) {
      words = make_uint4(Fp16FromBf16(words.x), Fp16FromBf16(words.y), Fp16FromBf16(words.z),
                         Fp16FromBf16(words.w));
    }
    StoreShared(shared + AmpereChunk<Traits>(row, chunk), words);
  }
}

// Keys and values of one item, tile after tile.
template <typename Traits>
class AmpereKv {
 public:
  __device__ AmpereKv(const AmperePrefillPlan& plan, const PrefillItem& item, KeySpan span,
                      uint32_t shared)
      : plan_(plan), item_(item), span_(span), shared_(shared) {}

  // Brings the tile that begins at key `first` into `stage`, as one group of copies; keys behind
  // the span become zeros, since what their memory holds may be NaN. All threads of the block call.
  __device__ void Queue(int32_t first, int stage) const {
    const kvt_paged_kv& kv = plan_.params.kv;
    for (int i = threadIdx.x; i < kAmpereKeys * Traits::kRowChunks; i += kAmpereThreads) {
      const int row = i / Traits::kRowChunks, chunk = i % Traits::kRowChunks;
      const bool seen = first + row < span_.end;
      const int64_t at = (seen ? ElementOf(first + row) : 0) + chunk * 8;
      const uint32_t to = AmpereChunk<Traits>(row, chunk);
      Bring(Keys(stage) + to, kv.key, at, seen);
      Bring(Values(stage) + to, kv.value, at, seen);
    }
    if (Traits::kFp8 && plan_.scales_per_token) {
      const int row = threadIdx.x % kAmpereKeys;
      const bool seen = first + row < span_.end;
      if (threadIdx.x < kAmpereKeys) {
        StoreShared(KeyScales(stage) + row * 4, ScaleOf(kv.key_scales, first + row, seen));
      } else if (threadIdx.x < 2 * kAmpereKeys) {
        StoreShared(ValueScales(stage) + row * 4, ScaleOf(kv.value_scales, first + row, seen));
      }
    }
    CommitCopies();
  }

  __device__ uint32_t Keys(int stage) const {
    return shared_ + Traits::kKeysAt + stage * 2 * Traits::kTileBytes;
  }
  __device__ uint32_t Values(int stage) const { return Keys(stage) + Traits::kTileBytes; }
  // One for each key of the tile, if scales differ along tokens.
  __device__ uint32_t KeyScales(int stage) const {
    return shared_ + Traits::kScalesAt + stage * 2 * kAmpereKeys * 4;
  }
  __device__ uint32_t ValueScales(int stage) const { return KeyScales(stage) + kAmpereKeys * 4; }

 private:
  __device__ int64_t BlockOf(int32_t key) const {
    const kvt_sequences& s = plan_.params.sequences;
    return s.block_table[item_.sequence * s.table_stride + (key >> plan_.page_shift)];
  }
  __device__ int64_t ElementOf(int32_t key) const {
    const kvt_paged_kv& kv = plan_.params.kv;
    return BlockOf(key) * kv.block_stride + (key & (kv.page_tokens - 1)) * kv.token_stride +
           item_.kv_head * kv.head_stride;
  }
  __device__ float ScaleOf(const kvt_scales& scales, int32_t key, bool seen) const {
    if (scales.values == nullptr || !seen) return 1.0F;
    return scales.values[BlockOf(key) * scales.block_stride +
                         (key & (plan_.params.kv.page_tokens - 1)) * scales.token_stride +
                         item_.kv_head * scales.head_stride];
  }

  // Eight elements.
  __device__ static void Bring(uint32_t to, const void* cache, int64_t element, bool seen) {
    if constexpr (Traits::kFp8) {
      uint2 raw = make_uint2(0, 0);
      if (seen) {
        raw = *reinterpret_cast<const uint2*>(static_cast<const uint8_t*>(cache) + element);
      }
      StoreShared(to, make_uint4(Widened(raw.x), Widened(raw.x >> 16), Widened(raw.y),
                                 Widened(raw.y >> 16)));
    } else {
      CopyAsync16(to, static_cast<const uint16_t*>(cache) + element, seen);
    }
  }
  __device__ static uint32_t Widened(uint32_t pair) {
    return Fp16PairFromE4m3Pair<Family::kAmpere>(static_cast<uint16_t>(pair));
  }

  const AmperePrefillPlan& plan_;
  const PrefillItem& item_;
  KeySpan span_;
  uint32_t shared_;
};

}  // namespace kvtier::kernels
