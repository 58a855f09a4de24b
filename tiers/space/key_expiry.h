// SPDX-License-Identifier: Apache-2.0
// Ends the keys of an encrypted disk tier whose blocks are all gone: expired, evicted, or of a
// tenant that has none any more. The remains of their slots, there or where the drive has put them,
// cannot be read from then on.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "tiers/state/cache_state.h"

namespace kvtier {

// Event loop only. Does nothing without keys.
class KeyExpiry {
 public:
  explicit KeyExpiry(CacheState* state) : state_(*state) {}

  // Looks at the next part of the directory; at its end, keys of hours before the oldest block of
  // their tenant are wiped, unless one was written with meanwhile. Then waits for a minute.
  void Tick();

 private:
  void Begin();
  void End();

  CacheState& state_;
  bool under_way_ = false;
  int64_t next_pass_ms_ = 0;
  uint64_t next_row_ = 0;
  std::map<std::string, uint32_t> oldest_hours_;  // by tenant
};

}  // namespace kvtier
