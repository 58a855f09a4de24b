// SPDX-License-Identifier: Apache-2.0
// Executor on real threads.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/executor.h"

namespace kvtier {

// `loop` must outlive this object. The destructor finishes queued work and joins; `done` events of
// that work are still posted.
class ThreadExecutor final : public Executor {
 public:
  // Background threads leave the cores to others of the machine that want them (nice 10).
  enum class Priority : uint8_t { kNormal, kBackground };

  // `name` (at most 12 characters) shows in `top -H`. Throws std::system_error if a thread cannot
  // be started.
  ThreadExecutor(std::string name, int threads, EventQueue* loop,
                 Priority priority = Priority::kNormal);
  ~ThreadExecutor() override;
  ThreadExecutor(const ThreadExecutor&) = delete;
  ThreadExecutor& operator=(const ThreadExecutor&) = delete;

  void Run(std::function<void()> work, std::function<void()> done) override;
  [[nodiscard]] int threads() const override { return static_cast<int>(threads_.size()); }

 private:
  struct Task {
    std::function<void()> work;
    std::function<void()> done;
  };
  void Work();
  // Finishes queued work and joins the threads.
  void Stop();

  EventQueue* const loop_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Task> tasks_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace kvtier
