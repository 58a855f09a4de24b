// SPDX-License-Identifier: Apache-2.0
#include "tiers/memory/registered_memory.h"

#include <algorithm>

namespace kvtier {

std::vector<RegisteredMemory::Entry> RegisteredMemory::Plan(std::span<std::byte> memory) {
  std::vector<Entry> plan;
  while (!memory.empty() && next_number_ < kMaxRegisteredEntries) {
    const uint64_t bytes = std::min<uint64_t>(memory.size(), kMaxRegisteredBytes);
    const auto slice = memory.first(bytes);
    memory = memory.subspan(bytes);
    if (Find(slice.data(), slice.size()) != kNotRegistered) continue;
    plan.push_back({slice, next_number_++});
  }
  return plan;
}

void RegisteredMemory::Add(const Entry& entry) {
  const auto after = std::upper_bound(
      entries_.begin(), entries_.end(), entry,
      [](const Entry& a, const Entry& b) { return a.memory.data() < b.memory.data(); });
  entries_.insert(after, entry);
}

int RegisteredMemory::Find(const std::byte* data, uint64_t bytes) const {
  const auto after = std::upper_bound(
      entries_.begin(), entries_.end(), data,
      [](const std::byte* address, const Entry& entry) { return address < entry.memory.data(); });
  if (after == entries_.begin()) return kNotRegistered;
  const Entry& entry = *std::prev(after);
  if (data + bytes > entry.memory.data() + entry.memory.size()) return kNotRegistered;
  return entry.number;
}

}  // namespace kvtier
