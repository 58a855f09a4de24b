// SPDX-License-Identifier: Apache-2.0
// Interface that receives changes of the tiers that hold a block.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "base/digest.h"
#include "tiers/types/block_key.h"
#include "tiers/types/cache_stats.h"

namespace kvtier {

// A tier has a block from now on. Valid during the call.
struct StoredBlock {
  BlockKey key;
  std::optional<BlockHash> parent;  // unknown, or none: the block is the first of its sequence
  uint16_t tokens = 0;
  Tier tier = Tier::kPool;
  // One for each token, or none: they are not known, or not to be told.
  std::span<const uint32_t> token_ids = {};
};

// Event loop only. Calls come at the end of the event in which a tier's share changed, or soon
// after, each change once: of the calls about one block and tier the last one is what holds. A
// block whose token ids come later is told of as stored once more. A pool has a block when its
// bytes have arrived in the pool of any device; regions, which are memory of engines, do not count.
// The disk has it when it would be found there after a restart. No call may lead back into the
// cache.
class BlockEventSink {
 public:
  virtual ~BlockEventSink() = default;
  virtual void BlockStored(const StoredBlock& block) = 0;
  virtual void BlockRemoved(const BlockKey& key, Tier tier) = 0;
  // Blocks with token ids are being erased: all ids heard so far must be forgotten.
  virtual void TokenIdsErased() {}
};

}  // namespace kvtier
