// SPDX-License-Identifier: Apache-2.0
// Which blocks are written to disk, and which are not worth it.

#include <set>

#include "tests/unit/tiers/cache_fixture.h"

namespace kvtier {
namespace {

constexpr double kLikely = 0.9;
constexpr double kUnlikely = 0.1;

class CacheAdmissionTest : public CacheTest {
 protected:
  CacheAdmissionTest() {
    change_environment_ = [this](CacheEnvironment*, IndexSnapshot*) {
      machine_->owner.chance_of_use = [this](const BlockFacts& facts) {
        return likely_.contains(facts.hash) ? kLikely : kUnlikely;
      };
    };
  }
  void StartWith(CacheSetup setup) {
    setup.options.disk_admission = 0.5;
    Start(setup);
  }
  void StartWithIdleWrites() {
    CacheSetup setup{.pool_blocks = 16, .host_slots = 16};
    setup.options.persist_after_ms = 30'000;
    StartWith(setup);
  }
  void MakeLikely(const Hashes& hashes) {
    for (const BlockHash& hash : hashes) likely_.insert(hash.Prefix64());
  }
  // As Put, with the block before each named at its commit.
  void PutLinked(const Hashes& hashes) {
    Put(hashes);
    Use(hashes);
  }
  [[nodiscard]] uint32_t OnDisk(const Hashes& hashes) const {
    uint32_t count = 0;
    for (const BlockHash& hash : hashes) count += Presence(hash).disk;
    return count;
  }
  // So many other blocks that pool and host turn over, several times.
  void TurnHostOver() {
    for (uint64_t stream = 100; stream < 112; ++stream) PutLinked(Sequence(stream, 8));
  }

