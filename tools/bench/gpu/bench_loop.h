// An event loop for measurements of a device alone: the waiting thread runs what has been posted.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <utility>

#include "base/executor.h"

namespace kvtier {

class BenchLoop final : public EventQueue {
 public:
  void Post(std::function<void()> event) override {
    {
      const std::lock_guard lock(mutex_);
      events_.push_back(std::move(event));
    }
    posted_.notify_one();
  }

  void RunUntil(const std::function<bool()>& done) {
    while (!done()) {
      std::unique_lock lock(mutex_);
      posted_.wait(lock, [this] { return !events_.empty(); });
      const std::function<void()> event = std::move(events_.front());
      events_.pop_front();
      lock.unlock();
      event();
    }
  }

 private:
  std::mutex mutex_;
  std::condition_variable posted_;
  std::deque<std::function<void()>> events_;
};

}  // namespace kvtier
