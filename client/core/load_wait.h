// SPDX-License-Identifier: Apache-2.0
// Waiting for a load: first on its counter, which is ahead of the daemon's events, then on these.
#pragma once

#include <cstdint>

#include "base/ids.h"
#include "base/result.h"
#include "client/core/deadline.h"
#include "client/core/load_table.h"
#include "client/core/session.h"

namespace kvtier::client {

// What somebody waits for: the first so many hits, or so many layers of all hits.
struct LoadGoal {
  uint32_t hits = 0;
  uint32_t layers = 0;  // if not 0, it counts alone

  [[nodiscard]] bool ReachedBy(const LoadState& state) const;
};

// Waits until the goal is reached or the load has finished, and says how far it is. A time-out is
// not an error: neither holds then. Errors: kNotFound "unknown_load", kUnavailable.
[[nodiscard]] Result<LoadState> WaitForLoad(Session* session, LoadId load, const LoadGoal& goal,
                                            Deadline deadline);
// How far it was when something was last heard of it. Errors: kNotFound "unknown_load".
[[nodiscard]] Result<LoadState> FindLoad(Session* session, LoadId load);

}  // namespace kvtier::client
