// SPDX-License-Identifier: Apache-2.0
// Plays a trace as many clients would.
#pragma once

#include <cstdint>
#include <functional>

#include "base/result.h"
#include "tools/replay/replay_client.h"
#include "tools/replay/report.h"
#include "tools/replay/trace.h"

namespace kvtier {

struct ReplayOptions {
  ReplayTarget target;
  uint32_t clients = 1;
  // Requests arrive `speed` times as fast as in the trace; 0: each follows at once on the one
  // before.
  double speed = 0;
  // Called with the requests that all clients have played so far, and with all that there are: ten
  // times a second at most, and at the end. By a thread of any client. May be empty.
  std::function<void(uint64_t played, uint64_t requests)> on_progress;
};

// Streams are dealt out to the clients in turn; a client plays the requests of its streams in order
// of arrival. Errors: those of connecting, of any client; kInternal when a client process died.
// REQUIRES (with `processes`): the calling process has one thread.
[[nodiscard]] Result<ReplayReport> Replay(const Trace& trace, const ReplayOptions& options);

}  // namespace kvtier
