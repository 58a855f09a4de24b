// SPDX-License-Identifier: Apache-2.0
// Acquires of many blocks, which are served in parts: what happens between two of them.

#include <algorithm>
#include <utility>

#include "tests/unit/tiers/cache_fixture.h"

namespace kvtier {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

class CachePartsTest : public CacheTest {
 protected:
  static CacheSetup InPartsOf(uint32_t blocks, CacheSetup setup = {}) {
    setup.options.acquire_part_blocks = blocks;
    return setup;
  }
  // Leaves `hashes` in host memory only.
  void PutInHost(const Hashes& hashes) {
    Put(hashes);
    EvictFromPool();
    for (const BlockHash& hash : hashes) ASSERT_TRUE(Presence(hash).host);
  }
  void RunPart() { ASSERT_TRUE(machine_->loop.RunOneOf(FakeLoop::kPosted)); }
  // Nothing of it is left: neither blocks nor references.
  void ExpectNothingHeld() {
    Settle();
    const PoolGauges pool = PoolGaugesNow();
    EXPECT_EQ(pool.private_blocks, 0u);
    EXPECT_EQ(pool.loading, 0u);
    EXPECT_EQ(pool.referenced, 0u);
    EXPECT_EQ(cache_->Gauges().references, 0u);
    EXPECT_TRUE(cache_->Idle());
  }
};

TEST_F(CachePartsTest, CopiesOfTheFirstPartBeginBeforeTheOthersAreLookedAt) {
  Start(InPartsOf(2));
  PutInHost(Sequence(1, 6));
  machine_->loop.Hold(machine_->device->source());
  const uint64_t requested = machine_->device->copies_requested();
  const PendingAcquire answer = BeginAcquire(kAlice, Sequence(1, 6));
  EXPECT_EQ(machine_->device->copies_requested(), requested + 2);
  EXPECT_FALSE(answer.answered());
  EXPECT_EQ(PoolGaugesNow().loading, 2u) << "no event is longer than a part";
  RunPart();
  EXPECT_EQ(PoolGaugesNow().loading, 4u);
  while (!answer.answered()) RunPart();
  ASSERT_TRUE(answer.succeeded());
  EXPECT_EQ(answer.reply().hits.size(), 6u);
  EXPECT_THAT(TiersOf(answer.reply()), Each(Tier::kHost));
  machine_->loop.LetGo(machine_->device->source());
  Settle();
  EXPECT_EQ(LastProgress(answer.reply().load).ready, 6u);
}

TEST_F(CachePartsTest, PrivateBlocksGetTheirRoomInPartsToo) {
  Start(InPartsOf(3));
  Put(Sequence(1, 16));
  const uint64_t evicted = Drops(Tier::kPool, DropReason::kCleanCopyBelow);
  const PendingAcquire answer = BeginAcquire(kAlice, {}, 8);
  EXPECT_FALSE(answer.answered());
  EXPECT_LE(Drops(Tier::kPool, DropReason::kCleanCopyBelow) - evicted, 3u);
  Settle();
  ASSERT_TRUE(answer.succeeded());
  EXPECT_EQ(answer.reply().new_blocks.size(), 8u);
}

class CachePinnedPoolTest : public CachePartsTest {
 protected:
  static constexpr uint32_t kBlocks = 64;
  static constexpr uint32_t kPart = 4;

  // A pool and a host full of pinned blocks that nothing else has.
  void StartPinned() {
    CacheSetup setup;
    setup.pool_blocks = kBlocks;
    setup.host_slots = kSlotsPerSlab;
    setup.disk_slots = 4 * kBlocks;
    setup.options.search_part_blocks = kPart;
    Start(setup);
    const Hashes in_host = Sequence(1, kSlotsPerSlab);
    Put(in_host, RetentionClass::kMemory);
    EvictFromPool();
    ASSERT_TRUE(cache_->Pin(kAlice, pool_.id, in_host, kPinMs));
    Put(in_pool_, RetentionClass::kMemory);
    ASSERT_TRUE(cache_->Pin(kAlice, pool_.id, in_pool_, kPinMs));
    Settle();
  }
  int CountEvents() {
    int events = 0;
    while (machine_->loop.RunOne()) ++events;
    return events;
  }

