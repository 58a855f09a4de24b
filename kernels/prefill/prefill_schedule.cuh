// SPDX-License-Identifier: Apache-2.0
// Which tile of queries, of which sequence and KV head, over which keys: the items that CTAs draw
// from one counter. Longest first within a sequence, so that the last items to start are the
// shortest; KV heads in sections whose keys and values stay in L2 while all of a sequence's queries
// pass.
#pragma once

#include <cstdint>

#include "kernels/prefill/prefill.h"

namespace kvtier::kernels {

// One item. Packed row r of a sequence and KV head is query head r % group of token r / group.
struct PrefillItem {
  int32_t valid;  // 0: no items are left
  int32_t sequence;
  int32_t query_start;
  int32_t query_length;
  int32_t kv_length;
  int32_t kv_head;
  int32_t first_row;
  int32_t first_token;  // of the tile's first row, within the sequence
  int32_t first_head;   // of that row, within the group
  int32_t first_tile;   // key tiles [first_tile, end_tile); if no key is seen, one behind the last
  int32_t end_tile;
  int32_t split;
  int32_t ascends;  // whether the keys are walked from the first to the last
};

// Keys and values of one section of heads. Much less than the L2 holds, since each half of it keeps
// copies of its own, and queries and output pass through as well.
constexpr int64_t kSectionBytes = int64_t{8} << 20;

// The last CTA to finish leaves the counters as the next launch needs them.
__device__ __forceinline__ void ResetCounters(PrefillCounters& counters) {
  if (atomicAdd(&counters.finished_ctas, 1) + 1 < gridDim.x) return;
  counters.next_item = 0;
  counters.finished_ctas = 0;
}

// A row's token within its sequence and its head among all.
struct RowPosition {
  int32_t token;
  int32_t head;
};

__device__ __forceinline__ RowPosition PositionOf(const PrefillPlan& plan, const PrefillItem& item,
                                                  int32_t row) {
  const int32_t within = item.first_head + row;
  const int32_t token = within * static_cast<int32_t>(plan.group_inverse) >> 16;
  return {item.first_token + token, item.kv_head * plan.group + within - token * plan.group};
}

// The position of the last key that a token sees; -1: none.
__device__ __forceinline__ int32_t LastKey(const kvt_prefill_params& p, const PrefillItem& item,
                                           int32_t token) {
  const int32_t position = item.kv_length - item.query_length + token;
  return p.causal ? position : item.kv_length - 1;
}

// The position of the first key that a token sees whose last one is `last`.
__device__ __forceinline__ int32_t FirstKey(const kvt_prefill_params& p, const PrefillItem& item,
                                            int32_t token, int32_t last) {
  if (p.window_tokens == 0) return 0;
  const int32_t behind = p.tokens_behind != nullptr ? p.tokens_behind[item.query_start + token] : 0;
  return max(0, last + behind - p.window_tokens + 1);
}

// Used by one warp, all lanes together; the items asked for must ascend. Items: how a kernel wants
// the work cut, see PrefillTraits and ShortTraits.
template <typename Items>
class PrefillSchedule {
 public:
  __device__ PrefillSchedule(const PrefillPlan& plan, int lane) : plan_(plan), lane_(lane) {}

  __device__ PrefillItem Find(int64_t index) {
    while (first_sequence_ < plan_.params.sequences.sequences) {
      if (!loaded_) Load();
      const uint32_t past = __ballot_sync(0xffffffff, index < first_item_ + items_up_to_);
      if (past != 0) {
        const int owner = __ffs(past) - 1;
        const int64_t before = __shfl_sync(0xffffffff, items_up_to_ - items_, owner);
        PrefillItem item = Decode(owner, static_cast<int32_t>(index - first_item_ - before));
        item.ascends = Items::kAscends && plan_.splits == 1;
        return item;
      }
      first_item_ += __shfl_sync(0xffffffff, items_up_to_, 31);
      first_sequence_ += 32;
      loaded_ = false;
    }
    return PrefillItem{};
  }

 private:
  // Each lane the lengths of one of 32 sequences, and how many items they and those before make.
  __device__ void Load() {
    const kvt_prefill_params& p = plan_.params;
    const int32_t sequence = first_sequence_ + lane_;
    query_start_ = query_length_ = kv_length_ = 0;
    if (sequence < p.sequences.sequences) {
      query_start_ = p.query_starts[sequence];
      query_length_ = max(0, p.query_starts[sequence + 1] - query_start_);
      // Lengths above the promised maximum are cut, as decode does: block tables have no more
      // entries.
      kv_length_ = min(max(0, p.sequences.kv_lengths[sequence]), p.sequences.max_kv_length);
    }
    items_ = int64_t{Tiles(query_length_)} * p.kv.kv_heads * plan_.splits;
    items_up_to_ = items_;
    for (int distance = 1; distance < 32; distance *= 2) {
      const int64_t below = __shfl_up_sync(0xffffffff, items_up_to_, distance);
      if (lane_ >= distance) items_up_to_ += below;
    }
    loaded_ = true;
  }

