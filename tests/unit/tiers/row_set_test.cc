// SPDX-License-Identifier: Apache-2.0
// The set of the directory's rows: its finds, and how little one insertion moves.
#include "tiers/directory/row_set.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <unordered_set>

#include "tests/fakes/seeded_random.h"

namespace kvtier {
namespace {

uint64_t HashOf(EntryIndex row) { return SeededRandom(row.value).Next(); }

EntryIndex FindIn(const RowSet& set, EntryIndex row) {
  return set.Find(HashOf(row), [row](EntryIndex found) { return found == row; });
}

TEST(RowSet, FindsExactlyWhatIsInIt) {
  constexpr uint32_t kRows = 50'000;
  RowSet set;
  std::unordered_set<uint32_t> expected;
  SeededRandom random(1);
  for (int step = 0; step < 400'000; ++step) {
    const EntryIndex row(static_cast<uint32_t>(random.Below(kRows)));
    if (FindIn(set, row) == kNoEntry) {
      ASSERT_FALSE(expected.contains(row.value));
      ASSERT_FALSE(set.Erase(HashOf(row), row));
      set.Insert(HashOf(row), row);
      expected.insert(row.value);
    } else if (random.Below(3) == 0) {
      ASSERT_TRUE(set.Erase(HashOf(row), row));
      ASSERT_EQ(expected.erase(row.value), 1u);
    }
  }
  EXPECT_EQ(set.size(), expected.size());
  for (uint32_t row = 0; row < kRows; ++row) {
    EXPECT_EQ(FindIn(set, EntryIndex(row)) != kNoEntry, expected.contains(row)) << row;
  }
}

TEST(RowSet, TellsRowsOfOneHashApart) {
  constexpr uint64_t kHash = 0x0123'4567'89ab'cdef;
  RowSet set;
  for (uint32_t row = 0; row < 100; ++row) set.Insert(kHash, EntryIndex(row));
  for (uint32_t row = 0; row < 100; row += 2) ASSERT_TRUE(set.Erase(kHash, EntryIndex(row)));
  for (uint32_t row = 0; row < 100; ++row) {
    const EntryIndex found =
        set.Find(kHash, [row](EntryIndex one) { return one == EntryIndex(row); });
    EXPECT_EQ(found, row % 2 == 0 ? kNoEntry : EntryIndex(row));
  }
}

// Doubling a table of so many rows moves ten million in one step.
TEST(RowSet, GrowsToTenMillionRowsInSmallSteps) {
  constexpr uint32_t kRows = 10'000'000;
  RowSet set;
  uint64_t most_moved = 0;
  for (uint32_t row = 0; row < kRows; ++row) {
    const uint64_t before = set.moved_rows();
    set.Insert(HashOf(EntryIndex(row)), EntryIndex(row));
    most_moved = std::max(most_moved, set.moved_rows() - before);
  }
  EXPECT_LE(most_moved, RowSet::kMaxSegmentRows);
  EXPECT_LE(set.moved_rows(), 2 * uint64_t{kRows});
  EXPECT_LE(set.memory_bytes(), uint64_t{20} * kRows);
  for (uint32_t row = 0; row < kRows; row += 1009) {
    ASSERT_EQ(FindIn(set, EntryIndex(row)), EntryIndex(row));
  }
}

}  // namespace
}  // namespace kvtier
