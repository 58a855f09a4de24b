// SPDX-License-Identifier: Apache-2.0
// Which host memory is pinned.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>

namespace kvtier {

// Thread-safe. Ranges do not overlap.
class PinnedRanges {
 public:
  void Add(std::span<std::byte> range);
  // Takes exactly what Add took; false if it is not there.
  bool Remove(std::span<std::byte> range);
  // Whether one range holds all of [data, data + bytes).
  [[nodiscard]] bool Holds(const std::byte* data, uint64_t bytes) const;

 private:
  mutable std::mutex mutex_;
  std::map<const std::byte*, uint64_t> bytes_by_start_;
};

}  // namespace kvtier