  static constexpr int64_t kPinMs = 3'600'000;
  const Hashes in_pool_ = Sequence(2, kBlocks);
};

TEST_F(CachePinnedPoolTest, IsLookedThroughInPartsAndOnceUntilSomethingChanges) {
  StartPinned();
  const PendingAcquire answer = BeginAcquire(kBob, {}, 1);
  Settle();
  EXPECT_FALSE(answer.answered());
  (void)cache_->Release(kBob, pool_.id, {});
  EXPECT_EQ(CountEvents(), 0);
  const Handles used = HandlesOf(Acquire(kBob, {in_pool_[0]}));
  Settle();
  (void)cache_->Release(kBob, pool_.id, used);
  EXPECT_GE(CountEvents(), static_cast<int>(kBlocks / kPart) - 1);
  ASSERT_TRUE(cache_->Pin(kAlice, pool_.id, Hashes{in_pool_[40]}, 0));
  Settle();
  EXPECT_TRUE(answer.succeeded());
  EXPECT_FALSE(Presence(in_pool_[40]).pool);
}

TEST_F(CachePinnedPoolTest, RefusesWhoHasWaitedLongEnough) {
  StartPinned();
  const PendingAcquire answer = BeginAcquire(kBob, {}, 1);
  Settle();
  EXPECT_FALSE(answer.answered());
  // A use of one of them has all looked at anew.
  Release(kBob, HandlesOf(Acquire(kBob, {in_pool_[0]})));
  AdvanceAndTick(60'000);
  Settle();
  ASSERT_TRUE(answer.answered());
  ASSERT_FALSE(answer.succeeded());
  EXPECT_EQ(answer.result().error().reason, "pool_full");
}

TEST_F(CachePartsTest, ALoadIsReportedOnWhenTheClientKnowsIt) {
  Start(InPartsOf(2));
  PutInHost(Sequence(1, 5));
  const PendingAcquire answer = BeginAcquire(kAlice, Sequence(1, 5));
  while (machine_->loop.RunOneOf(machine_->device->source())) {
  }
  EXPECT_TRUE(progress_.empty()) << "the first part has arrived, but who would know what it is";
  Settle();
  ASSERT_TRUE(answer.succeeded());
  EXPECT_EQ(LastProgress(answer.reply().load).ready, 5u);
  EXPECT_TRUE(LastProgress(answer.reply().load).finished);
}

TEST_F(CachePartsTest, TheFirstPartIsCountedBeforeTheLastIsTaken) {
  Start(InPartsOf(2));
  PutInHost(Sequence(1, 5));
  const PendingAcquire answer = BeginCounted(kAlice, Sequence(1, 5));
  while (machine_->loop.RunOneOf(machine_->device->source())) {
  }
  EXPECT_FALSE(answer.answered());
  machine_->loop.Hold(machine_->device->source());
  while (!answer.answered()) RunPart();
  EXPECT_EQ(Counted(answer.reply()), 2u);
  machine_->loop.LetGo(machine_->device->source());
  Settle();
  EXPECT_EQ(Counted(answer.reply()), 5u);
}

TEST_F(CachePartsTest, ABlockThatFailsEarlyEndsTheLoadThere) {
  Start(InPartsOf(2));
  PutInHost(Sequence(1, 6));
  machine_->device->FailNextCopies(1);
  const PendingAcquire answer = BeginCounted(kAlice, Sequence(1, 6));
  while (machine_->loop.RunOneOf(machine_->device->source())) {
  }
  EXPECT_FALSE(answer.answered());
  Settle();
  ASSERT_TRUE(answer.succeeded());
  EXPECT_EQ(answer.reply().hits.size(), 6u);
  const LoadProgress& last = LastProgress(answer.reply().load);
  EXPECT_TRUE(last.finished);
  EXPECT_LT(last.ready, 6u);
  EXPECT_EQ(last.miss, MissReason::kCopyFailed);
  EXPECT_GT(Counted(answer.reply()), 6u);
  Release(kAlice, HandlesOf(answer.reply()));
  ExpectNothingHeld();
}

TEST_F(CachePartsTest, OthersAreServedInBetween) {
  Start(InPartsOf(2));
  PutInHost(Sequence(1, 6));
  (void)Store(kBob, Sequence(2, 2));
  const PendingAcquire large = BeginAcquire(kAlice, Sequence(1, 6));
  const PendingAcquire resident = BeginAcquire(kBob, Sequence(2, 2));
  EXPECT_FALSE(large.answered());
  EXPECT_TRUE(resident.succeeded());
  Settle();
  EXPECT_TRUE(large.succeeded());
}

TEST_F(CachePartsTest, NobodyTakesTheRoomOfOneThatGoesOn) {
  Start(InPartsOf(2, {.pool_blocks = 8}));
  PutInHost(Sequence(1, 6));
  const PendingAcquire large = BeginAcquire(kAlice, Sequence(1, 6));
  const PendingAcquire behind = BeginAcquire(kBob, {}, 4);
  EXPECT_FALSE(large.answered());
  EXPECT_FALSE(behind.answered());
  Settle();
  ASSERT_TRUE(large.succeeded());
  EXPECT_EQ(large.reply().hits.size(), 6u);
  AdvanceAndTick(setup_.options.max_wait_ms + 1);
  EXPECT_THAT(behind.result(), IsErrorOf(ErrorCode::kResourceExhausted, "pool_full"));
}

// They wait behind one that goes on, and need no more than there is.
TEST_F(CachePartsTest, AcquiresThatHaveWaitedAreServedInParts) {
  constexpr uint32_t kPart = 8;
  CacheSetup setup = InPartsOf(kPart, {.pool_blocks = 128, .host_slots = 64, .disk_slots = 128});
  setup.options.search_part_blocks = kPart;
  Start(setup);
  PutInHost(Sequence(1, 3 * kPart));
  Put(Sequence(2, kPart));
  const PendingAcquire large = BeginAcquire(kBob, Sequence(1, 3 * kPart));
  std::vector<PendingAcquire> behind;
  for (int i = 0; i < 4; ++i) behind.push_back(BeginAcquire(kAlice, Sequence(2, kPart), 1));
  const auto answered = [&] { return std::ranges::count_if(behind, &PendingAcquire::answered); };
  EXPECT_EQ(answered(), 0);
  for (auto before = answered(); machine_->loop.RunOne(); before = answered()) {
    EXPECT_LE(answered() - before, 1) << "each looks at as many blocks as a part has";
  }
  for (const PendingAcquire& acquire : behind) {
    ASSERT_TRUE(acquire.succeeded());
    EXPECT_EQ(acquire.reply().hits.size(), kPart);
  }
  EXPECT_TRUE(large.succeeded());
}

TEST_F(CachePartsTest, ReferencesThatAreYetToBeTakenCountForTheLimit) {
  CacheSetup setup = InPartsOf(2);
  setup.options.max_references_per_session = 7;
  Start(setup);
  PutInHost(Sequence(1, 6));
  Release(kBob, Store(kBob, Sequence(2, 2)));
  const PendingAcquire large = BeginAcquire(kAlice, Sequence(1, 6));
  const PendingAcquire more = BeginAcquire(kAlice, Sequence(2, 2));
  EXPECT_THAT(more.result(), IsErrorOf(ErrorCode::kLimitExceeded, "session_references"));
  Settle();
  EXPECT_TRUE(large.succeeded());
}

TEST_F(CachePartsTest, ASessionThatEndsHalfWayLeavesNothing) {
  Start(InPartsOf(2));
  PutInHost(Sequence(1, 6));
  const PendingAcquire answer = BeginAcquire(kAlice, Sequence(1, 6), 2);
  ASSERT_FALSE(answer.answered());
  RunPart();
  cache_->CloseSession(kAlice);
  EXPECT_THAT(answer.result(), IsErrorOf(ErrorCode::kCancelled, "session_closed"));
  ExpectNothingHeld();
}

TEST_F(CachePartsTest, ASessionThatEndsHalfWayThroughLayersLeavesNothing) {
  Start(InPartsOf(2));
  PutInHost(Sequence(1, 6));
  const PendingAcquire answer = BeginCounted(kAlice, Sequence(1, 6), 4);
  ASSERT_FALSE(answer.answered());
  cache_->CloseSession(kAlice);
  ExpectNothingHeld();
  EXPECT_EQ(Acquire(kBob, Sequence(1, 6)).hits.size(), 6u);
}

TEST_F(CachePartsTest, LayersOfAllPartsComeInOrder) {
  Start(InPartsOf(2));
  PutInHost(Sequence(1, 5));
  const PendingAcquire answer = BeginCounted(kAlice, Sequence(1, 5), 4);
  EXPECT_FALSE(answer.answered());
  Settle();
  ASSERT_TRUE(answer.succeeded());
  EXPECT_EQ(answer.reply().counter->steps(), 4u);
  EXPECT_EQ(Counted(answer.reply()), 4u);
  EXPECT_EQ(LastProgress(answer.reply().load).ready, 5u);
}

TEST_F(CachePartsTest, WhatIsForgottenHalfWayEndsThePrefix) {
  Start(InPartsOf(2, {.disk_slots = 0}));
  PutInHost(Sequence(1, 6));
  const PendingAcquire answer = BeginAcquire(kAlice, Sequence(1, 6));
  ASSERT_FALSE(answer.answered());
  EXPECT_EQ(cache_->Evict({NamespaceId(0), TestHash(1, 3)}, std::nullopt), EvictOutcome::kEvicted);
  Settle();
  ASSERT_TRUE(answer.succeeded());
  EXPECT_EQ(answer.reply().hits.size(), 3u);
  EXPECT_EQ(answer.reply().miss, MissReason::kUnknown);
  EXPECT_EQ(LastProgress(answer.reply().load).ready, 3u);
  Release(kAlice, HandlesOf(answer.reply()));
  ExpectNothingHeld();
}

TEST_F(CachePartsTest, TheCounterOfAPrefixThatWasCutHasAsManyStepsAsItHasHits) {
  Start(InPartsOf(2, {.disk_slots = 0}));
  PutInHost(Sequence(1, 6));
  const PendingAcquire answer = BeginCounted(kAlice, Sequence(1, 6), 0);
  ASSERT_FALSE(answer.answered());
  EXPECT_EQ(cache_->Evict({NamespaceId(0), TestHash(1, 3)}, std::nullopt), EvictOutcome::kEvicted);
  Settle();
  ASSERT_TRUE(answer.succeeded());
  ASSERT_EQ(answer.reply().hits.size(), 3u);
  EXPECT_EQ(answer.reply().counter->steps(), 3u);
  EXPECT_EQ(Counted(answer.reply()), 3u);
}

TEST_F(CachePartsTest, ABlockThatOthersBringMeanwhileIsTakenFromThePool) {
  Start(InPartsOf(2, {.disk_slots = 0}));
  PutInHost(Sequence(1, 6));
  const AcquireReply bobs = Acquire(kBob, {}, 1);
  const PendingAcquire answer = BeginAcquire(kAlice, Sequence(1, 6));
  ASSERT_FALSE(answer.answered());
  Commit(kBob, bobs.new_blocks[0], TestHash(1, 5), 5);
  Settle();
  ASSERT_TRUE(answer.succeeded());
  ASSERT_EQ(answer.reply().hits.size(), 6u);
  EXPECT_EQ(answer.reply().hits[5].tier, Tier::kPool);
  EXPECT_EQ(answer.reply().hits[5].handle, bobs.new_blocks[0]);
}

TEST_F(CachePartsTest, WhatIsReadForTheFirstPartDoesNotPushOutTheOthers) {
  Start(InPartsOf(1, {.pool_blocks = 12, .host_slots = 8}));
  const Hashes prefix = Sequence(1, 8);
  Put(prefix);
  Drain();
  EvictFromPool();
  for (const BlockHash& hash : {prefix[0], prefix[1]}) {
    ASSERT_EQ(cache_->Evict({NamespaceId(0), hash}, Tier::kHost), EvictOutcome::kEvicted);
  }
  Put(Sequence(2, 2));
  EvictFromPool();
  for (const BlockHash& hash : Sequence(2, 2)) ASSERT_TRUE(Presence(hash).host);
  // The prefix is older in host than what came after it.
  const AcquireReply reply = Acquire(kAlice, prefix);
  EXPECT_THAT(TiersOf(reply), ElementsAre(Tier::kDisk, Tier::kDisk, Tier::kHost, Tier::kHost,
                                          Tier::kHost, Tier::kHost, Tier::kHost, Tier::kHost));
}

TEST_F(CachePartsTest, AnAcquireThatRunsOutOfRoomHalfWayIsCutInTime) {
  Start(InPartsOf(2, {.pool_blocks = 6}));
  PutInHost(Sequence(1, 6));
  Put(Sequence(2, 4));
  const PendingAcquire large = BeginAcquire(kAlice, Sequence(1, 6));
  ASSERT_FALSE(large.answered());
  // The blocks that it would have evicted are now in use.
  const PendingAcquire resident = BeginAcquire(kBob, Sequence(2, 4));
  Settle();
  ASSERT_TRUE(resident.succeeded());
  if (!large.answered()) AdvanceAndTick(setup_.options.max_wait_ms + 1);
  ASSERT_TRUE(large.succeeded());
  EXPECT_EQ(large.reply().hits.size() + resident.reply().hits.size(), 6u);
  EXPECT_EQ(large.reply().miss, MissReason::kPoolFull);
}

TEST_F(CachePartsTest, WhoIsRefusedHalfWayGivesEverythingBack) {
  Start(InPartsOf(2, {.pool_blocks = 8}));
  PutInHost(Sequence(1, 4));
  Put(Sequence(2, 4));
  const PendingAcquire large = BeginAcquire(kAlice, Sequence(1, 4), 4);
  ASSERT_FALSE(large.answered());
  const PendingAcquire resident = BeginAcquire(kBob, Sequence(2, 4));
  Settle();
  ASSERT_TRUE(resident.succeeded());
  EXPECT_THAT(large.result(), IsErrorOf(ErrorCode::kResourceExhausted, "pool_full"));
  Release(kBob, HandlesOf(resident.reply()));
  ExpectNothingHeld();
}

TEST_F(CachePartsTest, PoolsTakeTurns) {
  Start(InPartsOf(1, {.devices = 2, .pool_blocks = 8}));
  PutInHost(Sequence(1, 4));
  const PendingAcquire first = BeginAcquire(kAlice, Sequence(1, 4));
  UseDevice(1);
  const PendingAcquire second = BeginAcquire(kBob, Sequence(1, 4));
  machine_->loop.Hold(machine_->devices[0]->source());
  machine_->loop.Hold(machine_->devices[1]->source());
  const auto loading = [&](size_t pool) { return cache_->Gauges().pools[pool].loading; };
  while (!first.answered() || !second.answered()) {
    ASSERT_LE(std::max(loading(0), loading(1)) - std::min(loading(0), loading(1)), 1u);
    RunPart();
  }
  machine_->loop.LetGo(machine_->devices[0]->source());
  machine_->loop.LetGo(machine_->devices[1]->source());
  Settle();
  EXPECT_TRUE(first.succeeded());
  EXPECT_TRUE(second.succeeded());
}

TEST_F(CachePartsTest, BlocksThatAreNowhereElseMakeRoomInPartsToo) {
  CacheSetup setup = InPartsOf(2, {.pool_blocks = 24});
  setup.options.max_offload_bytes = kBlockBytes;
  Start(setup);
  machine_->loop.Hold(machine_->device->source());
  Put(Sequence(1, 24));
  const PendingAcquire first = BeginAcquire(kAlice, {}, 8);
  const PendingAcquire second = BeginAcquire(kBob, {}, 1);
  const PendingAcquire third = BeginAcquire(kBob, {}, 3);
  Settle();
  ASSERT_FALSE(first.answered());
  uint64_t dropped = 0;
  const auto expect_a_part = [&] {
    const uint64_t before = std::exchange(dropped, Drops(Tier::kPool, DropReason::kPoolPressure));
    EXPECT_LE(dropped - before, 2u);
  };
  machine_->clock.Advance(setup_.options.max_wait_ms + 1);
  cache_->Tick();
  expect_a_part();
  while (machine_->loop.RunOne()) expect_a_part();
  EXPECT_TRUE(first.succeeded());
  EXPECT_TRUE(second.succeeded());
  EXPECT_TRUE(third.succeeded());
  EXPECT_EQ(dropped, 12u);
  machine_->loop.LetGo(machine_->device->source());
  Settle();
}

TEST_F(CachePartsTest, LoadsLeaveTheNewBlocksTheirRoomWhenLittleCanBeMade) {
  CacheSetup setup = InPartsOf(2, {.pool_blocks = 8});
  setup.options.max_offload_bytes = kBlockBytes;
  Start(setup);
  PutInHost(Sequence(1, 4));
  machine_->loop.Hold(machine_->device->source());
  Put(Sequence(2, 8));
  const PendingAcquire answer = BeginAcquire(kAlice, Sequence(1, 4), 4);
  Settle();
  ASSERT_FALSE(answer.answered());
  AdvanceAndTick(setup_.options.max_wait_ms + 1);
  ASSERT_TRUE(answer.succeeded()) << "some blocks are being copied and cannot leave";
  EXPECT_EQ(answer.reply().new_blocks.size(), 4u);
  EXPECT_LT(answer.reply().hits.size(), 4u);
  EXPECT_EQ(answer.reply().miss, MissReason::kPoolFull);
  machine_->loop.LetGo(machine_->device->source());
  Settle();
}

}  // namespace
}  // namespace kvtier
