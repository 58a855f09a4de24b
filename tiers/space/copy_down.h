// SPDX-License-Identifier: Apache-2.0
// How a tier's space asks for its blocks to be copied to the tier below before they are evicted.
// The transfers implement it (Offloader from pools to host, Persister from host to disk), so that
// space knows nothing of how bytes move.
#pragma once

#include "tiers/types/block_place.h"

namespace kvtier {

// Event loop only. The implementation outlives the space that uses it.
class CopyDown {
 public:
  virtual ~CopyDown() = default;
  // Asks for a copy of the block in the tier below, soon; what is there already is touched. Does
  // nothing if the copy is being made, or cannot be.
  virtual void Want(EntryIndex entry) = 0;
  // The block's bytes have arrived in the tier above: a copy that was asked for can begin.
  virtual void SourceReady(EntryIndex entry) = 0;
  // The tier above no longer has the block: a copy that has not begun is wanted no more.
  virtual void SourceGone(EntryIndex entry) = 0;
};

}  // namespace kvtier
