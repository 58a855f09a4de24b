// SPDX-License-Identifier: Apache-2.0
// Memory shared with one client in which loads are counted, so that the client sees how far they
// are without asking, on the host or on a stream of its own.
//
// A page is a sealed memfd of slots 64 bytes apart, each a u32 that grows modulo 2^32. A load that
// is given a slot counts from a base beyond all that the slot's earlier loads could reach: a client
// that still waits for one of their values sees it passed. Slots of the first half are given by the
// daemon. Slots of the second half are named by the client with the request that they count, so
// that it can look at them without an answer; the base is then the client's as well. The client can
// write to the page and so mislead itself; this side reads it only for claims of the client, or of
// its GPU, about its own blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/posix.h"
#include "base/result.h"

namespace kvtier {

inline constexpr uint32_t kCounterPageBytes = 32 * 1024;
inline constexpr uint32_t kCounterSlotBytes = 64;  // a cache line: its writer may be a GPU

class CounterPage;

// The counter of one load, from 0 to `steps`. Thread-safe. The slot is free for another load when
// the last reference goes.
class StepCounter {
 public:
  StepCounter(std::shared_ptr<CounterPage> page, uint32_t slot, uint32_t base, uint32_t steps);
  ~StepCounter();
  StepCounter(const StepCounter&) = delete;
  StepCounter& operator=(const StepCounter&) = delete;

  [[nodiscard]] const std::shared_ptr<CounterPage>& page() const { return page_; }
  [[nodiscard]] uint32_t offset() const { return slot_ * kCounterSlotBytes; }  // in the page
  [[nodiscard]] uint32_t base() const { return base_; }
  [[nodiscard]] uint32_t steps() const {
    const std::lock_guard lock(mutex_);
    return steps_;
  }
  // The load has fewer steps than was thought when the counter was opened. REQUIRES: no client
  // knows the counter yet, and no more than `steps` have been counted.
  void Shorten(uint32_t steps);
  // The page's value when `done` steps are done.
  [[nodiscard]] uint32_t ValueOf(uint32_t done) const { return base_ + done; }

  // Counts, unless as much was counted before, devices were stopped or it has ended. A client that
  // sees the value also sees all earlier writes of this thread.
  void Store(uint32_t done);
  // The same for a device that will write the value itself; false if there is nothing to write. If
  // in the end it cannot, Publish does it.
  [[nodiscard]] bool Claim(uint32_t done);
  void Publish(uint32_t done);
  // A copy failed: devices count no further. Only End is told after that.
  void Stop();
  // Nothing more will be done. The value passes all of the load's steps, so that no client waits
  // for ever; a value beyond `steps` says no more than that.
  void End();

 private:
  const std::shared_ptr<CounterPage> page_;
  const uint32_t slot_;
  const uint32_t base_;
  mutable std::mutex mutex_;
  // Guarded by mutex_.
  uint32_t steps_;
  uint32_t counted_ = 0;    // claimed at most
  uint32_t published_ = 0;  // written here at most
  bool stopped_ = false;
  bool ended_ = false;
};

// Thread-safe.
class CounterPage : public std::enable_shared_from_this<CounterPage> {
 public:
  // Errors: kResourceExhausted with the errno's name.
  [[nodiscard]] static Result<std::shared_ptr<CounterPage>> Create();
  CounterPage(UniqueFd fd, std::span<std::byte> memory);
  ~CounterPage();
  CounterPage(const CounterPage&) = delete;
  CounterPage& operator=(const CounterPage&) = delete;

  // For the client, and for devices, which map it for themselves. Owned by the page.
  [[nodiscard]] int fd() const { return fd_.get(); }
  [[nodiscard]] std::span<std::byte> memory() const { return memory_; }

  // A counter that stands at 0; null if all slots of the daemon's half are in use.
  [[nodiscard]] std::shared_ptr<StepCounter> Open(uint32_t steps);
  // Whether a client may name the slot at this offset.
  [[nodiscard]] bool CanBeNamed(uint32_t offset) const;
  // The counter at a place and from a base that the client has named; null if an earlier one is
  // still in use there: a device may be about to write to it. REQUIRES: CanBeNamed(offset).
  [[nodiscard]] std::shared_ptr<StepCounter> OpenNamed(uint32_t offset, uint32_t base,
                                                       uint32_t steps);

 private:
  friend class StepCounter;
  [[nodiscard]] uint32_t first_named() const {
    return static_cast<uint32_t>(memory_.size() / kCounterSlotBytes / 2);
  }
  // Mapped memory, in which the kernel's zeros are the words of all slots.
  [[nodiscard]] uint32_t& WordOf(uint32_t slot) const {
    return *reinterpret_cast<uint32_t*>(memory_.data() + size_t{slot} * kCounterSlotBytes);
  }
  void Write(uint32_t slot, uint32_t value);
  void GiveBack(uint32_t slot);

  const UniqueFd fd_;
  const std::span<std::byte> memory_;
  std::mutex mutex_;
  // Guarded by mutex_.
  std::vector<uint32_t> next_base_;   // of the daemon's half, by slot
  std::vector<uint32_t> free_slots_;  // of the daemon's half
  std::vector<bool> named_;           // of the client's half: slots in use
};

// The count that a copy request adds when it has landed.
struct CountedStep {
  std::shared_ptr<StepCounter> counter;
  uint32_t done = 0;
};

// For devices whose copies land in any order: sets counters in the order of the requests. Not
// thread-safe.
class CountingOrder {
 public:
  // Numbers the request behind all earlier ones.
  [[nodiscard]] uint64_t Add(std::vector<CountedStep> counted);
  // Counts what this request and those before it count, as far as they have all landed. One that
  // failed stops its counters.
  void Landed(uint64_t request, bool succeeded);

 private:
  struct Request {
    std::vector<CountedStep> counted;
    bool landed = false;
    bool succeeded = false;
  };

  uint64_t first_ = 0;  // the number of the front
  std::deque<Request> requests_;
};

}  // namespace kvtier
