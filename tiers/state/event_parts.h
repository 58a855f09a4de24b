// SPDX-License-Identifier: Apache-2.0
// Work that is too much for one event of the loop, in parts. Event loop only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "base/loop_task.h"
#include "tiers/blocks/blocks.h"
#include "tiers/types/cache_options.h"

namespace kvtier {

// Counts the events in which every part of the cache goes on, and gives each kind of work so many
// steps of each. Borrows all that it is given.
class EventParts {
 public:
  EventParts(const CacheOptions* options, LoopTask* pump, LoopTask* next_part)
      : options_(*options), pump_(*pump), next_part_(*next_part) {}

  // Cache::Impl::Pump begins.
  void Begin() { ++pumps_; }
  [[nodiscard]] uint64_t pumps() const { return pumps_; }
  // The steps that are left of a kind of work in this event. Work that finds none left has the
  // others follow in an event of their own.
  [[nodiscard]] uint64_t& LeftOf(EventPart* part) {
    if (std::exchange(part->pump, pumps_) != pumps_) part->left = options_.search_part_blocks;
    return part->left;
  }
  // Lets a line take a step, if any are left: `step()` tells how far it got on. True if it did.
  template <typename Step>
  bool TakeStep(EventPart* part, const Step& step) {
    if (LeftOf(part) == 0) {
      SchedulePart();
      return false;
    }
    const uint64_t steps = step();
    part->left -= std::min(part->left, steps);
    return steps > 0;
  }
  // Every part goes on as far as it can, once, at the end of this event.
  void SchedulePump() { pump_.RunAfterEvent(); }
  // The next part follows in an event of its own.
  void SchedulePart() { next_part_.RunInOwnEvent(); }
  [[nodiscard]] bool scheduled() const { return pump_.scheduled() || next_part_.scheduled(); }

 private:
  const CacheOptions& options_;
  LoopTask& pump_;
  LoopTask& next_part_;
  uint64_t pumps_ = 1;  // so far and with this one
};

}  // namespace kvtier
