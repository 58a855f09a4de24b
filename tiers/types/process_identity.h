// SPDX-License-Identifier: Apache-2.0
// A process as another daemon's life can find it again.
#pragma once

#include <cstdint>

namespace kvtier {

// The number alone may be another process's by then.
struct ProcessIdentity {
  int32_t pid = 0;          // 0: it has no number here
  uint64_t start_time = 0;  // in the kernel's ticks since the boot; 0: not known
  friend bool operator==(const ProcessIdentity&, const ProcessIdentity&) = default;
};

}  // namespace kvtier