  __device__ int32_t Tiles(int32_t query_length) const {
    return (query_length * plan_.group + Items::kRows - 1) / Items::kRows;
  }

  // Item `index` of the sequence that lane `owner` holds.
  __device__ PrefillItem Decode(int owner, int32_t index) const {
    const kvt_prefill_params& p = plan_.params;
    PrefillItem item{};
    item.valid = 1;
    item.sequence = first_sequence_ + owner;
    item.query_start = __shfl_sync(0xffffffff, query_start_, owner);
    item.query_length = __shfl_sync(0xffffffff, query_length_, owner);
    item.kv_length = __shfl_sync(0xffffffff, kv_length_, owner);
    const int32_t tiles = Tiles(item.query_length);
    const int32_t section_heads = SectionHeads(tiles, item.kv_length);
    const int32_t section_items = tiles * section_heads * plan_.splits;
    const int32_t section = index / section_items;
    const int32_t heads = min(section_heads, p.kv.kv_heads - section * section_heads);
    int32_t rest = index - section * section_items;
    item.split = rest % plan_.splits;
    rest /= plan_.splits;
    item.kv_head = section * section_heads + rest % heads;
    item.first_row = (tiles - 1 - rest / heads) * Items::kRows;
    CutKeys(item);
    return item;
  }

  // A single tile of queries leaves nothing to read again, and so no reason to divide.
  __device__ int32_t SectionHeads(int32_t tiles, int32_t kv_length) const {
    const int32_t heads = plan_.params.kv.kv_heads;
    if (tiles == 1) return heads;
    const int64_t head_bytes = max(int64_t{1}, int64_t{kv_length} * Items::kKeyBytes * 2);
    return static_cast<int32_t>(min(int64_t{heads}, max(int64_t{1}, kSectionBytes / head_bytes)));
  }

  // The key tiles that any row of the tile sees, and of those this split's share.
  __device__ void CutKeys(PrefillItem& item) const {
    const kvt_prefill_params& p = plan_.params;
    const int32_t rows = item.query_length * plan_.group;
    item.first_token = item.first_row / plan_.group;
    item.first_head = item.first_row - item.first_token * plan_.group;
    const int32_t last_token = (min(item.first_row + Items::kRows, rows) - 1) / plan_.group;
    const int32_t end = max(0, LastKey(p, item, last_token) + 1);
    const int32_t begin = BeginOfTile(item, last_token);
    const int32_t first_tile = begin / Items::kTileKeys;
    const int32_t tiles = max(0, (end + Items::kTileKeys - 1) / Items::kTileKeys - first_tile);
    item.first_tile = first_tile;
    item.end_tile = first_tile + tiles;
    if (plan_.splits > 1) {
      item.end_tile =
          first_tile + static_cast<int32_t>(int64_t{tiles} * (item.split + 1) / plan_.splits);
      item.first_tile += static_cast<int32_t>(int64_t{tiles} * item.split / plan_.splits);
    }
    if (!Items::kNeverEmpty || item.first_tile < item.end_tile) return;
    item.first_tile = (item.kv_length + Items::kTileKeys - 1) / Items::kTileKeys;
    item.end_tile = item.first_tile + 1;
  }

  // The first key that any of the tile's tokens, up to `last_token`, sees.
  __device__ int32_t BeginOfTile(const PrefillItem& item, int32_t last_token) const {
    const kvt_prefill_params& p = plan_.params;
    const int32_t first_token = item.first_token;
    int32_t begin = FirstKey(p, item, first_token, LastKey(p, item, first_token));
    // Without tokens behind, the first token sees furthest back.
    if (p.tokens_behind == nullptr || p.window_tokens == 0) return begin;
    for (int32_t token = first_token + lane_; token <= last_token; token += 32) {
      begin = min(begin, FirstKey(p, item, token, LastKey(p, item, token)));
    }
    return __reduce_min_sync(0xffffffff, begin);
  }

  const PrefillPlan& plan_;
  int lane_;
  int32_t first_sequence_ = 0;  // of the 32 that the lanes hold
  int64_t first_item_ = 0;      // of theirs
  bool loaded_ = false;
  int32_t query_start_;
  int32_t query_length_;
  int32_t kv_length_;
  int64_t items_;
  int64_t items_up_to_;
};

}  // namespace kvtier::kernels
