// SPDX-License-Identifier: Apache-2.0
#include "tiers/orders/pin_table.h"

#include <utility>

namespace kvtier {

// The later call replaces the earlier one, even if its end is nearer.
void PinTable::Set(EntryIndex entry, int64_t until_ms) {
  Erase(entry);
  pins_.At(entry.value).until_ms = until_ms;
  by_end_.emplace(until_ms, entry);
}

void PinTable::Erase(EntryIndex entry) {
  if (!Contains(entry)) return;
  by_end_.erase({std::exchange(pins_[entry.value].until_ms, kNotPinned), entry});
}

std::vector<EntryIndex> PinTable::TakeEnded(int64_t now_ms, size_t most) {
  std::vector<EntryIndex> ended;
  while (ended.size() < most && !by_end_.empty() && by_end_.begin()->first <= now_ms) {
    ended.push_back(by_end_.begin()->second);
    Erase(ended.back());
  }
  return ended;
}

}  // namespace kvtier
