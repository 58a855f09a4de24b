// SPDX-License-Identifier: Apache-2.0
// The request to the cache that opens a sequence with some tokens in one round trip.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/digest.h"
#include "protocol/block_hash.h"

namespace kvtier::client {

// The request for a sequence of `tokens` tokens, at most `usable_tokens` of which may come from the
// cache. The last block that matters for that is looked for in every length, so that a partial
// block of another sequence will do; a longer one than usable is cut.
struct PrefixPlan {
  uint64_t usable_tokens = 0;
  // Blocks to find before the partial one.
  size_t full_blocks = 0;
  // Candidates for the block behind them, the longest first.
  std::vector<BlockHash> partial_blocks;
  std::vector<uint16_t> partial_tokens;
  // Private blocks that are needed even if everything is found, `reserve_tokens` included.
  uint32_t new_blocks = 0;

  // `hasher` has hashed `tokens`. At most `max_hashes` blocks are asked for.
  [[nodiscard]] static PrefixPlan Make(const BlockHasher& hasher, std::span<const uint32_t> tokens,
                                       uint64_t leave_tokens, uint64_t reserve_tokens,
                                       size_t max_hashes);
};

// Blocks of `block_tokens` that `tokens` tokens take.
[[nodiscard]] constexpr uint64_t BlocksOf(uint64_t tokens, uint32_t block_tokens) {
  return (tokens + block_tokens - 1) / block_tokens;
}

}  // namespace kvtier::client
