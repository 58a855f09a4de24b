// SPDX-License-Identifier: Apache-2.0
#include "client/core/sequence_tokens.h"

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

}  // namespace kvtier::client
