// SPDX-License-Identifier: Apache-2.0
// A hash set of directory rows that grows in small steps.
//
// A table that doubles moves all of its rows at once, which at ten million blocks holds the event
// loop up for a second. This one is cut into segments of one page each (extendible hashing after
// Fagin, Nievergelt, Pippenger and Strong, 1979): a list of segments, indexed by the first bits of
// the hash, grows by one segment whenever one is full, which moves half of that segment's rows.
// Only the list doubles, by eight bytes for some 300 rows.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "tiers/types/block_key.h"

namespace kvtier {

// Rows are found by hashes whose bits are all good, and told apart by the caller. Event loop only.
class RowSet {
 public:
  // An insertion moves no more rows than a segment can have, however many rows there are.
  static constexpr size_t kMaxSegmentRows = 448;

  RowSet();

  // A row with this hash for which `is(row)` holds; kNoEntry if there is none.
  template <typename Is>
  [[nodiscard]] EntryIndex Find(uint64_t hash, Is is) const {
    const uint32_t check = CheckOf(hash);
    const Segment& segment = *segments_[Place(check)];
    for (size_t at = check % kSlots; !segment.slots[at].empty(); at = (at + 1) % kSlots) {
      const Slot& slot = segment.slots[at];
      if (slot.check == check && is(slot.row())) return slot.row();
    }
    return kNoEntry;
  }

  // REQUIRES: the row is not in the set.
  void Insert(uint64_t hash, EntryIndex row);
  // False if there is no such row.
  [[nodiscard]] bool Erase(uint64_t hash, EntryIndex row);

  [[nodiscard]] size_t size() const { return size_; }
  // Rows that insertions have moved so far, in favour of others.
  [[nodiscard]] uint64_t moved_rows() const { return moved_rows_; }
  [[nodiscard]] size_t memory_bytes() const;

 private:
  // They take a page.
  static constexpr size_t kSlots = 512;
  // The first bits choose the segment, the last ones the place in it.
  static constexpr uint32_t kCheckBits = 32;

  struct Slot {
    uint32_t check = 0;
    uint32_t row_plus_one = 0;  // 0: nothing
    [[nodiscard]] bool empty() const { return row_plus_one == 0; }
    [[nodiscard]] EntryIndex row() const { return EntryIndex(row_plus_one - 1); }
  };
  // Open addressing: a row stands at its place or behind it, with no empty slot between.
  struct Segment {
    std::array<Slot, kSlots> slots{};
    uint32_t rows = 0;
    uint32_t depth = 0;  // so many first bits are the same in all of its rows
  };

  [[nodiscard]] static uint32_t CheckOf(uint64_t hash) { return static_cast<uint32_t>(hash >> 32); }
  [[nodiscard]] size_t Place(uint32_t check) const {
    return static_cast<size_t>(uint64_t{check} >> (kCheckBits - depth_));
  }
  static void Put(Segment* segment, const Slot& slot);
  static void TakeOut(Segment* segment, size_t at);
  // Half of the segment's rows go to a new one.
  void Split(Segment* full, uint32_t check);

  std::vector<std::unique_ptr<Segment>> owned_;
  std::vector<Segment*> segments_;  // 2^depth_, by the first bits; neighbours may be the same
  uint32_t depth_ = 0;
  size_t size_ = 0;
  uint64_t moved_rows_ = 0;
};

}  // namespace kvtier
