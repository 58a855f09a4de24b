// SPDX-License-Identifier: Apache-2.0
// Which of the two prefill kernels serves a launch, and how its work is cut: into how many parts
// the keys are split, how high a tile of queries is, and how large the clusters are that serve
// short queries. The host decides by estimates from the bounds it knows; lengths stay on the
// device.
#pragma once

#include <cstdint>

#include "kernels/common/call.h"
#include "kernels/prefill/prefill.h"

namespace kvtier::kernels {

struct PrefillChoice {
  int32_t splits = 1;  // parts of the keys, which a second launch merges if there are more
  int32_t tile_rows = kTileRows;  // of the kernel for long queries
  int32_t cluster_ctas = 0;       // 0: the kernel for long queries serves the launch
  int64_t clusters = 0;
  int64_t items = 0;  // of the kernel for short queries, at most
};

// REQUIRES: checked parameters.
[[nodiscard]] PrefillChoice ChoosePrefill(const kvt_prefill_params& params, const Device& device);

// Tiles of so many rows over all sequences and KV heads, at most.
[[nodiscard]] int64_t BoundTiles(const kvt_prefill_params& params, int tile_rows);

// The elements of all queries, or of one part where keys are split.
[[nodiscard]] inline int64_t OutputElements(const kvt_prefill_params& params) {
  return int64_t{params.query_tokens} * params.q_heads * params.kv.head_dim;
}

}  // namespace kvtier::kernels
