// SPDX-License-Identifier: Apache-2.0
// One block from the cold store into its host slot.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "base/gate.h"
#include "tiers/cold/cold_object.h"
#include "tiers/state/cache_state.h"

namespace kvtier {

// Event loop only. Used by the loader alone, and only if there is a cold store.
class ColdFetch {
 public:
  explicit ColdFetch(CacheState* state) : state_(*state) {}

  // Asks the store for the block's object, checks it on the executor and copies it into `slot` if
  // it is the block's. `done` is called once, from a later event; until then `expected` and `slot`
  // stay as they are.
  void Begin(const SlotExpectation& expected, std::span<std::byte> slot,
             std::function<void(const ColdVerdict&)> done);
  // Takes the fetched block as the entry's, with the times of its header, unless it has expired by
  // them. Returns why the block is a miss, or kNone, and counts. An object that is no block any
  // more is deleted.
  [[nodiscard]] MissReason Accept(EntryIndex entry, const ColdVerdict& verdict, uint64_t bytes);

 private:
  void LearnPlace(EntryIndex entry, uint32_t depth, const BlockHash& parent);

  CacheState& state_;
  Gate gate_;
};

}  // namespace kvtier
