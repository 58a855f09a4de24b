// SPDX-License-Identifier: Apache-2.0
// What the host hands to the prefill kernel, and the sizes both agree on.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kvtier/prefill.h"

namespace kvtier::kernels {

// Rows of queries that one CTA works on: (token, head of the group) pairs, token-major, so that a
// short suffix fills the tile with the heads that share its keys. High tiles exist over fp8 caches
// with heads of 128: their keys are widened for more rows at once.
constexpr int kTileRows = 128;
constexpr int kHighTileRows = 192;

// Keys of one step: what registers and shared memory leave room for.
constexpr int TileKeys(int head_dim, int tile_rows) {
  if (head_dim == 256) return 64;
  return tile_rows == kHighTileRows ? 96 : 128;
}

// Counters in the workspace, zero between launches.
struct PrefillCounters {
  uint32_t next_item;
  uint32_t finished_ctas;
};

// By value, as a kernel parameter: tensor maps must lie there.
struct PrefillPlan {
  CUtensorMap key_map;
  CUtensorMap value_map;
  kvt_prefill_params params;
  PrefillCounters* counters;
  float* partial_output;   // [splits, query_tokens, q_heads, head_dim]; only if splits > 1
  float* partial_lse;      // [splits, query_tokens, q_heads]
  int32_t group;           // query heads for each KV head
  uint32_t group_inverse;  // ceil(2^16 / group): rows of a tile are divided by multiplication
  int32_t splits;
  int32_t tile_rows;   // kTileRows or kHighTileRows
  int32_t box_tokens;  // keys that one tensor copy brings: a page or a part of one
  int32_t box_shift;   // log2(box_tokens)
  int32_t page_shift;  // log2(page_tokens)
  // Lengths and tables are read, and only then earlier launches waited for.
  int32_t tables_first;
  int32_t draws_items;  // short suffixes: items are drawn from the counter, not dealt out in turn
  int32_t scales_per_token;  // fp8: scales differ along tokens, so they cannot wait for the end
};

}  // namespace kvtier::kernels
