// SPDX-License-Identifier: Apache-2.0
// The plan that the host hands to the two prefill kernels, the sizes both sides agree on, and the
// launches.
//
// The kernel for long queries is built for tiles of 128 or 192 rows of queries, that for short
// queries for tiles of 64 rows, each served by a cluster of CTAs that divide its keys.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/common/call.h"
#include "kvtier/prefill.h"

namespace kvtier::kernels {

// Rows of queries that one CTA works on: (token, head of the group) pairs, token-major, so that a
// short query fills the tile with the heads that share its keys. Tall tiles exist over fp8 caches
// with heads of 128: their keys are widened for more rows at once.
constexpr int kTileRows = 128;
constexpr int kTallTileRows = 192;

// Keys of one step: what registers and shared memory leave room for.
constexpr int TileKeys(int head_dim, int tile_rows) {
  if (head_dim == 256) return 64;
  return tile_rows == kTallTileRows ? 96 : 128;
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
  float* partial_output;   // [splits, query_tokens, q_heads, head_dim]; only if writes_partials
  float* partial_lse;      // [splits, query_tokens, q_heads]
  int32_t group;           // query heads for each KV head
  uint32_t group_inverse;  // ceil(2^16 / group): rows of a tile are divided by multiplication
  int32_t splits;
  int32_t tile_rows;   // kTileRows or kTallTileRows
  int32_t box_tokens;  // keys that one tensor copy brings: a page or a part of one
  int32_t box_shift;   // log2(box_tokens)
  int32_t page_shift;  // log2(page_tokens)
  // Lengths and tables are read, and only then earlier launches waited for.
  int32_t tables_first;
  int32_t draws_items;  // short queries: items are drawn from the counter, not dealt out in turn
  int32_t scales_per_token;  // fp8: scales differ along tokens, so they cannot wait for the end
  // Results leave as fp32 to partial_output and partial_lse, whether or not keys are split.
  int32_t writes_partials;
};

// The kernel for long queries. The plan's head_dim is one that is built. `ctas`: at most one for
// each multiprocessor.
template <Operands kOperands>
[[nodiscard]] cudaError_t LaunchPrefill(const PrefillPlan& plan, int ctas, cudaStream_t stream);

// The most CTAs that a cluster may have. Any number up to it may suit the device's groups of
// multiprocessors best, of which each holds whole clusters only.
constexpr int kMaxClusterCtas = 16;

// Rows of queries, as kTileRows: the least that the tensor cores multiply at a time.
constexpr int kShortRows = 64;
// Keys are cut between CTAs at multiples of this, the smallest page; one tensor copy brings so
// many. The plan's box_tokens must be this.
constexpr int kShortUnitKeys = 16;

// How many clusters of so many CTAs the current device holds at once, a multiprocessor for each
// CTA; 0: none, or CUDA refused.
[[nodiscard]] int ShortClustersAtOnce(int cluster_ctas);

// Head sizes of 64 and 128.
[[nodiscard]] cudaError_t LaunchPrefillShort(const PrefillPlan& plan, int clusters,
                                             int cluster_ctas, cudaStream_t stream);

}  // namespace kvtier::kernels
