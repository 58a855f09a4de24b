// SPDX-License-Identifier: Apache-2.0
// The threads that carry out copies, by priority and then in order of arrival.
#pragma once

#include <array>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/executor.h"
#include "gpu/counting_order.h"
#include "gpu/device.h"

namespace kvtier {

// A piece is what a thread takes at a time: small enough that a demand request does not wait long
// behind a background one and that one request uses all threads.
inline constexpr uint64_t kCopyPieceBytes = 1024 * 1024;

class CopyThreads {
 public:
  // `loop` must outlive this object.
  CopyThreads(int threads, EventQueue* loop);
  // Finishes the pieces being copied, fails the rest; all `done`s are posted on return.
  ~CopyThreads();
  CopyThreads(const CopyThreads&) = delete;
  CopyThreads& operator=(const CopyThreads&) = delete;

  // `pool` is the mapping of `request.pool`, in whose bounds all copies lie.
  void Start(CopyRequest request, std::byte* pool);

 private:
  struct Job;
  struct Piece;
  using Queue = std::deque<std::shared_ptr<Job>>;

  void Work();
  // The next piece of the most urgent job. REQUIRES: mutex_ held, some queue not empty.
  Piece TakePiece();
  // The first queue with work, or null. REQUIRES: mutex_ held.
  Queue* MostUrgent();
  // REQUIRES: mutex_ held.
  void Count(const Job& job, bool succeeded);
  void Finish(Job& job, Status status);

  EventQueue* const loop_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::array<Queue, kCopyPriorityCount> queues_;
  CountingOrder counting_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace kvtier
