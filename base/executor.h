// SPDX-License-Identifier: Apache-2.0
// How slow work leaves the event loop and comes back to it.
#pragma once

#include <functional>

namespace kvtier {

// The event loop as other threads see it.
class EventQueue {
 public:
  virtual ~EventQueue() = default;
  // Runs `event` on the loop's thread, after the caller returns, in the order posted by one thread.
  // Any thread may call.
  virtual void Post(std::function<void()> event) = 0;
};

// A small pool of threads for work that computes (checksums, encryption).
class Executor {
 public:
  virtual ~Executor() = default;
  // Runs `work` on some thread, then `done` on the event loop. `work` must not touch loop-owned
  // state except buffers that the caller keeps alive and untouched until `done`.
  virtual void Run(std::function<void()> work, std::function<void()> done) = 0;
};

}  // namespace kvtier
