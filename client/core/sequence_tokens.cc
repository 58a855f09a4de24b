// SPDX-License-Identifier: Apache-2.0
#include "client/core/sequence_tokens.h"

#include <algorithm>

namespace kvtier::client {

void SequenceTokens::Append(std::span<const uint32_t> tokens) {
  ids_.insert(ids_.end(), tokens.begin(), tokens.end());
  hasher_.Extend(ids_);
}

BlockHash SequenceTokens::HashOf(size_t block, uint16_t tokens) const {
  if (block < hasher_.hashes().size()) return hasher_.hashes()[block];
  return hasher_.HashAfter(block, std::span(ids_).subspan(block * block_tokens_, tokens));
}

wire::CommitItem SequenceTokens::ItemOf(size_t block, BlockHandle handle, uint16_t tokens,
                                        RetentionClass retention) const {
  wire::CommitItem item{.block = handle,
                        .hash = HashOf(block, tokens),
                        .tokens = tokens,
                        .depth = static_cast<uint32_t>(block),
                        .retention = retention};
  if (block > 0) item.parent = hasher_.hashes()[block - 1];
  return item;
}

PrefixPlan PrefixPlan::Make(const BlockHasher& hasher, std::span<const uint32_t> tokens,
                            uint64_t leave_tokens, uint64_t reserve_tokens, size_t max_hashes,
                            size_t first_block) {
  const uint32_t block_tokens = hasher.block_tokens();
  PrefixPlan plan;
  plan.usable_tokens = tokens.size() > leave_tokens ? tokens.size() - leave_tokens : 0;
  const uint64_t total_blocks = BlocksOf(tokens.size() + reserve_tokens, block_tokens);
  plan.new_blocks = static_cast<uint32_t>(total_blocks);
  if (plan.usable_tokens == 0) return plan;

  const size_t last_block = (plan.usable_tokens - 1) / block_tokens;
  plan.full_blocks = std::min(last_block - first_block, max_hashes);
  if (first_block + plan.full_blocks < last_block) {
    plan.usable_tokens = (first_block + plan.full_blocks) * block_tokens;
    plan.new_blocks = 0;
    plan.is_last = false;
    return plan;
  }
  const std::span<const uint32_t> behind = tokens.subspan(last_block * block_tokens);
  for (size_t length = std::min<size_t>(behind.size(), block_tokens); length > 0; --length) {
    plan.partial_blocks.push_back(hasher.HashAfter(last_block, behind.first(length)));
    plan.partial_tokens.push_back(static_cast<uint16_t>(length));
  }
  // A block that is only used in part is replaced by a copy.
  const bool whole = plan.usable_tokens % block_tokens == 0;
  plan.new_blocks = static_cast<uint32_t>(total_blocks - last_block - (whole ? 1 : 0));
  return plan;
}

void PrefixPlan::LeaveOutPartial(uint32_t block_tokens) {
  partial_blocks.clear();
  partial_tokens.clear();
  usable_tokens -= usable_tokens % block_tokens;
}

}  // namespace kvtier::client
