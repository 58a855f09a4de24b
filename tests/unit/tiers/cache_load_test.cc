// SPDX-License-Identifier: Apache-2.0
// Loads from host and disk: sharing, order of reports, failures.

#include <algorithm>

#include "tests/unit/tiers/cache_fixture.h"

namespace kvtier {
namespace {

using ::testing::ElementsAre;

class CacheLoadTest : public CacheTest {
 protected:
  // Leaves `hashes` on disk only.
  void PutOnDisk(const Hashes& hashes) {
    Put(hashes);
    DrainAndRestart();
    for (const BlockHash& hash : hashes) ASSERT_TRUE(Presence(hash).disk);
  }
  // Leaves them in host memory only.
  void PutInHost(const Hashes& hashes) {
    Put(hashes);
    EvictFromPool();
    for (const BlockHash& hash : hashes) ASSERT_TRUE(Presence(hash).host);
  }
  // REQUIRES: the drive is held.
  void ReadOneEachSecond(int reads) {
    for (int i = 0; i < reads; ++i) {
      AdvanceAndTick(1'000);
      ASSERT_TRUE(machine_->loop.RunOneOf(file().source())) << i;
      Settle();
    }
  }
  // How many blocks are still on their way when an acquire of these has all of them.
  uint64_t LeftToLoadBehind(const Hashes& hashes) {
    const PendingAcquire answer = BeginAcquire(kAlice, hashes);
    const auto done = [&] {
      return !progress_.empty() && progress_.back().finished && answer.answered();
    };
    while (!done() && machine_->loop.RunOne()) {
    }
    EXPECT_EQ(progress_.back().ready, hashes.size());
    const uint64_t left = PoolGaugesNow().loading;
    Settle();
    return left;
  }
};

TEST_F(CacheLoadTest, ResidentHitsNeedNoLoad) {
  Start();
  Put(Sequence(1, 3));
  EXPECT_EQ(Acquire(kAlice, Sequence(1, 3)).load, LoadId(0));
}

TEST_F(CacheLoadTest, ReplyComesBeforeTheBytes) {
  Start();
  PutInHost(Sequence(1, 2));
  machine_->loop.Hold(machine_->device->source());
  const PendingAcquire answer = BeginAcquire(kAlice, Sequence(1, 2));
  ASSERT_TRUE(answer.succeeded());
  EXPECT_NE(answer.reply().load, LoadId(0));
  EXPECT_TRUE(progress_.empty());
  machine_->loop.LetGo(machine_->device->source());
  Settle();
  EXPECT_EQ(LastProgress(answer.reply().load).ready, 2u);
  EXPECT_TRUE(LastProgress(answer.reply().load).finished);
}

TEST_F(CacheLoadTest, LoadFromHostReportsItsSessionAndId) {
  Start();
  PutInHost(Sequence(1, 1));
  const AcquireReply reply = Acquire(kBob, Sequence(1, 1));
  EXPECT_EQ(session_of_load_[reply.load], kBob);
  EXPECT_EQ(LastProgress(reply.load).miss, MissReason::kNone);
}

TEST_F(CacheLoadTest, ProgressIsReportedInPrefixOrderWhateverArrivesFirst) {
  Start();
  PutOnDisk(Sequence(1, 8));
  machine_->loop.Shuffle(7);
  const PendingAcquire answer = BeginAcquire(kAlice, Sequence(1, 8));
  uint32_t ready = 0;
  bool finished = false;
  while (machine_->loop.RunOne()) {
    for (const LoadProgress& progress : progress_) {
      EXPECT_FALSE(finished);
      EXPECT_GE(progress.ready, ready);
      ready = progress.ready;
      finished = progress.finished;
    }
    progress_.clear();
    if (!answer.answered()) continue;
    for (uint32_t i = 0; i < ready; ++i) {
      EXPECT_TRUE(MatchesHash(TestHash(1, i), Bytes(answer.reply().hits[i].handle)));
    }
  }
  EXPECT_EQ(ready, 8u);
  EXPECT_TRUE(finished);
}

TEST_F(CacheLoadTest, ResidentPrefixCountsAsReady) {
  Start({.pool_blocks = 8});
  Put(Sequence(1, 8));
  Release(kBob, Acquire(kBob, {}, 3).new_blocks);
  const PendingAcquire answer = BeginAcquire(kAlice, Sequence(1, 8));
  ASSERT_TRUE(answer.succeeded());
  EXPECT_EQ(answer.reply().hits[4].tier, Tier::kPool);
  EXPECT_EQ(answer.reply().hits[5].tier, Tier::kHost);
  Settle();
  ASSERT_FALSE(progress_.empty());
  EXPECT_GE(progress_.front().ready, 6u);
  EXPECT_EQ(LastProgress(answer.reply().load).ready, 8u);
}

TEST_F(CacheLoadTest, TwoSessionsShareOneRead) {
  Start();
  PutOnDisk(Sequence(1, 1));
  const uint64_t reads_before = machine_->disk_reads();
  const PendingAcquire alice = BeginAcquire(kAlice, Sequence(1, 1));
  const PendingAcquire bob = BeginAcquire(kBob, Sequence(1, 1));
  Settle();
  EXPECT_EQ(HandlesOf(alice.reply()), HandlesOf(bob.reply()));
  EXPECT_EQ(machine_->disk_reads() - reads_before, 1u);
  EXPECT_EQ(LastProgress(alice.reply().load).ready, 1u);
  EXPECT_EQ(LastProgress(bob.reply().load).ready, 1u);
}

TEST_F(CacheLoadTest, LoadGoesOnForOthersWhenItsFirstSessionCloses) {
  Start();
  PutOnDisk(Sequence(1, 2));
  const PendingAcquire alice = BeginAcquire(kAlice, Sequence(1, 2));
  const PendingAcquire bob = BeginAcquire(kBob, Sequence(1, 2));
  cache_->CloseSession(kAlice);
  Settle();
  EXPECT_EQ(LastProgress(bob.reply().load).ready, 2u);
  for (const LoadProgress& progress : progress_) {
    EXPECT_EQ(progress.load, bob.reply().load);
  }
}

TEST_F(CacheLoadTest, FailedCopyGivesTheReadyPrefixAndAReason) {
  Start({.pool_blocks = 8});
  Put(Sequence(1, 8));
  Release(kBob, Acquire(kBob, {}, 3).new_blocks);
  machine_->device->FailNextCopies(1);
  const AcquireReply reply = Acquire(kAlice, Sequence(1, 8));
  const LoadProgress last = LastProgress(reply.load);
  EXPECT_TRUE(last.finished);
  EXPECT_EQ(last.ready, 5u);
  EXPECT_EQ(last.miss, MissReason::kCopyFailed);
  EXPECT_TRUE(MatchesHash(TestHash(1, 4), Bytes(reply.hits[4].handle)));
}

TEST_F(CacheLoadTest, BlocksOfAFailedLoadAreReleasedLikeOthers) {
  Start();
  PutInHost(Sequence(1, 2));
  machine_->device->FailNextCopies(10);
  const AcquireReply reply = Acquire(kAlice, Sequence(1, 2));
  EXPECT_EQ(LastProgress(reply.load).ready, 0u);
  Release(kAlice, HandlesOf(reply));
  Settle();
  EXPECT_EQ(PoolGaugesNow().referenced, 0u);
  EXPECT_EQ(PoolGaugesNow().loading, 0u);
}

TEST_F(CacheLoadTest, BlockWhoseLoadFailedIsNotServedFromThePool) {
  Start();
  PutInHost(Sequence(1, 1));
  machine_->device->FailNextCopies(10);
  const AcquireReply failed = Acquire(kAlice, Sequence(1, 1));
  ASSERT_EQ(LastProgress(failed.load).ready, 0u);
  machine_->device->FailNextCopies(0);
  const AcquireReply reply = Acquire(kBob, Sequence(1, 1));
  if (reply.hits.empty()) return;  // forgotten altogether: a miss is allowed, a lie is not
  EXPECT_EQ(reply.hits[0].tier, Tier::kHost);
  EXPECT_NE(reply.hits[0].handle, failed.hits[0].handle);
  EXPECT_TRUE(MatchesHash(TestHash(1, 0), Bytes(reply.hits[0].handle)));
}

TEST_F(CacheLoadTest, ReleaseDuringALoadIsAllowed) {
  Start();
  PutOnDisk(Sequence(1, 2));
  const PendingAcquire answer = BeginAcquire(kAlice, Sequence(1, 2));
  Release(kAlice, HandlesOf(answer.reply()));
  Settle();
  EXPECT_EQ(PoolGaugesNow().referenced, 0u);
  EXPECT_EQ(PoolGaugesNow().loading, 0u);
  Use(Sequence(1, 2));
}

TEST_F(CacheLoadTest, PrefetchBringsThePrefixToThePoolWithoutReferences) {
  Start();
  PutOnDisk(Sequence(1, 3));
  Hashes hashes = Sequence(1, 3);
  hashes.push_back(TestHash(5, 5));
  EXPECT_EQ(cache_->Prefetch(pool_.id, hashes), 3u);
  Settle();
  EXPECT_EQ(PoolGaugesNow().referenced, 0u);
  EXPECT_THAT(TiersOf(Acquire(kAlice, Sequence(1, 3))),
              ElementsAre(Tier::kPool, Tier::kPool, Tier::kPool));
}

TEST_F(CacheLoadTest, PrefetchOfUnknownBlocksDoesNothing) {
  Start();
  EXPECT_EQ(cache_->Prefetch(pool_.id, Sequence(1, 3)), 0u);
  Settle();
  EXPECT_EQ(PoolGaugesNow().free, pool_.blocks);
}

TEST_F(CacheLoadTest, PrefetchNeverTakesReferencedBlocks) {
  Start({.pool_blocks = 4});
  PutOnDisk(Sequence(1, 4));
  const Handles held = Acquire(kBob, {}, 3).new_blocks;
  EXPECT_LE(cache_->Prefetch(pool_.id, Sequence(1, 4)), 1u);
  Settle();
  EXPECT_EQ(PoolGaugesNow().private_blocks, 3u);
}

// One block at a time, so that the order shows.
CacheSetup OneAtATime() {
  CacheSetup setup{.pool_blocks = 32, .host_slots = 32, .disk_slots = 64};
  setup.options.max_load_bytes = 4 * kKiB;
  setup.options.max_disk_read_bytes = 4 * kKiB;
  return setup;
}

TEST_F(CacheLoadTest, WhoWaitsForDiskGoesBeforeWhatIsPrefetched) {
  Start(OneAtATime());
  PutOnDisk(Sequence(1, 12));
  Put(Sequence(2, 2));
  DrainAndRestart();
  ASSERT_EQ(cache_->Prefetch(pool_.id, Sequence(1, 12)), 12u);
  EXPECT_GE(LeftToLoadBehind(Sequence(2, 2)), 10u);
}

TEST_F(CacheLoadTest, WhoWaitsForHostGoesBeforeWhatIsPrefetched) {
  Start(OneAtATime());
  PutInHost(Sequence(1, 12));
  Put(Sequence(2, 2));
  EvictFromPool();
  ASSERT_EQ(cache_->Prefetch(pool_.id, Sequence(1, 12)), 12u);
  EXPECT_GE(LeftToLoadBehind(Sequence(2, 2)), 10u);
}

TEST_F(CacheLoadTest, APrefetchedReadGoesFirstOnceSomebodyWaitsForIt) {
  Start(OneAtATime());
  Put(Sequence(1, 12));
  Put(Sequence(2, 2));
  DrainAndRestart();
  ASSERT_EQ(cache_->Prefetch(pool_.id, Sequence(1, 12)), 12u);
  ASSERT_EQ(cache_->Prefetch(pool_.id, Sequence(2, 2)), 2u);
  EXPECT_GE(LeftToLoadBehind(Sequence(2, 2)), 10u);
}

TEST_F(CacheLoadTest, APrefetchedCopyGoesFirstOnceSomebodyWaitsForIt) {
  Start(OneAtATime());
  Put(Sequence(1, 12));
  Put(Sequence(2, 2));
  EvictFromPool();
  ASSERT_EQ(cache_->Prefetch(pool_.id, Sequence(1, 12)), 12u);
  ASSERT_EQ(cache_->Prefetch(pool_.id, Sequence(2, 2)), 2u);
  EXPECT_GE(LeftToLoadBehind(Sequence(2, 2)), 10u);
}

TEST_F(CacheLoadTest, LoadLargerThanTheByteBoundCompletes) {
  CacheSetup setup;
  setup.options.max_load_bytes = kBlockBytes;
  setup.options.max_disk_read_bytes = kBlockBytes;
  setup.options.max_offload_bytes = kBlockBytes;
  setup.options.max_disk_write_bytes = kBlockBytes;
  Start(setup);
  PutOnDisk(Sequence(1, 8));
  const AcquireReply reply = Acquire(kAlice, Sequence(1, 8));
  EXPECT_EQ(LastProgress(reply.load).ready, 8u);
}

TEST_F(CacheLoadTest, ABatchOfDiskHitsTakesTwoEventsAfterTheAcquire) {
  Start({.pool_blocks = 32, .host_slots = 32, .disk_slots = 64});
  Put(Sequence(1, 24));
  DrainAndRestart();
  file().CompleteReadsTogether();
  const PendingAcquire load = BeginAcquire(kAlice, Sequence(1, 24));
  ASSERT_TRUE(load.succeeded());
  // One when all have been read and checked, in which their copies begin; one when these have
  // ended.
  EXPECT_EQ(machine_->loop.RunAll(), 2u);
  EXPECT_EQ(LastProgress(load.reply().load).ready, 24u);
}

TEST_F(CacheLoadTest, ReadsDoNotWaitForTheWritesOfAHostThatIsFullOfUnwrittenBlocks) {
  CacheSetup setup{.pool_blocks = 48, .host_slots = 16, .disk_slots = 64};
  setup.options.pool_clean_fraction = 0.9;
  setup.options.host_clean_fraction = 0;
  Start(setup);
  PutOnDisk(Sequence(1, 8));
  file().HoldWrites();
  Put(Sequence(2, 24));
  const auto in_host = [this] {
    const Hashes hashes = Sequence(2, 24);
    return std::ranges::count_if(hashes, [this](const auto& hash) { return Presence(hash).host; });
  };
  ASSERT_EQ(in_host(), 16);
  const PendingAcquire load = BeginAcquire(kAlice, Sequence(1, 8));
  Settle();
  ASSERT_TRUE(load.succeeded());
  ASSERT_EQ(PoolGaugesNow().loading, 8u);
  machine_->clock.Advance(10);
  // The slab's header, and one block: its slot is enough for all that is read.
  for (int i = 0; i < 2; ++i) {
    file().LetWritesGo(1);
    Settle();
  }
  EXPECT_EQ(LastProgress(load.reply().load).ready, 8u);
  EXPECT_EQ(in_host(), 15);
}

// A drive is faster than the wait: without these slots, all but one would be lost to the reads.
TEST_F(CacheLoadTest, SlotsOfBlocksThatArrivedBeforeTheWaitWasLongGoRoundAmongReads) {
  CacheSetup setup{.pool_blocks = 48, .host_slots = 16, .disk_slots = 64};
  setup.options.pool_clean_fraction = 0.9;
  setup.options.host_clean_fraction = 0;
  Start(setup);
  PutOnDisk(Sequence(1, 12));
  file().HoldWrites();
  Put(Sequence(2, 24));
  const auto read_blocks_in_host = [this] {
    const Hashes hashes = Sequence(1, 12);
    return std::ranges::count_if(hashes, [this](const auto& hash) { return Presence(hash).host; });
  };
  const PendingAcquire load = BeginAcquire(kAlice, Sequence(1, 12));
  Settle();
  ASSERT_EQ(PoolGaugesNow().loading, 12u);
  // Four blocks, whose slots the first four reads fill at once.
  for (int i = 0; i < 4; ++i) {
    file().LetWritesGo(1);
    Settle();
  }
  EXPECT_EQ(read_blocks_in_host(), 4);
  EXPECT_EQ(LastProgress(load.reply().load).ready, 4u);
  AdvanceAndTick(10);
  EXPECT_EQ(LastProgress(load.reply().load).ready, 12u) << "no more writes had to end";
  EXPECT_EQ(read_blocks_in_host(), 4) << "no read waited for the slots of the last ones";
  for (const BlockHash& first : Sequence(1, 8)) EXPECT_FALSE(Presence(first).host);
}

TEST_F(CacheLoadTest, FewWritesAreInFlightWhileClientsWaitForReads) {
  CacheSetup setup{.pool_blocks = 32, .host_slots = 32, .disk_slots = 64};
  setup.options.max_disk_write_bytes = 8 * 2 * kBlockBytes;
  Start(setup);
  PutOnDisk(Sequence(1, 4));
  // The first write to a slab since the restart reads its header.
  Put(Sequence(3, 1));
  Drain();
  Put(Sequence(2, 8));
  machine_->loop.Hold(file().source());
  const PendingAcquire load = BeginAcquire(kAlice, Sequence(1, 4));
  const uint64_t writes_before = file().writes();
  bool drained = false;
  cache_->Drain([&] { drained = true; });
  machine_->loop.RunAll();
  EXPECT_EQ(file().writes() - writes_before, 1u);
  machine_->loop.LetGo(file().source());
  Settle();
  EXPECT_TRUE(drained);
  EXPECT_EQ(LastProgress(load.reply().load).ready, 4u);
}

TEST_F(CacheLoadTest, OneBlockIsWrittenForEachThirtyTwoThatAreReadBesideManyReads) {
  Start({.pool_blocks = 1024, .host_slots = 1024, .disk_slots = 2048});
  // Slots of 8 KiB, so that more than 4 MiB are read at once.
  PutOnDisk(Sequence(1, 640));
  // The first write to a slab reads its header.
  Put(Sequence(3, 1));
  Drain();
  Put(Sequence(2, 64));
  machine_->loop.Hold(file().source());
  const PendingAcquire load = BeginAcquire(kAlice, Sequence(1, 640));
  const uint64_t writes_before = file().writes();
  const uint64_t read_before = cache_->stats().disk_read_blocks;
  bool drained = false;
  cache_->Drain([&] { drained = true; });
  machine_->loop.RunAll();
  const auto read = [&](uint64_t blocks) {
    while (cache_->stats().disk_read_blocks - read_before < blocks) {
      ASSERT_TRUE(machine_->loop.RunOneOf(file().source()));
      machine_->loop.RunAll();
    }
  };
  read(31);
  EXPECT_EQ(file().writes() - writes_before, 0u);
  read(32);
  EXPECT_EQ(file().writes() - writes_before, 1u);
  machine_->loop.LetGo(file().source());
  Settle();
  EXPECT_TRUE(drained);
  EXPECT_EQ(LastProgress(load.reply().load).ready, 640u);
}

TEST_F(CacheLoadTest, DiskHitLeavesAHostCopy) {
  Start();
  PutOnDisk(Sequence(1, 1));
  Use(Sequence(1, 1));
  EXPECT_TRUE(Presence(TestHash(1, 0)).host);
  EXPECT_TRUE(Presence(TestHash(1, 0)).disk);
}

TEST_F(CacheLoadTest, LoadLargerThanHostWaitsForItsOwnBlocksToPass) {
  Start({.pool_blocks = 32, .host_slots = 8, .disk_slots = 64});
  Put(Sequence(1, 24));
  DrainAndRestart();
  machine_->loop.Hold(machine_->device->source());
  const PendingAcquire load = BeginAcquire(kAlice, Sequence(1, 24));
  // Every slot of host now holds a block that waits for its copy to the pool.
  Settle();
  machine_->loop.LetGo(machine_->device->source());
  Settle();
  ASSERT_TRUE(load.succeeded());
  EXPECT_EQ(LastProgress(load.reply().load).ready, 24u);
}

TEST_F(CacheLoadTest, ALongLineIsReadToItsEndHoweverLongTheDiskTakes) {
  Start(OneAtATime());
  PutOnDisk(Sequence(1, 24));
  machine_->loop.Hold(file().source());
  const PendingAcquire load = BeginAcquire(kAlice, Sequence(1, 24));
  ReadOneEachSecond(24);
  ASSERT_TRUE(load.succeeded());
  EXPECT_EQ(LastProgress(load.reply().load).ready, 24u);
}

TEST_F(CacheLoadTest, ALongPrefetchIsReadToItsEndHoweverLongTheDiskTakes) {
  Start(OneAtATime());
  PutOnDisk(Sequence(1, 24));
  machine_->loop.Hold(file().source());
  ASSERT_EQ(cache_->Prefetch(pool_.id, Sequence(1, 24)), 24u);
  ReadOneEachSecond(24);
  EXPECT_EQ(Acquire(kAlice, Sequence(1, 24)).load, LoadId(0)) << "the pool has all of it";
}

TEST_F(CacheLoadTest, APrefetchThatOthersKeepFromTheDiskGivesItsBlocksBack) {
  Start(OneAtATime());
  PutOnDisk(Sequence(1, 12));
  Put(Sequence(2, 4));
  DrainAndRestart();
  machine_->loop.Hold(file().source());
  const PendingAcquire load = BeginAcquire(kAlice, Sequence(1, 12));
  ASSERT_EQ(cache_->Prefetch(pool_.id, Sequence(2, 4)), 4u);
  ReadOneEachSecond(12);
  EXPECT_EQ(LastProgress(load.reply().load).ready, 12u);
  EXPECT_EQ(PoolGaugesNow().loading, 0u);
  for (const BlockHash& hash : Sequence(2, 4)) EXPECT_FALSE(Presence(hash).pool);
}

TEST_F(CacheLoadTest, ADriveThatHangsIsNotWaitedForWithoutEnd) {
  Start(OneAtATime());
  PutOnDisk(Sequence(1, 4));
  machine_->loop.Hold(file().source());
  const PendingAcquire load = BeginAcquire(kAlice, Sequence(1, 4));
  AdvanceAndTick(4'000);
  EXPECT_EQ(PoolGaugesNow().loading, 4u);
  AdvanceAndTick(2'000);
  EXPECT_EQ(PoolGaugesNow().loading, 1u) << "the drive may still write to that one's slot";
  machine_->loop.LetGo(file().source());
  Settle();
  EXPECT_EQ(LastProgress(load.reply().load).ready, 1u);
  EXPECT_EQ(LastProgress(load.reply().load).miss, MissReason::kReadError);
}

TEST_F(CacheLoadTest, AReadThatGetsNoSlotInHostIsAMissInTime) {
  CacheSetup setup{.pool_blocks = 48, .host_slots = 16, .disk_slots = 64};
  setup.options.pool_clean_fraction = 0.9;
  setup.options.host_clean_fraction = 0;
  Start(setup);
  PutOnDisk(Sequence(1, 8));
  file().HoldWrites();
  Put(Sequence(2, 24));
  const PendingAcquire load = BeginAcquire(kAlice, Sequence(1, 8));
  AdvanceAndTick(4'000);
  EXPECT_EQ(PoolGaugesNow().loading, 8u);
  AdvanceAndTick(2'000);
  EXPECT_EQ(PoolGaugesNow().loading, 0u);
  EXPECT_EQ(LastProgress(load.reply().load).ready, 0u);
  EXPECT_EQ(LastProgress(load.reply().load).miss, MissReason::kHostFull);
}

TEST_F(CacheLoadTest, ALoadFromAnotherPoolGoesOnAsLongAsCopiesEnd) {
  Start({.devices = 2, .pool_blocks = 32, .host_slots = 8, .disk_slots = 0});
  Put(Sequence(1, 24));
  UseDevice(1);
  machine_->loop.Hold(machine_->devices[0]->source());
  const PendingAcquire load = BeginAcquire(kAlice, Sequence(1, 24));
  for (int i = 0; i < 3; ++i) {
    AdvanceAndTick(3'000);
    while (machine_->loop.RunOneOf(machine_->devices[0]->source())) {
    }
    Settle();
  }
  ASSERT_TRUE(load.succeeded());
  EXPECT_EQ(LastProgress(load.reply().load).ready, 24u);
}

}  // namespace
}  // namespace kvtier
