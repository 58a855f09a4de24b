// SPDX-License-Identifier: Apache-2.0
// Signs of life for a supervisor, given by the event loop's own progress.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "daemon/runtime/event_loop.h"

namespace kvtier {

// Calls `beat` at every interval in which the loop made a whole turn: a timer expired, and what was
// posted then, behind all that was queued, was run. A loop that hangs in an event, or is swamped by
// others, gives no beat. Event loop only.
class Heartbeat {
 public:
  // `loop` is borrowed and outlives the heartbeat.
  explicit Heartbeat(EventLoop* loop) : loop_(loop), timer_(loop) {}

  // The first beat comes within the first interval. At most once.
  void Start(int64_t interval_ms, std::function<void()> beat);

 private:
  void Wait();

  EventLoop* const loop_;
  int64_t interval_ms_ = 0;
  // Events that were posted hold it weakly.
  std::shared_ptr<std::function<void()>> beat_;
  Timer timer_;
};

}  // namespace kvtier
