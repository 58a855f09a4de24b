// SPDX-License-Identifier: Apache-2.0
// The thread that owns the state of the store: tasks in the order in which they came.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace kvtier {

// Any thread may post. `tick` is called on the thread about once a second.
class RadosThread {
 public:
  using Task = std::function<void()>;

  RadosThread() = default;
  ~RadosThread() { Stop(); }
  RadosThread(const RadosThread&) = delete;
  RadosThread& operator=(const RadosThread&) = delete;

  void Start(Task tick);
  // After it has been stopped, tasks are dropped.
  void Post(Task task);
  // Waits for the task that runs now; those that wait are dropped.
  void Stop();

 private:
  void Work(const Task& tick);

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Task> tasks_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace kvtier
