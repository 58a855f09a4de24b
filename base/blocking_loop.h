// SPDX-License-Identifier: Apache-2.0
// An event loop for programs whose waiting thread runs the events: they queue up from any thread,
// and run on the one that asks.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <utility>

#include "base/executor.h"

namespace kvtier {

class BlockingLoop final : public EventQueue {
 public:
  void Post(std::function<void()> event) override {
    {
      const std::lock_guard lock(mutex_);
      events_.push_back(std::move(event));
    }
    posted_.notify_one();
  }

  // Runs events, waiting for more, until `done()` holds.
  void RunUntil(const std::function<bool()>& done) {
    while (!done()) {
      std::unique_lock lock(mutex_);
      posted_.wait(lock, [this] { return !events_.empty(); });
      RunFirst(std::move(lock));
    }
  }

  // Runs what has been posted, without waiting. Returns how many events that were.
  size_t RunPosted() {
    for (size_t events = 0;; ++events) {
      std::unique_lock lock(mutex_);
      if (events_.empty()) return events;
      RunFirst(std::move(lock));
    }
  }

 private:
  void RunFirst(std::unique_lock<std::mutex> lock) {
    const std::function<void()> event = std::move(events_.front());
    events_.pop_front();
    lock.unlock();
    event();
  }

  std::mutex mutex_;
  std::condition_variable posted_;
  std::deque<std::function<void()>> events_;
};

}  // namespace kvtier
