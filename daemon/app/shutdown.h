// SPDX-License-Identifier: Apache-2.0
// How the daemon ends: clients are told to leave, what should survive goes to disk, and I/O that is
// under way ends. Each step has a deadline.
#pragma once

#include <cstdint>
#include <functional>

#include "base/clock.h"
#include "daemon/config/config.h"
#include "daemon/runtime/event_loop.h"
#include "daemon/runtime/log.h"
#include "daemon/runtime/supervision.h"
#include "daemon/session/server.h"
#include "tiers/cache.h"

namespace kvtier {

// Event loop only. The steps: sessions end, so that no new blocks come; the
// cache writes what should survive; I/O that is under way ends. A step that does not end in time is
// given up and the next begins, so that the whole has an upper bound, which systemd is told.
class Shutdown {
 public:
  // Everything is borrowed and outlives it.
  struct Environment {
    const Config* config = nullptr;
    EventLoop* loop = nullptr;
    const Clock* clock = nullptr;
    Log* log = nullptr;
    ServiceManager* manager = nullptr;
    Server* server = nullptr;
    Cache* cache = nullptr;
    std::function<bool()> idle;   // nothing is under way that the daemon's destructor waits for
    bool pools_are_kept = false;  // so that sessions can be resumed
  };
  explicit Shutdown(const Environment& environment) : env_(environment), timer_(environment.loop) {}

  // `finished` is called once, at the latest a few seconds after the deadline. Calls after the
  // first do nothing.
  void Begin(std::function<void()> finished);

 private:
  // Each step polls until its end or its time, then goes on with the next.
  void WaitForSessions();
  void BeginDrain();
  void WaitForDrain();
  void ReportDrain(uint64_t left);
  void WaitForIdle();
  void ReportOutcome() const;
  [[nodiscard]] int64_t ElapsedMs() const { return env_.clock->MonotonicMs() - step_begun_ms_; }
  void BeginStep() { step_begun_ms_ = env_.clock->MonotonicMs(); }

  const Environment env_;
  std::function<void()> finished_;
  bool begun_ = false;
  bool drained_ = false;
  int64_t step_begun_ms_ = 0;
  int64_t reported_ms_ = 0;
  int64_t drained_ms_ = 0;
  // A drain was begun, and its outcome is to be reported.
  bool draining_ = false;
  uint64_t drain_total_ = 0;
  // The count of blocks that were given up before the drain: those are not its failures.
  uint64_t given_up_before_ = 0;
  Timer timer_;
};

}  // namespace kvtier
