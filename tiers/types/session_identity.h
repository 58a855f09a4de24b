// SPDX-License-Identifier: Apache-2.0
// A process and its session as the next daemon can know them again.
#pragma once

#include <cstdint>

#include "base/digest.h"
#include "base/ids.h"

namespace kvtier {

// The number alone may be another process's by then.
struct ProcessIdentity {
  int32_t pid = 0;  // 0: it has no number here
  // Tells it from all that have the number later: its own number among pidfds, where the kernel has
  // such (Linux 6.9), or its start in ticks since the boot. 0: not known.
  uint64_t birth = 0;
  friend bool operator==(const ProcessIdentity&, const ProcessIdentity&) = default;
};

// A random secret that only the session's own client and the daemon know.
using SessionSecret = Digest128;

struct SessionIdentity {
  ProcessIdentity process;
  uint32_t uid = 0;
  SessionId session;     // in the daemon's life in which it was opened
  SessionSecret secret;  // zeros: the session cannot be resumed
  friend bool operator==(const SessionIdentity&, const SessionIdentity&) = default;
};

}  // namespace kvtier
