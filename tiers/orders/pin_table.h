// SPDX-License-Identifier: Apache-2.0
// Blocks that are pinned, and until when.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "tiers/policy/eviction_policy.h"
#include "tiers/types/block_key.h"

namespace kvtier {

// The blocks that are pinned, by the end of their pins. Event loop only.
class PinTable {
 public:
  // The block is pinned until then, and no longer until an earlier Set.
  void Set(EntryIndex entry, int64_t until_ms);
  // Does nothing if it is not pinned.
  void Erase(EntryIndex entry);
  // Takes out at most `most` blocks whose pins have ended. Looks at no others.
  [[nodiscard]] std::vector<EntryIndex> TakeEnded(int64_t now_ms, size_t most);
  // REQUIRES: it is pinned.
  [[nodiscard]] int64_t UntilMs(EntryIndex entry) const { return pins_[entry.value].until_ms; }
  [[nodiscard]] bool Contains(EntryIndex entry) const {
    const Pinned* const pin = pins_.Find(entry.value);
    return pin != nullptr && pin->until_ms != kNotPinned;
  }
  [[nodiscard]] size_t size() const { return by_end_.size(); }
  template <typename Visit>
  void ForEach(Visit visit) const {
    for (const auto& [until_ms, entry] : by_end_) visit(entry);
  }

 private:
  static constexpr int64_t kNotPinned = INT64_MIN;
  struct Pinned {
    int64_t until_ms = kNotPinned;
  };
  PagedArray<Pinned> pins_;  // by row
  std::set<std::pair<int64_t, EntryIndex>> by_end_;
};

}  // namespace kvtier
