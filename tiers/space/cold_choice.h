// SPDX-License-Identifier: Apache-2.0
// Which blocks are worth a copy in the cold store, and how much may be written there now.
#pragma once

#include <cstdint>
#include <map>
#include <set>

#include "tiers/directory/directory.h"
#include "tiers/policy/eviction_policy.h"
#include "tiers/types/block_key.h"

namespace kvtier {

class CacheState;

// A block is written when it has been idle for some time, when it leaves the disk next, or when its
// object ends too soon (ColdCopyLasts). Blocks that leave the disk without a copy that lasts are
// counted with the reason. Event loop only.
class ColdChoice {
 public:
  // kComeDown: a pool alone has the block, which is to come to host first.
  enum class Choice : uint8_t { kWrite, kComeDown, kNotYet, kNever };

  // `state` is borrowed and outlives this.
  explicit ColdChoice(CacheState* state) : state_(*state) {}

  // Whether the block should be written now; one that is about to leave the disk need not have been
  // idle. kNotYet while its namespace's objects are refused.
  [[nodiscard]] Choice ChoiceFor(EntryIndex entry, bool leaving) const;
  // Something more may be on its way to the store.
  [[nodiscard]] bool MayStart() const;
  // The block's object, of so many bytes, is on its way to the store from now on, or no longer.
  void Begin(const BlockKey& block, uint64_t bytes);
  void End(const BlockKey& block, uint64_t bytes);
  [[nodiscard]] bool IsUnderWay(const BlockKey& block) const { return under_way_.contains(block); }
  // The store has taken the block's object, or has not: it is asked again for objects of this
  // namespace after a pause, by one write alone, and after twice the pause if it takes that
  // neither. A store may refuse one tenant's objects, or one model's, and no others.
  void NoteTaken(const BlockKey& block, bool taken);
  // The time since the last call allows for more bytes. `away`: the store does not answer now.
  void Tick(bool away);
  // The block is being evicted from disk.
  void CountLoss(EntryIndex entry);

 private:
  struct Pause {
    int64_t length_ms = 0;
    int64_t until_ms = 0;
  };

  // The same without regard to pauses.
  [[nodiscard]] Choice WorthOf(EntryIndex entry, bool leaving) const;
  [[nodiscard]] bool Pauses(NamespaceId whose) const;

  CacheState& state_;
  std::set<BlockKey> under_way_;
  bool away_ = false;  // the store, at the last tick
  uint64_t in_flight_bytes_ = 0;
  // So many bytes may be written at once; below zero after a block that was larger than the rest.
  int64_t allowance_bytes_ = 0;
  int64_t refilled_ms_ = 0;
  std::map<NamespaceId, Pause> pauses_;  // of which the store refused the last object
};

}  // namespace kvtier
