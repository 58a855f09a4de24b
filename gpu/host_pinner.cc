// SPDX-License-Identifier: Apache-2.0
#include "gpu/host_pinner.h"

#include <iterator>

namespace kvtier {
void PinnedRanges::Add(std::span<std::byte> range) {
  const std::lock_guard lock(mutex_);
  bytes_by_start_[range.data()] = range.size();
}

bool PinnedRanges::Remove(std::span<std::byte> range) {
  const std::lock_guard lock(mutex_);
  const auto found = bytes_by_start_.find(range.data());
  if (found == bytes_by_start_.end() || found->second != range.size()) return false;
  bytes_by_start_.erase(found);
  return true;
}

bool PinnedRanges::Holds(const std::byte* data, uint64_t bytes) const {
  const std::lock_guard lock(mutex_);
  const auto after = bytes_by_start_.upper_bound(data);
  if (after == bytes_by_start_.begin()) return false;
  const auto& [start, size] = *std::prev(after);
  const auto offset = static_cast<uint64_t>(data - start);
  return offset <= size && bytes <= size - offset;
}

}  // namespace kvtier
