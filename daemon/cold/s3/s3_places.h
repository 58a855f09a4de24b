// SPDX-License-Identifier: Apache-2.0
// Where walks over a bucket's names go on: a cursor is a number, and the place behind it is a name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>

namespace kvtier {

// Any thread.
class S3Places {
 public:
  // The cursor of a walk that goes on behind `name`, never 0. The oldest beyond some hundred are
  // forgotten: walks that were given up leave theirs.
  [[nodiscard]] uint64_t Add(std::string name) {
    const std::lock_guard lock(mutex_);
    names_[++last_] = std::move(name);
    if (names_.size() > kMost) names_.erase(names_.begin());
    return last_;
  }
  // The name is empty for 0, and for a cursor that was forgotten: the walk begins anew then, and
  // names that it has deleted are not listed again.
  [[nodiscard]] std::string Find(uint64_t cursor) const {
    const std::lock_guard lock(mutex_);
    const auto found = names_.find(cursor);
    return found == names_.end() ? std::string() : found->second;
  }

 private:
  static constexpr size_t kMost = 256;

  mutable std::mutex mutex_;  // guards what follows
  std::map<uint64_t, std::string> names_;
  uint64_t last_ = 0;
};

}  // namespace kvtier
