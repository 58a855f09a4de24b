// SPDX-License-Identifier: Apache-2.0
// A process as another daemon's life can find it again.
#pragma once

#include <cstdint>

namespace kvtier {

// The number alone may be another process's by then.
struct ProcessIdentity {
  int32_t pid = 0;  // 0: it has no number here
  // Tells it from all that have the number later: its own number among pidfds, where the kernel has
  // such (Linux 6.9), or its start in ticks since the boot. 0: not known.
  uint64_t birth = 0;
  friend bool operator==(const ProcessIdentity&, const ProcessIdentity&) = default;
};

}  // namespace kvtier
