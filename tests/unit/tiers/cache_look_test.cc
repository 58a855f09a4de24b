// SPDX-License-Identifier: Apache-2.0
// Administrators' views of single blocks, and their means to change them.

#include "base/units.h"
#include "tests/unit/tiers/cache_fixture.h"

namespace kvtier {
namespace {

constexpr NamespaceId kNamespace{0};

class CacheLookTest : public CacheTest {
 protected:
  // The hashes that a walk in steps of `max_rows` and `max_blocks` reports.
  std::vector<BlockHash> WalkAll(const BlockFilter& filter = {}, uint32_t max_rows = 3,
                                 uint32_t max_blocks = 2) {
    std::vector<BlockHash> hashes;
    BlockWalk step;
    do {
      step = cache_->Walk(step.next_cursor, max_rows, max_blocks, filter);
      EXPECT_LE(step.blocks.size(), max_blocks);
      for (const BlockRecord& block : step.blocks) hashes.push_back(block.key.hash);
    } while (!step.finished);
    return hashes;
  }
  EvictOutcome Evict(const BlockHash& hash, std::optional<Tier> tier = std::nullopt) {
    const EvictOutcome outcome = cache_->Evict({kNamespace, hash}, tier);
    Settle();
    return outcome;
  }
};

TEST_F(CacheLookTest, WalkInStepsReportsEveryBlockOnce) {
  Start();
  Put(Sequence(1, 7));
  EXPECT_THAT(WalkAll(), testing::UnorderedElementsAreArray(Sequence(1, 7)));
  EXPECT_THAT(WalkAll({}, 100, 100), testing::UnorderedElementsAreArray(Sequence(1, 7)));
}

TEST_F(CacheLookTest, WalkOverNothingEndsAtOnce) {
  Start();
  EXPECT_TRUE(cache_->Walk(0, 10, 10, {}).finished);
  EXPECT_TRUE(cache_->Walk(UINT64_MAX / 2, 10, 10, {}).finished);
}

TEST_F(CacheLookTest, WalkReportsOnlyWhatTheFilterAdmits) {
  Start();
  Put(Sequence(1, 3));
  Drain();
  Put(Sequence(2, 2));
  EXPECT_THAT(WalkAll({.tier = Tier::kDisk}), testing::UnorderedElementsAreArray(Sequence(1, 3)));
  EXPECT_EQ(WalkAll({.tier = Tier::kPool}).size(), 5u);
  EXPECT_TRUE(WalkAll({.namespaces = std::vector<NamespaceId>{NamespaceId(7)}}).empty());
  const auto range = HashRange::BeginningWith(TestHash(1, 1).Hex().substr(0, 12));
  ASSERT_TRUE(range);
  EXPECT_THAT(WalkAll({.hashes = range}), testing::ElementsAre(TestHash(1, 1)));
}

TEST_F(CacheLookTest, HashRangesNeedHexadecimalDigits) {
  EXPECT_FALSE(HashRange::BeginningWith(""));
  EXPECT_FALSE(HashRange::BeginningWith("xyz"));
  EXPECT_FALSE(HashRange::BeginningWith(std::string(65, 'a')));
  const auto one = HashRange::BeginningWith(TestHash(1, 1).Hex());
  ASSERT_TRUE(one);
  EXPECT_EQ(one->first, one->last);
}

TEST_F(CacheLookTest, ExpiredBlocksAreNotShown) {
  Start();
  Put(Sequence(1, 1), RetentionClass::kMemory);
  machine_->clock.Advance(11 * 60 * 1000);
  EXPECT_TRUE(WalkAll().empty());
  EXPECT_FALSE(cache_->Inspect({kNamespace, TestHash(1, 0)}));
}

TEST_F(CacheLookTest, InspectTellsPlaceTimesAndReferences) {
  Start();
  const Handles held = Store(kAlice, Sequence(1, 2));
  Drain();
  const auto block = cache_->Inspect({kNamespace, TestHash(1, 1)});
  ASSERT_TRUE(block);
  EXPECT_TRUE(block->presence.pool && block->presence.host && block->presence.disk);
  EXPECT_EQ(block->references, 1u);
  EXPECT_EQ(block->pinned_until_ms, 0);
  EXPECT_EQ(block->expires_ms, int64_t{block->last_use_s} * 1000 + 24 * kHourMs);
  Release(kAlice, held);
  EXPECT_EQ(cache_->Inspect({kNamespace, TestHash(1, 1)})->references, 0u);
}

TEST_F(CacheLookTest, InspectShowsUntilWhenABlockIsPinned) {
  Start();
  Put(Sequence(1, 1));
  ASSERT_EQ(cache_->Pin(kNamespace, Sequence(1, 1), kHourMs).value(), 1u);
  const int64_t until_ms = machine_->clock.WallMs() + kHourMs;
  EXPECT_EQ(cache_->Inspect({kNamespace, TestHash(1, 0)})->pinned_until_ms, until_ms);
  ASSERT_EQ(cache_->Pin(kNamespace, Sequence(1, 1), 0).value(), 1u);
  EXPECT_EQ(cache_->Inspect({kNamespace, TestHash(1, 0)})->pinned_until_ms, 0);
}

TEST_F(CacheLookTest, PastOfABlockIsItsLatestDropAndMiss) {
  Start();
  EXPECT_FALSE(cache_->PastOf({kNamespace, TestHash(1, 0)}).miss);
  Acquire(kAlice, Sequence(1, 3));
  Settle();
  const BlockPast missed = cache_->PastOf({kNamespace, TestHash(1, 0)});
  ASSERT_TRUE(missed.miss);
  EXPECT_EQ(missed.miss->reason, MissReason::kUnknown);
  EXPECT_FALSE(missed.drop);
  EXPECT_FALSE(cache_->PastOf({kNamespace, TestHash(1, 1)}).miss)
      << "the acquire stopped before it";

  Put(Sequence(1, 1));
  ASSERT_EQ(Evict(TestHash(1, 0)), EvictOutcome::kEvicted);
  const BlockPast dropped = cache_->PastOf({kNamespace, TestHash(1, 0)});
  ASSERT_TRUE(dropped.drop);
  EXPECT_EQ(dropped.drop->reason, DropReason::kEvictedByHand);
}

TEST_F(CacheLookTest, EvictForgetsABlockInEveryTier) {
  Start();
  Put(Sequence(1, 2));
  Drain();
  EXPECT_EQ(Evict(TestHash(1, 0)), EvictOutcome::kEvicted);
  EXPECT_FALSE(Presence(TestHash(1, 0)).anywhere());
  EXPECT_TRUE(Presence(TestHash(1, 1)).disk);
  EXPECT_EQ(Drops(Tier::kDisk, DropReason::kEvictedByHand), 1u);
  EXPECT_EQ(Evict(TestHash(1, 0)), EvictOutcome::kAbsent);
  CrashAndRestart();
  EXPECT_FALSE(Presence(TestHash(1, 0)).anywhere());
}

TEST_F(CacheLookTest, EvictFromOneTierLeavesTheOthers) {
  Start();
  Put(Sequence(1, 1));
  Drain();
  EXPECT_EQ(Evict(TestHash(1, 0), Tier::kPool), EvictOutcome::kEvicted);
  EXPECT_EQ(Evict(TestHash(1, 0), Tier::kPool), EvictOutcome::kAbsent);
  EXPECT_FALSE(Presence(TestHash(1, 0)).pool);
  EXPECT_EQ(Evict(TestHash(1, 0), Tier::kHost), EvictOutcome::kEvicted);
  EXPECT_TRUE(Presence(TestHash(1, 0)).disk);
  Use(Sequence(1, 1));
  EXPECT_EQ(Evict(TestHash(1, 0), Tier::kDisk), EvictOutcome::kEvicted);
  EXPECT_FALSE(Presence(TestHash(1, 0)).disk);
  EXPECT_TRUE(Presence(TestHash(1, 0)).pool);
}

TEST_F(CacheLookTest, EvictLeavesWhatIsHeldOrPinned) {
  Start();
  const Handles held = Store(kAlice, Sequence(1, 1));
  Settle();
  EXPECT_EQ(Evict(TestHash(1, 0)), EvictOutcome::kReferenced);
  Release(kAlice, held);
  ASSERT_TRUE(cache_->Pin(kNamespace, Sequence(1, 1), kHourMs));
  EXPECT_EQ(Evict(TestHash(1, 0)), EvictOutcome::kPinned);
  EXPECT_TRUE(Presence(TestHash(1, 0)).pool);
}

}  // namespace
}  // namespace kvtier
