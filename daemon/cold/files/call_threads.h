// SPDX-License-Identifier: Apache-2.0
// Threads for calls that may hang: one that does is given up, and another takes its place.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>

#include "daemon/cold/files/object_files.h"

namespace kvtier {

struct FileCall {
  std::chrono::steady_clock::time_point deadline;
  // On a thread of the group; refers to nothing that may end before it does.
  std::function<FileOutcome()> work;
  // Called once, unless the group is stopped before: on that thread, or within Add.
  std::function<void(const FileOutcome&)> ended;
};

// Any thread may call. Threads are not joined: a file system that hangs may hold one for ever.
class CallThreads {
 public:
  // `at_once` calls are worked at, beside those that run past their deadlines; with these it has
  // `most` threads at most.
  CallThreads(size_t at_once, size_t most);
  ~CallThreads();
  CallThreads(const CallThreads&) = delete;
  CallThreads& operator=(const CallThreads&) = delete;

  // KVT_COLD_BUSY if all threads hang; KVT_COLD_UNAVAILABLE if the deadline passes first.
  void Add(FileCall call);
  // Whether a call runs past its deadline.
  [[nodiscard]] bool Hangs() const;
  // No call's end is told any more. Waits for the threads until `deadline`; false if some remain.
  [[nodiscard]] bool Stop(std::chrono::steady_clock::time_point deadline);

 private:
  struct State;
  const std::shared_ptr<State> state_;
};

}  // namespace kvtier
