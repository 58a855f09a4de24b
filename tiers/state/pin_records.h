// SPDX-License-Identifier: Apache-2.0
// Pins as the index and the tables of kept memory have them, for a later daemon: those of more than
// a minute. No session holds them there.
#pragma once

#include <cstdint>

#include "tiers/types/block_key.h"

namespace kvtier {

class CacheState;

// Part of CacheState. Event loop only.
class PinRecords {
 public:
  // `state` is borrowed and outlives this.
  explicit PinRecords(CacheState* state) : state_(*state) {}

  // The end of the block's pins, in Unix time; 0 if a restart may forget them. Rounded up to ten
  // minutes, so that a pin that is prolonged is seldom written anew.
  [[nodiscard]] uint32_t RecordedS(EntryIndex index) const;
  // The block's pins have changed since that was recorded: tables and index learn of it.
  void Note(EntryIndex index, uint32_t recorded_before_s);
  // As the index has it of an earlier daemon, unless more than pin_fraction would be pinned then.
  void Restore(EntryIndex index, uint32_t recorded_s);
  // The same for what a table has, of which the index may not know.
  void Adopt(EntryIndex index, uint32_t recorded_s);
  [[nodiscard]] bool Lasts(uint32_t recorded_s) const;

 private:
  CacheState& state_;
};

}  // namespace kvtier