  std::set<uint64_t> likely_;  // first words of hashes
};

TEST_F(CacheAdmissionTest, OnlyBlocksThatAreLikelyToBeUsedAgainAreWrittenWhenHostIsFull) {
  StartWith({.pool_blocks = 16, .host_slots = 16});
  MakeLikely(Sequence(2, 4));
  PutLinked(Sequence(1, 4));
  PutLinked(Sequence(2, 4));
  TurnHostOver();
  EXPECT_EQ(OnDisk(Sequence(1, 4)), 0u);
  EXPECT_EQ(OnDisk(Sequence(2, 4)), 4u);
  EXPECT_GE(Drops(Tier::kDisk, DropReason::kNotAdmitted), 4u);
  EXPECT_EQ(cache_->stats().disk_declined_blocks, Drops(Tier::kDisk, DropReason::kNotAdmitted));
  EXPECT_EQ(cache_->stats().disk_declined_bytes,
            cache_->stats().disk_declined_blocks * 2 * kBlockBytes);
}

TEST_F(CacheAdmissionTest, WhatIsIdleIsWrittenByTheSameRule) {
  StartWithIdleWrites();
  MakeLikely(Sequence(2, 4));
  PutLinked(Sequence(1, 4));
  PutLinked(Sequence(2, 4));
  AdvanceAndTick(31'000);
  EXPECT_EQ(OnDisk(Sequence(1, 4)), 0u);
  EXPECT_EQ(OnDisk(Sequence(2, 4)), 4u);
  EXPECT_EQ(cache_->stats().disk_declined_blocks, 0u) << "host still has them";
}

TEST_F(CacheAdmissionTest, ADeclinedBlockIsDecidedOnAgainWhenItHasBeenUsed) {
  StartWith({.pool_blocks = 16, .host_slots = 16});
  PutLinked(Sequence(1, 4));
  Drain();
  EXPECT_EQ(OnDisk(Sequence(1, 4)), 0u);
  MakeLikely(Sequence(1, 4));
  Use(Sequence(1, 4));
  Drain();
  EXPECT_EQ(OnDisk(Sequence(1, 4)), 4u);
}

TEST_F(CacheAdmissionTest, WhatABlockOnDiskFollowsIsWrittenToo) {
  StartWith({.pool_blocks = 16, .host_slots = 16});
  const Hashes sequence = Sequence(1, 4);
  MakeLikely({sequence[3]});
  PutLinked(sequence);
  Drain();
  TurnHostOver();
  EXPECT_EQ(OnDisk(sequence), 4u);
}

TEST_F(CacheAdmissionTest, ABlockWhoseParentIsOfTheMemoryClassIsNotWritten) {
  StartWith({.pool_blocks = 16, .host_slots = 16});
  const Hashes sequence = Sequence(1, 2);
  MakeLikely(sequence);
  Put({sequence[0]}, RetentionClass::kMemory);
  Put(sequence);
  Use(sequence);
  Drain();
  EXPECT_EQ(OnDisk(sequence), 0u);
}

TEST_F(CacheAdmissionTest, APinnedBlockIsWrittenHoweverUnlikelyItIs) {
  StartWithIdleWrites();
  PutLinked(Sequence(1, 2));
  Drain();
  ASSERT_EQ(OnDisk(Sequence(1, 2)), 0u);
  ASSERT_TRUE(cache_->Pin(pool_.namespace_id, Sequence(1, 2), 3'600'000));
  AdvanceAndTick(31'000);
  EXPECT_EQ(OnDisk(Sequence(1, 2)), 2u);
}

TEST_F(CacheAdmissionTest, WithoutAThresholdEverythingIsWritten) {
  CacheSetup setup{.pool_blocks = 16, .host_slots = 16};
  setup.options.disk_admission = 0;
  Start(setup);
  PutLinked(Sequence(1, 4));
  Drain();
  EXPECT_EQ(OnDisk(Sequence(1, 4)), 4u);
}

TEST_F(CacheAdmissionTest, AThresholdThatIsTakenBackWritesWhatIsUsedFromThenOn) {
  StartWith({.pool_blocks = 16, .host_slots = 16});
  PutLinked(Sequence(1, 4));
  CacheOptions options = setup_.options;
  options.disk_admission = 0;
  ASSERT_TRUE(cache_->Reconfigure(options));
  PutLinked(Sequence(2, 4));
  Drain();
  EXPECT_EQ(OnDisk(Sequence(2, 4)), 4u);
}

TEST_F(CacheAdmissionTest, AsLongAsLittleHasBeenLearnedEverythingIsWritten) {
  change_environment_ = nullptr;
  StartWith({.pool_blocks = 16, .host_slots = 16});
  PutLinked(Sequence(1, 4));
  Drain();
  EXPECT_EQ(OnDisk(Sequence(1, 4)), 4u);
}

// As long as no more is written than the day's share, every block here is worth it; then only those
// that are likely to be used are, and the rest of the day has something left.
TEST_F(CacheAdmissionTest, WritesAheadOfTheDayAreKeptForBlocksThatAreLikelyToBeUsed) {
  constexpr uint64_t kBlocksAnHour = 100;
  CacheSetup setup{.pool_blocks = 16, .host_slots = 16};
  setup.options.disk_admission = kUnlikely / 2;
  setup.options.disk_write_budget_bytes_per_day = 24 * kBlocksAnHour * 2 * kBlockBytes;
  Start(setup);
  for (uint64_t stream = 100; stream < 400; ++stream) PutLinked(Sequence(stream, 8));
  EXPECT_GT(cache_->stats().disk_declined_blocks, 0u);
  EXPECT_GT(cache_->Gauges().write_budget_left_bytes, 0u);
  EXPECT_EQ(Drops(Tier::kDisk, DropReason::kWriteBudget), 0u);
  MakeLikely(Sequence(2, 4));
  PutLinked(Sequence(1, 4));
  PutLinked(Sequence(2, 4));
  TurnHostOver();
  EXPECT_EQ(OnDisk(Sequence(1, 4)), 0u);
  EXPECT_EQ(OnDisk(Sequence(2, 4)), 4u);
}

}  // namespace
}  // namespace kvtier
