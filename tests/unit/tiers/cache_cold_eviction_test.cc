// SPDX-License-Identifier: Apache-2.0
// Blocks that the disk evicts go down to the store before, and an eviction waits for none of them.
#include <utility>

#include "tests/unit/tiers/cache_cold_fixture.h"

namespace kvtier {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr uint32_t kDiskSlots = 8;

class CacheColdEvictionTest : public CacheColdTest {
 protected:
  // Blocks have not been idle for long enough when they are evicted.
  [[nodiscard]] static CacheSetup SmallDisk() {
    CacheSetup setup;
    setup.disk_slots = kDiskSlots;
    setup.options.cold_after_ms = int64_t{60} * 60 * 1000;
    return setup;
  }
  // Only the disk has the blocks, and they fill it.
  void FillDisk(bool use = true) {
    Put(old_);
    if (use) Use(old_);
    WriteToDisk(old_);
    ASSERT_EQ(cache_->Gauges().disk_blocks, kDiskSlots);
  }
  void WriteToDisk(const Hashes& hashes) {
    Drain();
    EvictFromPool();
    for (const BlockHash& hash : hashes)
      (void)cache_->Evict({pool_.namespace_id, hash}, Tier::kHost);
  }
  // Evicts one of the old blocks, the coldest, from the disk, without a question to the store.
  void WriteOneMore() {
    const Hashes hashes = Sequence(++streams_, 1);
    const bool available = std::exchange(store_.available, false);
    Put(hashes);
    store_.available = available;
    WriteToDisk(hashes);
  }
  [[nodiscard]] uint64_t Losses(ColdLoss loss) const {
    return stats().losses[static_cast<size_t>(loss)];
  }
  [[nodiscard]] uint64_t AllLosses() const {
    uint64_t all = 0;
    for (const uint64_t losses : stats().losses) all += losses;
    return all;
  }
  [[nodiscard]] const BlockHash& Coldest() const { return old_.back(); }

