// SPDX-License-Identifier: Apache-2.0
// A drain waits until all that should be on disk is there.

#include "tests/unit/tiers/cache_fixture.h"

namespace kvtier {
namespace {

class CacheDrainTest : public CacheTest {};

TEST_F(CacheDrainTest, DrainWritesEveryExtendedBlock) {
  Start();
  Put(Sequence(1, 10));
  EXPECT_EQ(cache_->Gauges().unpersisted_blocks, 10u);
  Drain();
  for (const BlockHash& hash : Sequence(1, 10)) EXPECT_TRUE(Presence(hash).disk);
  EXPECT_EQ(cache_->Gauges().unpersisted_blocks, 0u);
  EXPECT_EQ(cache_->stats().disk_write_blocks, 10u);
}

TEST_F(CacheDrainTest, DrainOfNothingIsDoneAtOnce) {
  Start();
  Drain();
  EXPECT_TRUE(cache_->Idle());
}

TEST_F(CacheDrainTest, DrainWritesReferencedBlocksToo) {
  Start();
  (void)Store(kAlice, Sequence(1, 2));
  Drain();
  EXPECT_TRUE(Presence(TestHash(1, 1)).disk);
}

TEST_F(CacheDrainTest, DrainEndsWhenTheDiskCannotHoldEverything) {
  Start({.pool_blocks = 16, .disk_slots = 8});
  Put(Sequence(1, 16));
  Drain();
  EXPECT_LE(cache_->Gauges().disk_blocks, 8u);
}

TEST_F(CacheDrainTest, DrainEndsWhenHostHasNoRoomToPassBlocksThrough) {
  CacheSetup setup{.pool_blocks = 16, .host_slots = 8, .disk_slots = 32};
  Start(setup);
  Put(Sequence(1, 8), RetentionClass::kMemory);
  ASSERT_TRUE(cache_->Pin(kAlice, pool_.id, Sequence(1, 8), 60 * 60 * 1000));
  EvictFromPool();
  Put(Sequence(2, 4));
  bool done = false;
  cache_->Drain([&] { done = true; });
  for (int i = 0; i < 10; ++i) AdvanceAndTick(1000);
  EXPECT_TRUE(done);
}

TEST_F(CacheDrainTest, StoppedDrainEndsWhatIsUnderWayAndBeginsNoMore) {
  CacheSetup setup;
  setup.options.max_disk_write_bytes = 1;  // one write at a time
  Start(setup);
  Put(Sequence(1, 10));
  bool done = false;
  cache_->Drain([&] { done = true; });
  while (machine_->disk_writes() == 0) ASSERT_TRUE(machine_->loop.RunOne());
  cache_->StopDraining();
  Settle();
  EXPECT_TRUE(cache_->Idle());
  EXPECT_TRUE(done);
  const uint64_t written = cache_->stats().disk_write_blocks;
  EXPECT_GE(written, 1u);
  EXPECT_LE(written, 2u);
  EXPECT_EQ(cache_->Gauges().unpersisted_blocks, 10 - written);
  EXPECT_EQ(cache_->Gauges().disk_persisted, written);
}

TEST_F(CacheDrainTest, DrainWithoutADiskIsDone) {
  Start({.disk_slots = 0});
  Put(Sequence(1, 2));
  Drain();
}

TEST_F(CacheDrainTest, DrainWalksTheDirectoryInParts) {
  const auto events_of_a_drain = [this](uint32_t part_rows) {
    CacheSetup setup;
    setup.options.drain_part_rows = part_rows;
    cache_.reset();
    Start(setup);
    Put(Sequence(1, 12));
    Drain();
    bool done = false;
    cache_->Drain([&] { done = true; });
    int events = 0;
    while (!done && machine_->loop.RunOneOf(FakeLoop::kPosted)) ++events;
    EXPECT_TRUE(done);
    return events;
  };
  // The first part is walked in the call, each of the others in an event of its own.
  EXPECT_EQ(events_of_a_drain(1000), 1);  // the writes
  EXPECT_EQ(events_of_a_drain(6), 1);
  EXPECT_EQ(events_of_a_drain(4), 2);
  EXPECT_EQ(events_of_a_drain(3), 3);
}

TEST_F(CacheDrainTest, ADrainWritesWhatIsCommittedMeanwhileWithoutWaitingForItToBeIdle) {
  Start({.disk_slots = 32});
  Put(Sequence(1, 4));
  machine_->loop.Hold(file().source());
  bool done = false;
  cache_->Drain([&] { done = true; });
  Settle();
  EXPECT_FALSE(done);
  Put(Sequence(2, 4));
  machine_->loop.LetGo(file().source());
  Settle();
  EXPECT_TRUE(done);
  for (const BlockHash& hash : Sequence(2, 4)) EXPECT_TRUE(Presence(hash).disk);
}

TEST_F(CacheDrainTest, ADrainQueuesWritesInParts) {
  CacheSetup setup{.pool_blocks = 32, .host_slots = 32, .disk_slots = 64};
  setup.options.drain_part_rows = 4;
  setup.options.pool_clean_fraction = 0;
  setup.options.host_clean_fraction = 0;
  Start(setup);
  Put(Sequence(1, 24));
  machine_->loop.Hold(machine_->device->source());
  const auto asked = [this] {
    const CacheGauges gauges = cache_->Gauges();
    return gauges.offloads_queued + gauges.offloads_in_flight;
  };
  bool done = false;
  cache_->Drain([&] { done = true; });
  EXPECT_LE(asked(), 4u);
  for (uint64_t before = asked(); machine_->loop.RunOne(); before = asked()) {
    EXPECT_LE(asked() - before, 4u);
  }
  EXPECT_EQ(asked(), 24u);
  machine_->loop.LetGo(machine_->device->source());
  Settle();
  EXPECT_TRUE(done);
  EXPECT_EQ(cache_->Gauges().disk_persisted, 24u);
}

}  // namespace
}  // namespace kvtier
