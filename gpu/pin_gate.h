// SPDX-License-Identifier: Apache-2.0
// Lets what somebody waits for go before the pinning of memory: both need the driver's locks, and
// whoever pins one piece after the other would leave them to nobody else for seconds.
#pragma once

#include <condition_variable>
#include <mutex>

namespace kvtier {

// Thread-safe.
class PinGate {
 public:
  // While one lives, no further piece is pinned.
  class Urgent {
   public:
    explicit Urgent(PinGate* gate) : gate_(*gate) {
      const std::lock_guard lock(gate_.mutex_);
      ++gate_.urgent_;
    }
    ~Urgent() {
      {
        const std::lock_guard lock(gate_.mutex_);
        --gate_.urgent_;
      }
      gate_.passed_.notify_all();
    }
    Urgent(const Urgent&) = delete;
    Urgent& operator=(const Urgent&) = delete;

   private:
    PinGate& gate_;
  };

  // Returns when nobody is urgent.
  void Wait() {
    std::unique_lock lock(mutex_);
    passed_.wait(lock, [this] { return urgent_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable passed_;
  int urgent_ = 0;  // guarded by mutex_
};

}  // namespace kvtier
