// SPDX-License-Identifier: Apache-2.0
// The slabs that pins hold: which of them is to go for blocks of another size, and how few are
// looked at for it.
#include "tiers/state/pinned_slabs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "tests/fakes/seeded_random.h"

namespace kvtier {
namespace {

constexpr uint64_t kSlabBytes = 64 * 1024;

class PinnedSlabsTest : public ::testing::Test {
 protected:
  // Cuts the next slab for blocks of the class, of which it has room for one.
  uint64_t Cut(const SlotClass& slots) {
    allocator_.Grow(1);
    return allocator_.Allocate(slots, kNoEntry).value() / kSlabBytes;
  }
  // The slab that goes for blocks of the class.
  std::optional<uint64_t> For(const SlotClass& wanted, uint64_t most_held) {
    return pinned_.LeastBeyond(most_held, 1000, [&](const SlotClass& slots) {
      ++looked_at_;
      return slots != wanted;
    });
  }

  SlabAllocator allocator_{kSlabBytes, 0};
  PinnedSlabs pinned_;
  uint64_t looked_at_ = 0;
};

TEST_F(PinnedSlabsTest, SlabsOfTheWantedClassAreNotLookedAt) {
  constexpr SlotClass kMany{kSlabBytes, 0};
  constexpr SlotClass kFew{kSlabBytes - 1, 0};
  pinned_.SetAllocator(&allocator_);
  for (uint64_t i = 0; i < 5000; ++i) pinned_.Add(Cut(kMany), 1);
  EXPECT_EQ(For(kMany, 10), std::nullopt);
  EXPECT_EQ(looked_at_, 1u);
  const uint64_t few = Cut(kFew);
  pinned_.Add(few, 2);
  EXPECT_EQ(For(kMany, 10), std::nullopt) << "it is one of those with the most";
  EXPECT_EQ(For(kMany, 0), few);
  EXPECT_EQ(looked_at_, 5u);
}

// Compared with a search through all.
TEST_F(PinnedSlabsTest, TheSlabWithLeastBeyondTheShareGoes) {
  constexpr uint64_t kSlabs = 40;
  pinned_.SetAllocator(&allocator_);
  SeededRandom random(1);
  std::vector<SlotClass> classes;
  for (uint64_t i = 0; i < kSlabs; ++i) {
    classes.push_back({kSlabBytes - random.Below(2), static_cast<uint32_t>(random.Below(2))});
    ASSERT_EQ(Cut(classes.back()), i);
  }
  std::map<uint64_t, uint64_t> bytes;
  uint64_t staying = kSlabs;
  for (int step = 0; step < 20'000; ++step) {
    const uint64_t slab = random.Below(kSlabs);
    const uint64_t some = random.Between(1, 3);
    if (random.Chance(0.5)) {
      pinned_.Add(slab, some);
      bytes[slab] += some;
    } else if (bytes.contains(slab)) {
      const uint64_t less = std::min(some, bytes[slab]);
      pinned_.Remove(slab, less);
      if ((bytes[slab] -= less) == 0) bytes.erase(slab);
    }
    if (random.Chance(0.01)) allocator_.Resize(staying = random.Between(kSlabs / 2, kSlabs));
    ASSERT_EQ(pinned_.Has(slab), bytes.contains(slab));
    if (random.Chance(0.3)) continue;
    const uint64_t most_held = random.Chance(0.9) ? kSlabs / 3 : random.Below(kSlabs);
    std::vector<std::pair<uint64_t, uint64_t>> all;
    for (const auto& [one, its_bytes] : bytes) all.emplace_back(its_bytes, one);
    std::ranges::sort(all);
    all.resize(all.size() - std::min<size_t>(all.size(), most_held));
    const SlotClass wanted = classes[slab];
    std::optional<uint64_t> expected;
    for (const auto& [its_bytes, one] : all) {
      if (!expected && one < staying && classes[one] != wanted) expected = one;
    }
    ASSERT_EQ(For(wanted, most_held), expected) << step;
  }
}

}  // namespace
}  // namespace kvtier
