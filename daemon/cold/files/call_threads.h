// SPDX-License-Identifier: Apache-2.0
// Threads for calls that may hang: one that does is given up, and another takes its place.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "daemon/cold/files/object_files.h"

namespace kvtier {

struct FileCall {
  std::chrono::steady_clock::time_point deadline;
  std::string tenant;  // whose turn it takes; the same for calls that are to keep their order
  // On a thread of the group; refers to nothing that may end before it does.
  std::function<FileOutcome()> work;
  // Called once, unless the group is stopped before: on a thread of the group, or within Add. With
  // `more` another call's is called right after it.
  std::function<void(const FileOutcome&, bool more)> ended;
};

// Any thread may call. Threads are not joined: a file system that hangs may hold one for ever.
//
// To wake a thread, and the caller's afterwards, costs more than to copy 64 KiB. While most calls
// copy, and do not wait for a device or a server, few threads therefore take one call after the
// other and tell several ends together; a thread that watches wakes others within some milliseconds
// when one of them is held up.
class CallThreads {
 public:
  struct Limits {
    size_t at_once;        // calls that are worked at, beside those past their deadlines
    size_t most;           // threads, with those that are past a deadline
    size_t while_copying;  // of `at_once`, while most calls do not wait
  };

  explicit CallThreads(const Limits& limits);
  ~CallThreads();
  CallThreads(const CallThreads&) = delete;
  CallThreads& operator=(const CallThreads&) = delete;

  // They end with KVT_COLD_BUSY if all threads hang, or if too many wait and their tenant has the
  // most, and with KVT_COLD_UNSENT if their deadlines pass first.
  void Add(std::vector<FileCall> calls);
  // Whether calls of other tenants wait.
  [[nodiscard]] bool OthersWait(const std::string& tenant) const;
  // Whether a call runs past its deadline.
  [[nodiscard]] bool Hangs() const;
  // No call's end is told any more. Waits for the threads until `deadline`; false if some remain.
  [[nodiscard]] bool Stop(std::chrono::steady_clock::time_point deadline);

  // Ends that are told together at most.
  static constexpr size_t kToldTogether = 8;

 private:
  struct State;
  const std::shared_ptr<State> state_;
};

}  // namespace kvtier
