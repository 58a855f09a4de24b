// SPDX-License-Identifier: Apache-2.0
// Pinning makes host memory fast to copy to and from a device: the device page-locks it and knows
// where it is. Here are the interface, the record of pinned memory, and the gate that lets urgent
// calls of the driver go before the next piece is pinned.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>

#include "base/result.h"

namespace kvtier {

// Any thread; calls may take long (some 30 ms per GiB). Copies work without pinning, slowly.
class HostPinner {
 public:
  virtual ~HostPinner() = default;
  // `memory` is touched already and stays mapped until it is unpinned. A copy that crosses from one
  // pinned piece into another is slow. Errors: kResourceExhausted, kIoError.
  [[nodiscard]] virtual Status Pin(std::span<std::byte> memory) = 0;
  // Takes exactly what Pin took. REQUIRES: no copy to or from it is under way.
  virtual void Unpin(std::span<std::byte> memory) = 0;
  // Returns when no device is being opened and no pool made, after a second at the latest. Threads
  // that make the kernel allocate memory call it between two steps: they hold the lock on the
  // process's mappings, which a driver that makes a context takes hundreds of times.
  virtual void GiveWay() {}
};

// The host memory that is pinned. Thread-safe. Ranges do not overlap.
class PinnedRanges {
 public:
  void Add(std::span<std::byte> range);
  // Takes exactly what Add took; false if it is not there.
  bool Remove(std::span<std::byte> range);
  // Whether one range holds all of [data, data + bytes).
  [[nodiscard]] bool Holds(const std::byte* data, uint64_t bytes) const;

 private:
  mutable std::mutex mutex_;
  std::map<const std::byte*, uint64_t> bytes_by_start_;
};

// Lets calls of the driver that a client waits for go before the pinning of memory. Both need the
// driver's locks, and a thread that pins one piece after the other would keep them for seconds.
// Thread-safe.
class PinGate {
 public:
  // How long a piece waits at most: clients that always wait for something must not keep the host
  // tier from growing.
  static constexpr std::chrono::milliseconds kLongestWait{1000};

  // While one lives, no further piece is pinned, for as long as `kLongestWait`.
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

  // Returns when no Urgent lives, and true; false if that takes longer than `at_most`.
  bool Wait(std::chrono::milliseconds at_most = kLongestWait) {
    std::unique_lock lock(mutex_);
    return passed_.wait_for(lock, at_most, [this] { return urgent_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable passed_;
  int urgent_ = 0;  // guarded by mutex_
};

}  // namespace kvtier
