// SPDX-License-Identifier: Apache-2.0
// The tokens of one growing sequence, and the hashes of its blocks.
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

}  // namespace kvtier::client
