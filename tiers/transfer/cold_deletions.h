// SPDX-License-Identifier: Apache-2.0
// The objects that the cold store is to delete: of blocks evicted by hand, and those that are no
// good.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <vector>

#include "base/gate.h"
#include "base/result.h"
#include "tiers/space/cold_choice.h"
#include "tiers/state/cache_state.h"

namespace kvtier {

// A store that refuses one object holds up no other: the objects of new evictions are asked for at
// once, in calls of ever fewer of those that a call has failed with, until a refused one is alone.
// Refused objects are asked for again after pauses, and given up after hours. Event loop only.
class ColdDeletions {
 public:
  // Both are borrowed.
  ColdDeletions(CacheState* state, const ColdChoice* choice) : state_(*state), choice_(*choice) {}

  // Deletes the block's object, also one that is on its way to the store, and asks again with ticks
  // until the store has done it. `whose`, if any, is told of the first answer. Another host may
  // write the object again.
  void Forget(const BlockKey& key, const std::shared_ptr<ObjectEviction>& whose);
  // A write of the block has ended. One that was given up may yet come to its end.
  void NoteWritten(const BlockKey& key, const Status& status);
  void Tick();

 private:
  using Evictions = std::vector<std::shared_ptr<ObjectEviction>>;

  // In one call after the other, since an operator may evict all of a model.
  void Begin();
  // Adds the key to those of one call, unless its object is on its way there. False if the call
  // takes no more.
  [[nodiscard]] bool Take(const BlockKey& key, std::vector<BlockKey>* keys) const;
  [[nodiscard]] std::vector<BlockKey> Fresh();
  // Behind those that were asked for last.
  [[nodiscard]] std::vector<BlockKey> Kept() const;
  void OnDeleted(const std::vector<BlockKey>& keys, bool again, const Status& status);
  void GiveUpSome();
  static void Tell(const Evictions& evictions, const Status& status);

  CacheState& state_;
  const ColdChoice& choice_;
  bool is_deleting_ = false;
  std::set<BlockKey> fresh_;  // evicted since they were last asked for alone
  BlockKey last_asked_;
  BlockKey next_to_give_up_;
  int64_t pause_ms_ = 0;  // the last; 0 if a call has succeeded since
  int64_t again_ms_ = 0;  // the end of the pause
  Gate gate_;
};

}  // namespace kvtier
