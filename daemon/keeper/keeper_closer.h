// SPDX-License-Identifier: Apache-2.0
// Closes descriptors beside the keeper's thread: who closes the last one of some memory gives it
// back within the call, which takes seconds for tens of GiB, and a daemon does not wait so long.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "base/posix.h"

namespace kvtier {

// A thread that starts with the first descriptor, so that a keeper may fork before. One thread
// calls.
class KeeperCloser {
 public:
  KeeperCloser() = default;
  // Closes all that it was given, as Finish does.
  ~KeeperCloser() { Finish(); }
  KeeperCloser(const KeeperCloser&) = delete;
  KeeperCloser& operator=(const KeeperCloser&) = delete;

  // Returns at once. Where no thread can be started it closes the descriptor itself.
  void Close(UniqueFd descriptor);
  // Returns when all is closed.
  void Finish();

 private:
  void Work();

  std::thread thread_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::vector<UniqueFd> waiting_;
  bool ends_ = false;
};

}  // namespace kvtier
