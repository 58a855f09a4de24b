// SPDX-License-Identifier: Apache-2.0
// The way of ended requests from an I/O engine to the event loop: an executor checks the bytes read
// first, and the loop then hears of many requests by one event. Internal to tiers/storage.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "base/executor.h"
#include "tiers/storage/block_file.h"

namespace kvtier {

struct IoCompletion {
  IoDone done;
  Status status;
  // Runs before `done`, and only if the status is good; empty if there is nothing to check.
  IoCheck check = nullptr;
  uint64_t bytes = 0;
};

// Batches grow with the load: while no executor's thread is free, or the loop is busy, what ends
// waits together. A request costs no task and no event of its own.
class IoCompletionQueue {
 public:
  // `loop` outlives this object and its events. `executor` outlives this object; without one, the
  // thread that delivers runs the checks.
  IoCompletionQueue(EventQueue* loop, Executor* executor);
  // Returns when all checks have been run and their events posted. The events stay valid.
  ~IoCompletionQueue();
  IoCompletionQueue(const IoCompletionQueue&) = delete;
  IoCompletionQueue& operator=(const IoCompletionQueue&) = delete;

  // Any thread, several at a time.
  void Deliver(std::vector<IoCompletion> batch);

 private:
  // Requests that have ended and are not known to the loop. Events hold it, so that they may
  // outlive the queue.
  struct Gathered {
    std::mutex mutex;
    std::vector<IoCompletion> completions;
  };

  static void Check(std::vector<IoCompletion>* batch);
  void Post(std::vector<IoCompletion> batch);
  // A task of the executor: checks one share of what waits.
  void CheckSome();
  // Takes what one thread should check: an equal share, so that all threads help with a burst, but
  // no more than delays the first copy noticeably. REQUIRES: mutex_ held.
  [[nodiscard]] std::vector<IoCompletion> TakeShare();

  EventQueue* const loop_;
  Executor* const executor_;
  const std::shared_ptr<Gathered> gathered_ = std::make_shared<Gathered>();
  std::mutex mutex_;  // guards what follows
  std::condition_variable all_checked_;
  std::deque<IoCompletion> unchecked_;
  uint64_t unchecked_bytes_ = 0;
  int tasks_ = 0;  // given to the executor and not ended
};

}  // namespace kvtier
