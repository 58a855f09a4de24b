// SPDX-License-Identifier: Apache-2.0
// Until when the cold store has blocks. An object's end is fixed when it is written, and each use
// moves that of its block: the object of a block in use is written again before it ends.
#pragma once

#include <cstdint>

#include "tiers/directory/block_lifecycle.h"

namespace kvtier {

class CacheState;

// An entry of a block whose object the store may have, for a load that takes it from there.
// kNoEntry if this host knows the block, or if the object is to be deleted.
[[nodiscard]] EntryIndex OfferFromStore(CacheState* state, const BlockKey& key, uint16_t tokens,
                                        uint32_t depth);
// The store has the block's object, until then in milliseconds of the age clock.
void NoteColdCopy(CacheState* state, EntryIndex entry, int64_t until_ms);
// The store has the block's object no more, or soon: the block is looked at again.
void ForgetColdCopy(CacheState* state, EntryIndex entry);
// The store has the block's object, and for about as long as the block lives. An object that ends
// sooner counts as none.
[[nodiscard]] bool ColdCopyLasts(const CacheState& state, EntryIndex entry);
// By so much may an object's end be behind its block's.
[[nodiscard]] int64_t MostColdLagMs(const CacheState& state, const BlockEntry& entry);

}  // namespace kvtier
