// SPDX-License-Identifier: Apache-2.0
// The objects of blocks evicted by hand, which the cold store is to delete.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/gate.h"
#include "base/result.h"
#include "tiers/space/cold_choice.h"
#include "tiers/state/cache_state.h"

namespace kvtier {

// Event loop only.
class ColdDeletions {
 public:
  // Both are borrowed.
  ColdDeletions(CacheState* state, const ColdChoice* choice) : state_(*state), choice_(*choice) {}

  // Deletes the block's object, also one that is on its way to the store, and asks again with ticks
  // until the store has done it. Another host may write it again.
  void Forget(const BlockKey& key);
  // Calls `done` when all of these are deleted: within this call if there are none. With an error,
  // kIoError "cold_object_kept", if the store refuses.
  void WhenDone(std::function<void(Status)> done);
  // A write of the block has ended. One that was given up may yet come to its end.
  void NoteWritten(const BlockKey& key, const Status& status);
  void Tick();

 private:
  // In one call after the other, since an operator may evict all of a model.
  void Begin();
  void OnDeleted(const std::vector<BlockKey>& keys, const Status& status);
  void Tell(const Status& status);

  CacheState& state_;
  const ColdChoice& choice_;
  bool is_deleting_ = false;
  int64_t again_ms_ = 0;
  std::vector<std::function<void(Status)>> waiters_;
  Gate gate_;
};

}  // namespace kvtier
