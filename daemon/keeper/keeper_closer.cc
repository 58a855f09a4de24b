// SPDX-License-Identifier: Apache-2.0
#include "daemon/keeper/keeper_closer.h"

#include <system_error>
#include <utility>

namespace kvtier {

void KeeperCloser::Close(UniqueFd descriptor) {
  if (!descriptor.valid()) return;
  if (!thread_.joinable()) {
    try {
      thread_ = std::thread([this] { Work(); });
    } catch (const std::system_error&) {
      return;
    }
  }
  {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(descriptor));
  }
  changed_.notify_one();
}

void KeeperCloser::Finish() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_one();
  thread_.join();
  ends_ = false;
}

void KeeperCloser::Work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ends_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    std::vector<UniqueFd> closed = std::exchange(waiting_, {});
    lock.unlock();
    closed.clear();
    lock.lock();
  }
}

}  // namespace kvtier
