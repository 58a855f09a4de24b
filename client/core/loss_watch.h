// SPDX-License-Identifier: Apache-2.0
// Notices the end of a connection although no thread of the application is waiting for anything.
#pragma once

#include <functional>
#include <thread>

#include "base/unique_fd.h"

namespace kvtier::client {

// One thread, for sessions that have streams waiting.
class LossWatch {
 public:
  // Calls `on_lost` when the socket has been hung up, and for a second again and again: a device of
  // the daemon may finish what it had begun. `socket` outlives this object.
  LossWatch(int socket, std::function<void()> on_lost);
  // Waits for a call under way.
  ~LossWatch();
  LossWatch(const LossWatch&) = delete;
  LossWatch& operator=(const LossWatch&) = delete;

 private:
  void Watch();
  // True if it is time to go.
  [[nodiscard]] bool StoppedWithin(int ms) const;

  const int socket_;
  const std::function<void()> on_lost_;
  const UniqueFd stop_;  // an eventfd
  std::thread thread_;
};

}  // namespace kvtier::client
