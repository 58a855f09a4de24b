// SPDX-License-Identifier: Apache-2.0
#include "tiers/directory/row_set.h"

#include <algorithm>

#include "base/result.h"

namespace kvtier {

RowSet::RowSet() {
  owned_.push_back(std::make_unique<Segment>());
  segments_.push_back(owned_.back().get());
}

void RowSet::Insert(uint64_t hash, EntryIndex row) {
  const uint32_t check = CheckOf(hash);
  Segment* segment = segments_[Place(check)];
  // More than once only if all rows of the segment agree in one more bit.
  while (segment->rows == kMaxSegmentRows) {
    Split(segment, check);
    segment = segments_[Place(check)];
  }
  Put(segment, {.check = check, .row_plus_one = row.value + 1});
  ++size_;
}

bool RowSet::Erase(uint64_t hash, EntryIndex row) {
  const uint32_t check = CheckOf(hash);
  Segment* const segment = segments_[Place(check)];
  for (size_t at = check % kSlots; !segment->slots[at].empty(); at = (at + 1) % kSlots) {
    if (segment->slots[at].row() != row) continue;
    TakeOut(segment, at);
    --size_;
    return true;
  }
  return false;
}

void RowSet::Put(Segment* segment, const Slot& slot) {
  size_t at = slot.check % kSlots;
  while (!segment->slots[at].empty()) at = (at + 1) % kSlots;
  segment->slots[at] = slot;
  ++segment->rows;
}

// Rows that stand behind the gap because it was taken move up, so that none is behind a gap.
void RowSet::TakeOut(Segment* segment, size_t at) {
  auto& slots = segment->slots;
  for (size_t next = (at + 1) % kSlots; !slots[next].empty(); next = (next + 1) % kSlots) {
    const size_t place = slots[next].check % kSlots;
    const size_t from_place = (next + kSlots - place) % kSlots;
    const size_t from_gap = (next + kSlots - at) % kSlots;
    if (from_place < from_gap) continue;
    slots[at] = slots[next];
    at = next;
  }
  slots[at] = Slot{};
  --segment->rows;
}

void RowSet::Split(Segment* full, uint32_t check) {
  KVT_CHECK(full->depth < kCheckBits);
  if (full->depth == depth_) {
    std::vector<Segment*> doubled;
    doubled.reserve(2 * segments_.size());
    for (Segment* const segment : segments_) doubled.insert(doubled.end(), 2, segment);
    segments_ = std::move(doubled);
    ++depth_;
  }
  // The places of the full segment follow each other; the second half of them becomes the new
  // one's.
  Segment* const added = owned_.emplace_back(std::make_unique<Segment>()).get();
  const uint32_t bit = kCheckBits - 1 - full->depth;
  added->depth = ++full->depth;
  const size_t places = size_t{1} << (depth_ - added->depth);
  const size_t first = (Place(check) / places | 1) * places;
  std::fill_n(segments_.begin() + static_cast<std::ptrdiff_t>(first), places, added);
  const Segment before = *full;
  full->slots.fill(Slot{});
  full->rows = 0;
  for (const Slot& slot : before.slots) {
    if (!slot.empty()) Put((slot.check >> bit & 1) != 0 ? added : full, slot);
  }
  moved_rows_ += before.rows;
}

size_t RowSet::memory_bytes() const {
  return owned_.size() * sizeof(Segment) + owned_.capacity() * sizeof(owned_[0]) +
         segments_.capacity() * sizeof(Segment*);
}

}  // namespace kvtier
