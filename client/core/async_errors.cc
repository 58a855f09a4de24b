// SPDX-License-Identifier: Apache-2.0
#include "client/core/async_errors.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace kvtier::client {

void AsyncErrors::Add(AsyncError error) {
  const std::lock_guard lock(mutex_);
  if (errors_.size() == kKept) {
    errors_.pop_front();
    ++dropped_;
  }
  errors_.push_back(std::move(error));
}

std::vector<AsyncError> AsyncErrors::Take(size_t limit, uint64_t* dropped) {
  const std::lock_guard lock(mutex_);
  const auto end = errors_.begin() + static_cast<ptrdiff_t>(std::min(limit, errors_.size()));
  std::vector<AsyncError> taken(std::make_move_iterator(errors_.begin()),
                                std::make_move_iterator(end));
  errors_.erase(errors_.begin(), end);
  *dropped = std::exchange(dropped_, 0);
  return taken;
}

}  // namespace kvtier::client
