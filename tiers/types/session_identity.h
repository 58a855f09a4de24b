// SPDX-License-Identifier: Apache-2.0
// A session as the next daemon can know it again.
#pragma once

#include <cstdint>

#include "base/digest.h"
#include "base/ids.h"
#include "tiers/types/process_identity.h"

namespace kvtier {

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
