// SPDX-License-Identifier: Apache-2.0
// Ends the keys of an encrypted disk tier whose blocks are all gone: expired, evicted, or of a
// tenant that has none any more. The remains of their slots, there or where the drive has put them,
// cannot be read from then on.
#pragma once

#include <cstdint>
#include <string>

#include "tiers/state/cache_state.h"
#include "tiers/storage/key_ring.h"

namespace kvtier {

// Event loop only. Does nothing without keys.
class KeyExpiry {
 public:
  explicit KeyExpiry(CacheState* state) : state_(*state) {}

  // The tenant's keys of that time, in seconds since 1970, stay for as long as this lives: blocks
  // that no entry stands for were written then.
  void Keep(const std::string& tenant, uint32_t written_s);
  // Looks at the next part of the directory; at its end, keys of hours of which their tenant has no
  // block are wiped, unless one was written with meanwhile. Then waits for a minute.
  void Tick();

 private:
  void Begin();
  void NoteClock();
  void End();

  CacheState& state_;
  bool under_way_ = false;
  int64_t next_pass_ms_ = 0;
  uint64_t next_row_ = 0;
  HoursOfTenants kept_;
  HoursOfTenants in_use_;
  // The least and the most by which the wall clock was ever set since the start: a slot's key is of
  // the hour that the wall clock told when the slot was written.
  int64_t least_step_s_ = 0;
  int64_t most_step_s_ = 0;
};

}  // namespace kvtier
