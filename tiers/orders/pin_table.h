// SPDX-License-Identifier: Apache-2.0
// Blocks that are pinned, by whom, and until when.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "tiers/policy/eviction_policy.h"
#include "tiers/types/block_key.h"

namespace kvtier {

// Holds the pins that no session can end: an administrator's, and those of an earlier daemon.
inline constexpr SessionId kNobody{0};

// The blocks that are pinned, by the end of their pins. A block stays pinned until the last of its
// holders has let go of it, or its time has passed. Event loop only.
class PinTable {
 public:
  // Holders of a block that are told apart. Pins of more become kNobody's: they end with time.
  static constexpr size_t kMostHolders = 4;

  // The holder's pin lasts until then, or longer if it has said so before.
  void Set(EntryIndex entry, SessionId holder, int64_t until_ms);
  // Ends the holder's pin, if it has one; others' stay. kNobody ends all.
  void Release(EntryIndex entry, SessionId holder);
  // Takes out at most `most` blocks whose pins have ended. Looks at no others.
  [[nodiscard]] std::vector<EntryIndex> TakeEnded(int64_t now_ms, size_t most);
  // The end of the last pin. REQUIRES: it is pinned.
  [[nodiscard]] int64_t UntilMs(EntryIndex entry) const { return EndOf(pins_[entry.value]); }
  [[nodiscard]] bool Contains(EntryIndex entry) const {
    const Holders* const pin = pins_.Find(entry.value);
    return pin != nullptr && EndOf(*pin) != kNotPinned;
  }
  [[nodiscard]] size_t size() const { return by_end_.size(); }
  template <typename Visit>
  void ForEach(Visit visit) const {
    for (const auto& [until_ms, entry] : by_end_) visit(entry);
  }

 private:
  static constexpr int64_t kNotPinned = INT64_MIN;
  struct Pin {
    SessionId holder = kNobody;
    int64_t until_ms = kNotPinned;
  };
  using Holders = std::array<Pin, kMostHolders>;

  [[nodiscard]] static int64_t EndOf(const Holders& holders);
  // The pin that a holder's is to be, or to become part of.
  [[nodiscard]] static Pin* PlaceOf(Holders* holders, SessionId holder);
  void Refile(EntryIndex entry, int64_t before_ms, int64_t after_ms);

  PagedArray<Holders> pins_;  // by row
  std::set<std::pair<int64_t, EntryIndex>> by_end_;
};

}  // namespace kvtier
