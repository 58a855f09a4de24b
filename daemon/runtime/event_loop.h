// SPDX-License-Identifier: Apache-2.0
// The daemon's one event loop: everything that touches metadata runs on its thread.
//
// Built on Boost.Asio, which stays inside event_loop.cc.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "base/executor.h"
#include "tiers/types/meters.h"

namespace kvtier {

// From a millisecond, which no client notices, to the time after which a watchdog ends the process.
inline constexpr std::array<int64_t, 11> kLoopDelayBoundsUs = {
    1'000, 2'500, 5'000, 10'000, 25'000, 50'000, 100'000, 250'000, 1'000'000, 5'000'000, 15'000'000,
};
using LoopDelayHistogram = SecondsHistogram<kLoopDelayBoundsUs.size()>;

// Only Post, Stop and the constructor may be called from another thread than the loop's; everything
// else, Timer and FdWatch included, belongs to the thread that calls Run (or to the time before
// it).
//
// Events run one at a time and in the order in which they were posted. An event must not block:
// every client waits for it. Work that takes longer than a few milliseconds belongs to an Executor.
class EventLoop final : public EventQueue {
 public:
  EventLoop();
  // Events that are still queued are destroyed without being run.
  ~EventLoop() override;
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  void Post(std::function<void()> event) override;
  // Runs `work` when the event in progress has ended, before the next; outside of an event it is
  // posted. Its time counts to that of its event. Loop's thread only.
  void RunAfterEvent(std::function<void()> work) override;

  // Runs events until Stop, which may come from anywhere, also before.
  void Run();
  void Stop();
  // Runs events until `done` returns true; it is asked after each of them.
  void RunUntil(const std::function<bool()>& done);

  // Calls `handler` for each arrival of one of `signals`, whose default effect is thereby off. At
  // most once. The handler runs as an ordinary event, so that it may do what a signal handler must
  // not.
  void OnSignals(const std::vector<int>& signals, std::function<void(int)> handler);

  // How long each event took: no other client is served meanwhile.
  [[nodiscard]] const LoopDelayHistogram& event_times() const;

  struct Impl;
  // For Timer and FdWatch.
  [[nodiscard]] Impl& impl() { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

// Calls back once per Start, as an event of the loop. Never calls back after Cancel, a new Start or
// its destruction, even if it has expired already and the event is queued. `loop` must outlive it.
// A callback may destroy or restart its timer. Loop's thread only.
class Timer {
 public:
  explicit Timer(EventLoop* loop);
  ~Timer();
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

  void Start(int64_t delay_ms, std::function<void()> expired);
  void StartUs(int64_t delay_us, std::function<void()> expired);
  void Cancel();
  // True from Start until the callback begins or Cancel is called.
  [[nodiscard]] bool running() const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

// Waits for a descriptor, which it does not own and which must stay open until after the watch is
// destroyed. Each wait calls back once, from a later event; a second wait of the same kind while
// one is under way is an error of the programmer and aborts. Never calls back after its
// destruction. Loop's thread only.
class FdWatch {
 public:
  FdWatch(EventLoop* loop, int fd);
  ~FdWatch();
  FdWatch(const FdWatch&) = delete;
  FdWatch& operator=(const FdWatch&) = delete;

  // Readable also means: end of stream, or an error to be fetched by reading.
  void WaitReadable(std::function<void()> ready) { Wait(Event::kReadable, std::move(ready)); }
  void WaitWritable(std::function<void()> ready) { Wait(Event::kWritable, std::move(ready)); }
  // The other end is gone, whatever there may still be to read.
  void WaitHangUp(std::function<void()> ready) { Wait(Event::kHangUp, std::move(ready)); }
  [[nodiscard]] bool waiting_readable() const { return Waiting(Event::kReadable); }
  [[nodiscard]] bool waiting_writable() const { return Waiting(Event::kWritable); }
  [[nodiscard]] bool waiting_hang_up() const { return Waiting(Event::kHangUp); }

 private:
  enum class Event : uint8_t { kReadable, kWritable, kHangUp };
  struct Impl;
  void Wait(Event event, std::function<void()> ready);
  [[nodiscard]] bool Waiting(Event event) const;

  std::shared_ptr<Impl> impl_;
};

}  // namespace kvtier
