// SPDX-License-Identifier: Apache-2.0
// How slow work leaves the event loop and comes back to it.
#pragma once

#include <functional>
#include <utility>
#include <vector>

namespace kvtier {

// The event loop as other threads see it.
class EventQueue {
 public:
  virtual ~EventQueue() = default;
  // Runs `event` on the loop's thread, after the caller returns, in the order posted by one thread.
  // Any thread may call.
  virtual void Post(std::function<void()> event) = 0;
  // Runs `work` when the event that calls this has ended and before the next begins, so that what
  // several callbacks of one event have brought is acted upon once and without a turn of the loop.
  // Outside of an event, and in such work itself, it is posted: work that asks for more of itself
  // does not keep other events waiting. Only the loop's thread may call.
  virtual void RunAfterEvent(std::function<void()> work) { Post(std::move(work)); }
};

// How an EventQueue keeps the promise of RunAfterEvent. The loop's thread only.
class AfterEvents {
 public:
  // Runs an event and then the work that was added meanwhile.
  template <typename Event>
  void Run(const Event& event) {
    in_event_ = true;
    event();
    in_event_ = false;
    std::vector<std::function<void()>> work;
    work.swap(work_);
    for (const auto& each : work) each();
  }
  // Takes `*work` if an event runs; otherwise the caller has to post it.
  [[nodiscard]] bool TryAdd(std::function<void()>* work) {
    if (in_event_) work_.push_back(std::move(*work));
    return in_event_;
  }

 private:
  bool in_event_ = false;
  std::vector<std::function<void()>> work_;
};

// A small pool of threads for work that computes (checksums, encryption).
class Executor {
 public:
  virtual ~Executor() = default;
  // Runs `work` on some thread, then `done` on the event loop. `work` must not touch loop-owned
  // state except buffers that the caller keeps alive and untouched until `done`. Any thread may
  // call.
  virtual void Run(std::function<void()> work, std::function<void()> done) = 0;
  // How much work runs at the same time.
  [[nodiscard]] virtual int threads() const { return 1; }
};

}  // namespace kvtier
