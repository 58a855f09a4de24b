// SPDX-License-Identifier: Apache-2.0
// Makes the kernel allocate memory, from front to back, by several threads.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

namespace kvtier {

// Starting a thread takes a lock that those at work hold most of the time. So none begins before
// all have been started, and they live as long as there is memory to touch. Public calls by one
// thread.
class MemoryToucher {
 public:
  // Starts at once. `memory` is page-aligned, stays mapped, and no other thread writes to parts
  // that have not been waited for. Each thread calls `give_way` before each step; it may be empty.
  MemoryToucher(std::span<std::byte> memory, int threads, std::function<void()> give_way = {});
  // Stops after the steps under way.
  ~MemoryToucher();
  MemoryToucher(const MemoryToucher&) = delete;
  MemoryToucher& operator=(const MemoryToucher&) = delete;

  // Waits until the first `bytes` are there. 0, or the errno with which the kernel refused them;
  // ECANCELED after Stop.
  [[nodiscard]] int WaitFor(uint64_t bytes);
  // Any thread. Nothing new is begun.
  void Stop();

 private:
  void Work();
  // REQUIRES: mutex_ held.
  void Finish(uint64_t step, int outcome);

  const std::span<std::byte> memory_;
  const std::function<void()> give_way_;
  std::atomic<bool> stopping_ = false;
  std::atomic<uint64_t> next_step_ = 0;

  std::mutex mutex_;
  std::condition_variable progressed_;
  bool begun_ = false;  // guarded by mutex_
  // Guarded by mutex_: which steps are done, how many from the front on, and the first failure.
  std::vector<bool> done_;
  uint64_t done_in_front_ = 0;
  int failure_ = 0;
  std::vector<std::thread> threads_;
};

}  // namespace kvtier
