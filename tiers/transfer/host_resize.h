// SPDX-License-Identifier: Apache-2.0
// Changes the size of host memory while it serves. To shrink, the blocks beyond the new end move
// below it, to slots that the coldest blocks leave: so the coldest go, wherever they are. Memory
// beyond the end is given back once it is empty.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/gate.h"
#include "tiers/space/host_slots.h"
#include "tiers/state/cache_state.h"
#include "tiers/transfer/host_adoption.h"

namespace kvtier {

// Event loop only. The latest size wins. Blocks that are pinned move, too; a block that a copy or
// the disk uses is waited for, and so is room where all that could leave is pinned.
class HostResize {
 public:
  // All are borrowed.
  HostResize(CacheState* state, HostSlots* host, const HostAdoption* adoption)
      : state_(*state), host_(*host), adoption_(*adoption), wanted_bytes_(host->capacity_bytes()) {}

  // REQUIRES: what HostArena::Resize does of the size.
  void Begin(uint64_t bytes);
  // A bounded part of the work, if some is due; schedules the next. Begins when all blocks of an
  // earlier daemon have been looked at.
  void Pump();
  // Looks again for blocks that something used.
  void Tick() { due_ = true; }
  // No copy is under way.
  [[nodiscard]] bool Idle() const { return moves_.empty(); }

 private:
  struct Move {
    EntryIndex entry;
    uint64_t to = 0;
  };
  void GoOn() {
    due_ = true;
    state_.SchedulePart();
  }
  void Apply();
  // Chooses blocks of the slab at the address, and makes room for them. True if that went on.
  [[nodiscard]] bool Choose(uint64_t slab);
  void StartMoves();
  void EndMoves();
  void GiveBack();

  CacheState& state_;
  HostSlots& host_;
  const HostAdoption& adoption_;
  uint64_t wanted_bytes_;
  std::vector<Move> moves_;  // being copied
  bool due_ = false;
  bool giving_back_ = false;
  Gate gate_;
};

}  // namespace kvtier
