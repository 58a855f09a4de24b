// SPDX-License-Identifier: Apache-2.0
#include "tiers/orders/pin_table.h"

#include <algorithm>

namespace kvtier {

void PinTable::Set(EntryIndex entry, SessionId holder, int64_t until_ms) {
  Holders& holders = pins_.At(entry.value);
  const int64_t before_ms = EndOf(holders);
  Pin* const pin = PlaceOf(&holders, holder);
  pin->until_ms = std::max(pin->until_ms, until_ms);
  Refile(entry, before_ms, EndOf(holders));
}

void PinTable::Release(EntryIndex entry, SessionId holder) {
  if (!Contains(entry)) return;
  Holders& holders = pins_[entry.value];
  const int64_t before_ms = EndOf(holders);
  for (Pin& pin : holders) {
    if (holder == kNobody || pin.holder == holder) pin = {};
  }
  Refile(entry, before_ms, EndOf(holders));
}

std::vector<EntryIndex> PinTable::TakeEnded(int64_t now_ms, size_t most) {
  std::vector<EntryIndex> ended;
  while (ended.size() < most && !by_end_.empty() && by_end_.begin()->first <= now_ms) {
    ended.push_back(by_end_.begin()->second);
    Release(ended.back(), kNobody);
  }
  return ended;
}

int64_t PinTable::EndOf(const Holders& holders) {
  return std::ranges::max_element(holders, {}, &Pin::until_ms)->until_ms;
}

// Where all places are taken, the pin that ends first becomes kNobody's and takes the new one in,
// so that neither ends before its time, whichever session lets go.
PinTable::Pin* PinTable::PlaceOf(Holders* holders, SessionId holder) {
  const auto is_of = [](SessionId whose) {
    return [whose](const Pin& pin) { return pin.until_ms != kNotPinned && pin.holder == whose; };
  };
  auto place = std::ranges::find_if(*holders, is_of(holder));
  if (place != holders->end()) return &*place;
  place = std::ranges::find(*holders, kNotPinned, &Pin::until_ms);
  if (place == holders->end()) {
    holder = kNobody;
    place = std::ranges::find_if(*holders, is_of(kNobody));
  }
  if (place == holders->end()) place = std::ranges::min_element(*holders, {}, &Pin::until_ms);
  place->holder = holder;
  return &*place;
}

void PinTable::Refile(EntryIndex entry, int64_t before_ms, int64_t after_ms) {
  if (before_ms == after_ms) return;
  if (before_ms != kNotPinned) by_end_.erase({before_ms, entry});
  if (after_ms != kNotPinned) by_end_.emplace(after_ms, entry);
}

}  // namespace kvtier
