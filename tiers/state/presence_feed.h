// SPDX-License-Identifier: Apache-2.0
// Tells a BlockEventSink which blocks the tiers hold, by comparing its earlier messages with the
// present state.
//
// Transitions only mark a block; it is looked at when the event has ended. So a block that passes
// through a tier within one event is not told, and the messages and the state cannot drift apart.
#pragma once

#include <cstdint>
#include <deque>

#include "base/gate.h"
#include "tiers/policy/eviction_policy.h"
#include "tiers/state/block_event_sink.h"

namespace kvtier {

class CacheState;

// Part of CacheState. Event loop only.
class PresenceFeed {
 public:
  static constexpr uint64_t kEnd = UINT64_MAX;

  // `state` is borrowed and outlives the feed.
  explicit PresenceFeed(CacheState* state) : state_(*state) {}

  // The block may have come to a tier or left one. REQUIRES: there is a sink, as for
  // TellAgain and Forget.
  void Note(EntryIndex entry);
  // The block's token ids are known now: where it was told of, it is told of once more.
  void TellAgain(EntryIndex entry);
  // The entry's row becomes another block's. REQUIRES: no tier holds the block.
  void Forget(EntryIndex entry);

  // Calls `sink->BlockStored` for each tier of each block as it was last told, for at most `rows`
  // rows of the directory from `cursor` on (0 at first). Returns the cursor to go on from, or kEnd.
  // A block that a tier holds from the first step to the last is told exactly once.
  uint64_t Replay(uint64_t cursor, uint32_t rows, BlockEventSink* sink) const;

  // Replay ends behind so many rows, and takes so many steps at most, if all stays as it is.
  [[nodiscard]] uint64_t rows() const { return told_end_; }
  [[nodiscard]] uint64_t ReplaySteps(uint32_t rows) const;

  // The sink knows, or is about to learn, what holds of the block. For tests.
  [[nodiscard]] bool Agrees(EntryIndex entry) const;

 private:
  // Bits of `told_`, above those of the tiers.
  static constexpr uint8_t kMarked = 1 << 7;

  // The sink's last message about the row; with kMarked, if it is to be looked at.
  [[nodiscard]] uint8_t ToldOf(EntryIndex entry) const {
    return entry.value < told_end_ ? told_[entry.value] : uint8_t{0};
  }
  // One bit per tier.
  [[nodiscard]] uint8_t TiersOf(EntryIndex entry) const;
  void Schedule();
  void TellMarked();
  void Tell(EntryIndex entry);
  [[nodiscard]] StoredBlock Describe(EntryIndex entry, Tier tier) const;

  CacheState& state_;
  PagedArray<uint8_t> told_;  // by the row of the directory
  uint32_t told_end_ = 0;     // rows from here on have never been marked
  std::deque<EntryIndex> marked_;
  bool scheduled_ = false;
  bool goes_on_ = false;  // more were marked than one event tells
  // Last, so that posted events do not outlive the members that they use.
  Gate gate_;
};

}  // namespace kvtier
