// SPDX-License-Identifier: Apache-2.0
// The tokens of one growing sequence, the hashes of its blocks, and the question to the cache that
// they make.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/digest.h"
#include "base/ids.h"
#include "protocol/block_hash.h"
#include "protocol/block_messages.h"

namespace kvtier::client {

// Part of a Sequence; copied when that is forked.
class SequenceTokens {
 public:
  SequenceTokens(BlockHasher hasher, uint32_t block_tokens)
      : hasher_(std::move(hasher)), block_tokens_(block_tokens) {}

  void Append(std::span<const uint32_t> tokens);
  [[nodiscard]] size_t size() const { return ids_.size(); }
  [[nodiscard]] std::span<const uint32_t> ids() const { return ids_; }
  [[nodiscard]] const BlockHasher& hasher() const { return hasher_; }
  // The hash of the block, of which the first so many tokens count.
  [[nodiscard]] BlockHash HashOf(size_t block, uint16_t tokens) const;
  [[nodiscard]] wire::CommitItem ItemOf(size_t block, BlockHandle handle, uint16_t tokens,
                                        RetentionClass retention) const;

 private:
  std::vector<uint32_t> ids_;
  BlockHasher hasher_;
  uint32_t block_tokens_;
};

// The question to the cache by which a sequence is opened: one round trip, unless it has more
// blocks than a call may name. The request for a sequence of `tokens` tokens, at most
// `usable_tokens` of which may come from the cache. The last block that matters for that is looked
// for in every length, so that a partial block of another sequence will do; a longer one than
// usable is cut.
struct PrefixPlan {
  uint64_t usable_tokens = 0;
  // Blocks to find before the partial one.
  size_t full_blocks = 0;
  // Candidates for the block behind them, the longest first.
  std::vector<BlockHash> partial_blocks;
  std::vector<uint16_t> partial_tokens;
  // Private blocks that are needed even if everything is found, `reserve_tokens` included. None of
  // a plan that is not the last.
  uint32_t new_blocks = 0;
  // If all is found, another plan is made for the blocks behind.
  bool is_last = true;

  // `hasher` has hashed `tokens`. At most `max_hashes` blocks are asked for, those from
  // `first_block` on: the ones before it have been found.
  [[nodiscard]] static PrefixPlan Make(const BlockHasher& hasher, std::span<const uint32_t> tokens,
                                       uint64_t leave_tokens, uint64_t reserve_tokens,
                                       size_t max_hashes, size_t first_block = 0);
  // Whether a block is found that is used in part, and takes another block as its copy.
  [[nodiscard]] bool MayCopy(uint32_t block_tokens) const {
    return !partial_blocks.empty() && usable_tokens % block_tokens != 0;
  }
  // Computes the last block anew instead: a hit then needs no more blocks than a miss.
  // REQUIRES: MayCopy.
  void LeaveOutPartial(uint32_t block_tokens);
};

// Blocks of `block_tokens` that `tokens` tokens take.
[[nodiscard]] constexpr uint64_t BlocksOf(uint64_t tokens, uint32_t block_tokens) {
  return (tokens + block_tokens - 1) / block_tokens;
}

}  // namespace kvtier::client
