// SPDX-License-Identifier: Apache-2.0
// How the daemon's health is watched from outside: what systemd is told, the sign of life that only
// a loop that makes progress gives, and how late that loop is.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

#include "base/gate.h"
#include "daemon/runtime/event_loop.h"

namespace kvtier {

// Event loop's thread, or the time before it runs. Calls do not block: systemd's socket is a
// datagram socket, and a message it cannot take is lost. Without systemd (no NOTIFY_SOCKET) every
// call does nothing, so that callers need not ask.
class ServiceManager {
 public:
  // The start, or what comes before the stop, goes on for up to `ms` from now: systemd's time-out
  // is put off so far.
  void Extend(const std::string& status, int64_t ms);
  // The service is up, or up again after a reload: units ordered after it may start.
  void Ready(const std::string& status);
  // A reload has begun. Ready must follow, whatever came of it.
  void Reloading();
  // The end has begun and may take `ms` from now; repeated calls put the stop time-out off.
  void Stopping(const std::string& status, int64_t ms);
  // A line for `systemctl status`; sent only when it differs from the last.
  void Status(const std::string& status);
  // The watchdog's sign of life.
  void Alive();

  // A service manager started this process.
  [[nodiscard]] static bool IsPresent();
  // Within which time systemd wants signs of life (WatchdogSec=), in ms; 0 means that it does not.
  [[nodiscard]] static int64_t WatchdogMs();

 private:
  std::string last_status_;
};

// Calls `beat` at every interval in which the loop made a whole turn: a timer expired, and the
// event posted then, behind all that was queued, was run. A loop that hangs in an event, or is
// swamped by others, gives no beat. Event loop only.
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
  std::function<void()> beat_;
  Timer timer_;
  Gate gate_;
};

// Reads the monotonic clock itself: the daemon's coarse clock is too coarse for this.
class LoopLag {
 public:
  LoopLag();

  // A timer of `interval_ms` that was started at the last beat has expired: its lateness is how
  // long the loop was busy with something else. Event loop only.
  void ObserveTick(int64_t interval_ms);
  // Since the last beat. Any thread.
  [[nodiscard]] double SilentSeconds() const;
  // Event loop only.
  [[nodiscard]] const LoopDelayHistogram& delays() const { return delays_; }

 private:
  std::atomic<int64_t> last_us_;
  LoopDelayHistogram delays_{&kLoopDelayBoundsUs};
};

}  // namespace kvtier
