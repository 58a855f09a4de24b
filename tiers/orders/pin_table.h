// SPDX-License-Identifier: Apache-2.0
// Blocks that are pinned, and until when.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

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
  [[nodiscard]] int64_t UntilMs(EntryIndex entry) const { return until_ms_.at(entry); }
  [[nodiscard]] bool Contains(EntryIndex entry) const { return until_ms_.contains(entry); }
  [[nodiscard]] size_t size() const { return until_ms_.size(); }
  template <typename Visit>
  void ForEach(Visit visit) const {
    for (const auto& [until_ms, entry] : by_end_) visit(entry);
  }

 private:
  std::unordered_map<EntryIndex, int64_t> until_ms_;
  std::set<std::pair<int64_t, EntryIndex>> by_end_;
};

}  // namespace kvtier
