// SPDX-License-Identifier: Apache-2.0
// Into how many parts to split the keys of each tile of queries.
#pragma once

#include <cstdint>

namespace kvtier::kernels {

struct SplitQuestion {
  int64_t query_tiles;  // tiles of queries, over all sequences and KV heads; a bound
  int64_t key_tiles;    // of the longest sequence
  int32_t processors;
  int64_t output_bytes;  // of one part in fp32
  int32_t max_splits;
};

// The number that should take the least time; 1 where the tiles fill the device by themselves.
[[nodiscard]] int32_t ChooseSplits(const SplitQuestion& question);

}  // namespace kvtier::kernels