  const Hashes old_ = Sequence(1, kDiskSlots);
  uint64_t streams_ = 1;
};

TEST_F(CacheColdEvictionTest, WritesABlockBeforeTheDiskEvictsIt) {
  Start(SmallDisk());
  FillDisk();
  for (size_t evicted = 1; evicted <= 4; ++evicted) {
    AdvanceAndTick(1000);
    EXPECT_THAT(store_.objects, SizeIs(evicted));
    WriteOneMore();
    const BlockHash& hash = old_[kDiskSlots - evicted];
    EXPECT_FALSE(Presence(hash).anywhere());
    EXPECT_TRUE(store_.objects.contains(Name(hash)));
  }
  EXPECT_EQ(AllLosses(), 0u);
  ExpectBytes(old_, Acquire(kAlice, old_));
  EXPECT_EQ(cache_->stats().blocks.cold, 4u);
}

TEST_F(CacheColdEvictionTest, WritesNothingEarlyWhileTheDiskHasRoom) {
  CacheSetup setup = SmallDisk();
  setup.disk_slots = 4 * kDiskSlots;
  Start(setup);
  FillDisk();
  AdvanceAndTick(1000);
  EXPECT_THAT(store_.objects, IsEmpty());
}

TEST_F(CacheColdEvictionTest, WritesForATenantThatIsAtItsCap) {
  CacheSetup setup = SmallDisk();
  setup.disk_slots = 4 * kDiskSlots;
  TenantQuota quota{.name = "tenant"};
  quota.tiers[static_cast<size_t>(Tier::kDisk)].max_bytes = kSlabBytes;  // eight slots
  setup.options.tenants.push_back(quota);
  Start(setup);
  FillDisk();
  AdvanceAndTick(1000);
  ASSERT_TRUE(store_.objects.contains(Name(Coldest())));
  WriteOneMore();
  EXPECT_FALSE(Presence(Coldest()).anywhere());
  EXPECT_EQ(AllLosses(), 0u);
}

TEST_F(CacheColdEvictionTest, WritesAndMissesNothingThatWasNotUsed) {
  Start(SmallDisk());
  FillDisk(/*use=*/false);
  AdvanceAndTick(1000);
  WriteOneMore();
  EXPECT_THAT(store_.objects, IsEmpty());
  EXPECT_EQ(AllLosses(), 0u);
}

TEST_F(CacheColdEvictionTest, CountsWhatIsEvictedBeforeItsTurn) {
  Start(SmallDisk());
  AdvanceAndTick(1000);
  FillDisk();
  WriteOneMore();
  EXPECT_EQ(Losses(ColdLoss::kEarly), 1u);
  EXPECT_THAT(store_.objects, IsEmpty());
}

TEST_F(CacheColdEvictionTest, CountsWhatTheBytesOfASecondDoNotAllow) {
  CacheSetup setup = SmallDisk();
  setup.options.cold_write_bytes_per_s = 1000;
  Start(setup);
  FillDisk();
  AdvanceAndTick(1000);
  ASSERT_THAT(store_.objects, SizeIs(1)) << "more than a second has, and then nothing for a while";
  WriteOneMore();
  AdvanceAndTick(1000);
  WriteOneMore();
  EXPECT_EQ(Losses(ColdLoss::kBudget), 1u);
  EXPECT_THAT(store_.objects, SizeIs(1));
}

TEST_F(CacheColdEvictionTest, AHostThatOnlyReadsMissesNothing) {
  CacheSetup setup = SmallDisk();
  setup.options.cold_write_bytes_per_s = 0;
  Start(setup);
  FillDisk();
  AdvanceAndTick(1000);
  WriteOneMore();
  EXPECT_THAT(store_.objects, IsEmpty());
  EXPECT_EQ(AllLosses(), 0u);
}

TEST_F(CacheColdEvictionTest, CountsWhatIsEvictedWhileTheStoreIsAway) {
  Start(SmallDisk());
  FillDisk();
  store_.available = false;
  AdvanceAndTick(1000);
  WriteOneMore();
  EXPECT_FALSE(Presence(Coldest()).anywhere());
  EXPECT_EQ(Losses(ColdLoss::kAway), 1u);
}

TEST_F(CacheColdEvictionTest, CountsABlockThatOutlivesItsObject) {
  CacheSetup setup = SmallDisk();
  setup.options.extended_ttl_ms = 100'000;
  Start(setup);
  FillDisk();
  AdvanceAndTick(1000);
  ASSERT_TRUE(store_.objects.contains(Name(Coldest())));
  store_.available = false;
  AdvanceAndTick(60'000);
  Use(old_);
  WriteToDisk(old_);
  AdvanceAndTick(1000);
  WriteOneMore();
  EXPECT_FALSE(Presence(Coldest()).anywhere());
  EXPECT_EQ(Losses(ColdLoss::kAway), 1u);
}

TEST_F(CacheColdEvictionTest, AnEvictionDoesNotWaitForTheStore) {
  Start(SmallDisk());
  FillDisk();
  store_.holds = true;
  AdvanceAndTick(1000);
  ASSERT_EQ(store_.held(), 1u);
  WriteOneMore();
  EXPECT_FALSE(Presence(Coldest()).anywhere());
  store_.Answer();
  Settle();
  EXPECT_TRUE(store_.objects.contains(Name(Coldest())));
  EXPECT_EQ(AllLosses(), 0u);
}

TEST_F(CacheColdEvictionTest, CountsWhatTheStoreDoesNotTakeAfterTheEviction) {
  Start(SmallDisk());
  FillDisk();
  store_.holds = true;
  AdvanceAndTick(1000);
  WriteOneMore();
  store_.TimeOut();
  Settle();
  EXPECT_EQ(stats().write_errors, 1u);
  EXPECT_EQ(Losses(ColdLoss::kFailed), 1u);
}

TEST_F(CacheColdEvictionTest, TriesAgainWhatTheDiskStillHas) {
  Start(SmallDisk());
  FillDisk();
  store_.refuses = true;
  AdvanceAndTick(1000);
  EXPECT_EQ(stats().write_errors, 1u);
  store_.refuses = false;
  AdvanceAndTick(1000);
  EXPECT_TRUE(store_.objects.contains(Name(Coldest())));
  EXPECT_EQ(AllLosses(), 0u);
}

TEST_F(CacheColdEvictionTest, ABlockIsServedWhileItIsWritten) {
  Start(SmallDisk());
  FillDisk();
  store_.holds = true;
  AdvanceAndTick(1000);
  ASSERT_EQ(store_.held(), 1u);
  ExpectBytes(old_, Acquire(kAlice, old_));
  store_.Answer();
  Settle();
  EXPECT_TRUE(store_.objects.contains(Name(Coldest())));
  EXPECT_EQ(stats().write_blocks, 1u);
}

TEST_F(CacheColdEvictionTest, ADaemonThatDiesMeanwhileStillHasTheBlockOnDisk) {
  Start(SmallDisk());
  FillDisk();
  store_.holds = true;
  AdvanceAndTick(1000);
  ASSERT_EQ(store_.held(), 1u);
  CrashAndRestart();
  ExpectBytes(old_, Acquire(kAlice, old_));
  EXPECT_THAT(store_.objects, IsEmpty());
}

}  // namespace
}  // namespace kvtier
