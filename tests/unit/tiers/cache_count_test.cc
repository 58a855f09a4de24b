// SPDX-License-Identifier: Apache-2.0
// The values of a load's counter, and loads in layers.

#include <cstring>
#include <set>

#include "tests/unit/tiers/cache_fixture.h"

namespace kvtier {
namespace {

constexpr uint32_t kLayers = 4;

class CacheCountTest : public CacheTest {
 protected:
  // Leaves `hashes` in host memory only, or on disk only.
  void PutInHost(const Hashes& hashes) {
    Put(hashes);
    EvictFromPool();
  }
  void PutOnDisk(const Hashes& hashes) {
    Put(hashes);
    DrainAndRestart();
  }
  // Runs the device's events one by one; after each, all counted blocks must be there.
  void RunAndCheck(const AcquireReply& reply, const Hashes& hashes, uint32_t layers) {
    uint32_t before = 0;
    do {
      const uint32_t done = Counted(reply);
      EXPECT_GE(done, before);
      before = done;
      if (done > reply.counter->steps()) continue;
      for (size_t i = 0; i < hashes.size() && (layers > 0 || i < done); ++i) {
        std::vector<std::byte> expected(kBlockBytes);
        FillFromHash(hashes[i], expected);
        const size_t bytes = layers > 0 ? kBlockBytes / layers * done : kBlockBytes;
        EXPECT_EQ(std::memcmp(Bytes(reply.hits[i].handle).data(), expected.data(), bytes), 0)
            << "block " << i << " at " << done;
      }
    } while (machine_->loop.RunOne());
  }
};

TEST_F(CacheCountTest, WhatIsResidentIsNotCounted) {
  Start();
  Put(Sequence(1, 2));
  EXPECT_EQ(BeginCounted(kAlice, Sequence(1, 2)).reply().counter, nullptr);
}

TEST_F(CacheCountTest, BlocksAreCountedAsTheyArrive) {
  Start();
  PutInHost(Sequence(1, 6));
  const AcquireReply reply = BeginCounted(kAlice, Sequence(1, 6)).reply();
  ASSERT_NE(reply.counter, nullptr);
  EXPECT_EQ(reply.counter->steps(), 6u);
  EXPECT_EQ(Counted(reply), 0u);
  RunAndCheck(reply, Sequence(1, 6), 0);
  EXPECT_EQ(Counted(reply), 6u);
}

TEST_F(CacheCountTest, TheDeviceCountsBeforeTheCacheHears) {
  Start();
  PutInHost(Sequence(1, 3));
  const AcquireReply reply = BeginCounted(kAlice, Sequence(1, 3)).reply();
  progress_.clear();
  ASSERT_TRUE(machine_->loop.RunOneOf(machine_->device->source()));
  EXPECT_EQ(Counted(reply), 3u);
}

TEST_F(CacheCountTest, BlocksFromDiskAreCountedToo) {
  Start();
  PutOnDisk(Sequence(1, 5));
  const AcquireReply reply = BeginCounted(kAlice, Sequence(1, 5)).reply();
  machine_->loop.Shuffle(3);
  RunAndCheck(reply, Sequence(1, 5), 0);
  EXPECT_EQ(Counted(reply), 5u);
}

TEST_F(CacheCountTest, WhatAnotherLoadBroughtIsCounted) {
  Start();
  PutOnDisk(Sequence(1, 4));
  const AcquireReply first = BeginCounted(kAlice, Sequence(1, 4)).reply();
  const AcquireReply second = BeginCounted(kBob, Sequence(1, 4)).reply();
  Settle();
  EXPECT_EQ(Counted(first), 4u);
  EXPECT_EQ(Counted(second), 4u);
}

TEST_F(CacheCountTest, LoadsOfOneSessionAreCountedEachForItself) {
  Start();
  PutInHost(Sequence(1, 5));
  PutInHost(Sequence(2, 3));
  PutInHost(Sequence(3, 4));
  const AcquireReply whole = BeginCounted(kAlice, Sequence(1, 5)).reply();
  const AcquireReply layered = BeginCounted(kAlice, Sequence(2, 3), kLayers).reply();
  const AcquireReply last = BeginCounted(kAlice, Sequence(3, 4)).reply();
  const AcquireReply again = BeginCounted(kAlice, Sequence(1, 2)).reply();
  const std::set<uint32_t> offsets = {whole.counter->offset(), layered.counter->offset(),
                                      last.counter->offset(), again.counter->offset()};
  EXPECT_EQ(offsets.size(), 4u);
  machine_->loop.Shuffle(11);
  RunAndCheck(whole, Sequence(1, 5), 0);
  RunAndCheck(layered, Sequence(2, 3), kLayers);
  EXPECT_EQ(Counted(whole), 5u);
  EXPECT_EQ(Counted(layered), kLayers);
  EXPECT_EQ(Counted(last), 4u);
  EXPECT_EQ(Counted(again), 2u);
}

TEST_F(CacheCountTest, AClosedSessionsSlotsServeOthersAgain) {
  Start();
  PutInHost(Sequence(1, 4));
  std::vector<std::shared_ptr<StepCounter>> taken;
  while (auto counter = counters_->Open(1)) taken.push_back(std::move(counter));
  taken.pop_back();
  machine_->loop.Hold(machine_->device->source());
  ASSERT_NE(BeginCounted(kAlice, Sequence(1, 4)).reply().counter, nullptr);
  EXPECT_EQ(counters_->Open(1), nullptr);
  cache_->CloseSession(kAlice);
  // The device may still count copies under way: the slot is not free yet.
  EXPECT_EQ(counters_->Open(1), nullptr);
  machine_->loop.LetGo(machine_->device->source());
  Settle();
  EXPECT_NE(counters_->Open(1), nullptr);
}

TEST_F(CacheCountTest, AFailedLoadPassesEveryStep) {
  Start();
  PutInHost(Sequence(1, 4));
  machine_->device->FailNextCopies(10);
  const AcquireReply reply = BeginCounted(kAlice, Sequence(1, 4)).reply();
  Settle();
  EXPECT_EQ(LastProgress(reply.load).ready, 0u);
  EXPECT_GT(Counted(reply), 4u);
}

TEST_F(CacheCountTest, AClosedSessionsCountersPassEveryStep) {
  Start();
  PutInHost(Sequence(1, 4));
  machine_->loop.Hold(machine_->device->source());
  const AcquireReply reply = BeginCounted(kAlice, Sequence(1, 4)).reply();
  cache_->CloseSession(kAlice);
  EXPECT_GT(Counted(reply), 4u);
  machine_->loop.LetGo(machine_->device->source());
  Settle();
  EXPECT_GT(Counted(reply), 4u);
}

TEST_F(CacheCountTest, WithoutAFreeSlotALoadIsNotCounted) {
  Start();
  PutInHost(Sequence(1, 1));
  std::vector<std::shared_ptr<StepCounter>> taken;
  while (auto counter = counters_->Open(1)) taken.push_back(std::move(counter));
  const AcquireReply reply = BeginCounted(kAlice, Sequence(1, 1)).reply();
  EXPECT_EQ(reply.counter, nullptr);
  EXPECT_EQ(cache_->stats().loads_without_counter, 1u);
  Settle();
  EXPECT_EQ(LastProgress(reply.load).ready, 1u);
}

TEST_F(CacheCountTest, ALoadThatIsCountedOrNeverAskedForItIsNoFallback) {
  Start();
  PutInHost(Sequence(1, 2));
  EXPECT_NE(BeginCounted(kAlice, Sequence(1, 1)).reply().counter, nullptr);
  EXPECT_EQ(BeginAcquire(kAlice, Sequence(1, 2)).reply().counter, nullptr);
  Settle();
  EXPECT_EQ(cache_->stats().loads_without_counter, 0u);
}

TEST_F(CacheCountTest, LayersOfAllBlocksComeInOrder) {
  Start();
  PutInHost(Sequence(1, 6));
  const AcquireReply reply = BeginCounted(kAlice, Sequence(1, 6), kLayers).reply();
  ASSERT_NE(reply.counter, nullptr);
  EXPECT_EQ(reply.counter->steps(), kLayers);
  ASSERT_TRUE(machine_->loop.RunOneOf(machine_->device->source()));
  EXPECT_EQ(Counted(reply), 1u);
  EXPECT_EQ(LastProgress(reply.load).ready, 0u);
  RunAndCheck(reply, Sequence(1, 6), kLayers);
  EXPECT_EQ(Counted(reply), kLayers);
  EXPECT_EQ(LastProgress(reply.load).ready, 6u);
  EXPECT_TRUE(LastProgress(reply.load).finished);
}

TEST_F(CacheCountTest, NoLayerIsCompleteBeforeTheBlocksFromDiskAreThere) {
  Start();
  // The first three come up from disk and stay in host; the others are on disk alone.
  PutOnDisk(Sequence(1, 6));
  Use(Sequence(1, 3));
  EvictFromPool();
  machine_->loop.Shuffle(5);
  const AcquireReply reply = BeginCounted(kAlice, Sequence(1, 6), kLayers).reply();
  EXPECT_EQ(reply.hits[0].tier, Tier::kHost);
  EXPECT_EQ(reply.hits[5].tier, Tier::kDisk);
  RunAndCheck(reply, Sequence(1, 6), kLayers);
  EXPECT_EQ(Counted(reply), kLayers);
  EXPECT_EQ(LastProgress(reply.load).ready, 6u);
}

TEST_F(CacheCountTest, ABlockAskedForTwiceIsLoadedOnce) {
  Start();
  PutInHost(Sequence(1, 2));
  Hashes hashes = Sequence(1, 2);
  hashes.push_back(hashes[0]);
  const AcquireReply reply = BeginCounted(kAlice, hashes, kLayers).reply();
  EXPECT_NE(reply.hits[2].tier, Tier::kPool);
  RunAndCheck(reply, hashes, kLayers);
  EXPECT_EQ(LastProgress(reply.load).ready, 3u);
}

TEST_F(CacheCountTest, AFailedLayerEndsTheLoadBeforeTheBlock) {
  Start();
  PutInHost(Sequence(1, 3));
  const AcquireReply reply = BeginCounted(kAlice, Sequence(1, 3), kLayers).reply();
  ASSERT_TRUE(machine_->loop.RunOneOf(machine_->device->source()));
  EXPECT_EQ(Counted(reply), 1u);
  machine_->device->FailNextCopies(1);
  Settle();
  EXPECT_GT(Counted(reply), kLayers);
  EXPECT_TRUE(LastProgress(reply.load).finished);
  EXPECT_EQ(LastProgress(reply.load).miss, MissReason::kCopyFailed);
  Release(kAlice, HandlesOf(reply));
  Settle();
  EXPECT_EQ(PoolGaugesNow().loading, 0u);
}

TEST_F(CacheCountTest, WhoeverWaitsForABlockInLayersGetsItWhole) {
  Start();
  PutInHost(Sequence(1, 3));
  const AcquireReply layered = BeginCounted(kAlice, Sequence(1, 3), kLayers).reply();
  const AcquireReply plain = BeginCounted(kBob, Sequence(1, 3)).reply();
  EXPECT_EQ(HandlesOf(layered), HandlesOf(plain));
  RunAndCheck(plain, Sequence(1, 3), 0);
  EXPECT_EQ(LastProgress(plain.load).ready, 3u);
}

TEST_F(CacheCountTest, ALoadInLayersThatNobodyWantsAnyMoreIsGivenUp) {
  CacheSetup setup;
  setup.options.max_load_bytes = kBlockBytes;
  Start(setup);
  PutInHost(Sequence(1, 6));
  const AcquireReply reply = BeginCounted(kAlice, Sequence(1, 6), kLayers).reply();
  Release(kAlice, HandlesOf(reply));
  const uint64_t copied = machine_->device->copies_completed();
  Settle();
  EXPECT_LT(machine_->device->copies_completed() - copied, 6 * kLayers);
  EXPECT_EQ(PoolGaugesNow().loading, 0u);
  Use(Sequence(1, 6));
}

TEST_F(CacheCountTest, LayersOfAByteDoNotMakeRequestsOfAnyLength) {
  constexpr uint32_t kManyLayers = kBlockBytes;
  Start();
  PutInHost(Sequence(1, 12));
  machine_->loop.Hold(machine_->device->source());
  const AcquireReply reply = BeginCounted(kAlice, Sequence(1, 12), kManyLayers).reply();
  Settle();
  EXPECT_LE(machine_->device->most_copies(), 4096u);
  EXPECT_LE(machine_->device->copies_requested(), 40'000u) << "of " << 12 * kManyLayers;
  machine_->loop.LetGo(machine_->device->source());
  Settle();
  EXPECT_EQ(Counted(reply), kManyLayers);
  EXPECT_EQ(LastProgress(reply.load).ready, 12u);
}

TEST_F(CacheCountTest, LayersLargerThanTheByteBoundComplete) {
  CacheSetup setup;
  setup.options.max_load_bytes = kBlockBytes;
  Start(setup);
  PutInHost(Sequence(1, 8));
  const AcquireReply reply = BeginCounted(kAlice, Sequence(1, 8), kLayers).reply();
  Settle();
  EXPECT_EQ(Counted(reply), kLayers);
  EXPECT_EQ(LastProgress(reply.load).ready, 8u);
}

}  // namespace
}  // namespace kvtier
