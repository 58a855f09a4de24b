// SPDX-License-Identifier: Apache-2.0
// Erasures and the store that hosts share.
#include <vector>

#include "tests/unit/tiers/cache_cold_fixture.h"

namespace kvtier {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class CacheColdErasureTest : public CacheColdTest {
 protected:
  void WriteToStore(const Hashes& hashes) {
    Put(hashes);
    Use(hashes);
    EvictFromPool();
    AdvanceAndTick(kAfterMs);
  }
  void BeginErasure(const std::string& tenant = "tenant",
                    uint32_t end_hour = EraseRequest().end_hour) {
    ended_ = false;
    cache_->Erase({.tenant = tenant, .end_hour = end_hour},
                  [this](const EraseReport&, const Status& status) {
                    ended_ = true;
                    status_ = status;
                  });
    Settle();
  }
  void AwaitErasure(int most_s) {
    for (int s = 0; s < most_s && !ended_; ++s) AdvanceAndTick(1000);
    EXPECT_TRUE(ended_);
  }
  [[nodiscard]] std::vector<bool> Ask(const Hashes& hashes) {
    std::vector<bool> told;
    cache_->AskColdStore(pool_.id, hashes, ColdAsk::kPrefix,
                         [&](std::vector<bool> present) { told = present; });
    Settle();
    return told;
  }

  bool ended_ = false;
  Status status_;
};

TEST_F(CacheColdErasureTest, DeletesTheTenantsObjectsAndNoOthers) {
  Start(ColdSetup());
  WriteToStore(hashes_);
  // Another host, which this one knows nothing of.
  store_.objects[ColdName(Identity("tenant", 9), hashes_[0])] = {};
  const std::string other = ColdName(Identity("tenant2", 1), hashes_[0]);
  store_.objects[other] = {};
  BeginErasure();
  EXPECT_TRUE(ended_);
  EXPECT_TRUE(status_);
  ASSERT_THAT(store_.objects, SizeIs(1));
  EXPECT_TRUE(store_.objects.contains(other));
}

TEST_F(CacheColdErasureTest, WaitsForWhatIsOnItsWayToTheStore) {
  Start(ColdSetup());
  store_.holds = true;
  store_.available = false;
  Put(hashes_);
  Use(hashes_);
  EvictFromPool();
  store_.available = true;
  AdvanceAndTick(kAfterMs);
  ASSERT_EQ(store_.held(), 4u);
  store_.holds = false;
  BeginErasure();
  AdvanceAndTick(100);
  EXPECT_FALSE(ended_);
  store_.Answer();
  Settle();
  AdvanceAndTick(100);
  EXPECT_TRUE(ended_);
  EXPECT_THAT(store_.objects, IsEmpty());
}

TEST_F(CacheColdErasureTest, TriesAgainWhileTheStoreDoesNotAnswer) {
  Start(ColdSetup());
  WriteToStore(hashes_);
  store_.refuses = true;
  BeginErasure();
  for (int ticks = 0; ticks < 20; ++ticks) AdvanceAndTick(100);
  EXPECT_FALSE(ended_);
  store_.refuses = false;
  AdvanceAndTick(100);
  EXPECT_TRUE(ended_);
  EXPECT_TRUE(status_);
  EXPECT_THAT(store_.objects, IsEmpty());
}

TEST_F(CacheColdErasureTest, FailsWhenTheStoreStaysAwayAndIsFinishedByTheNextDaemon) {
  Start(ColdSetup());
  WriteToStore(hashes_);
  store_.refuses = true;
  BeginErasure();
  for (int ticks = 0; ticks < 200; ++ticks) AdvanceAndTick(100);
  EXPECT_TRUE(ended_);
  ASSERT_FALSE(status_);
  EXPECT_EQ(status_.error().code, ErrorCode::kIoError);
  EXPECT_THAT(store_.objects, SizeIs(4));
  store_.refuses = false;
  CrashAndRestart();
  Settle();
  for (int ticks = 0; ticks < 5; ++ticks) AdvanceAndTick(100);
  EXPECT_THAT(store_.objects, IsEmpty());
}

TEST_F(CacheColdErasureTest, BeginsAgainWhereAPutThatWasGivenUpMayCome) {
  Start(ColdSetup());
  WriteToStore(hashes_);
  const auto objects = store_.objects;
  store_.refusal = {ErrorCode::kResourceExhausted, "cold_store_busy", ""};
  store_.holds = true;
  BeginErasure();
  store_.refuses = true;
  store_.Answer();
  for (int s = 0; s < 65; ++s) AdvanceAndTick(1000);
  EXPECT_FALSE(ended_);
  EXPECT_THAT(store_.cursors, SizeIs(testing::Lt(10)));
  store_.refuses = store_.holds = false;
  store_.objects = objects;
  store_.cursors.clear();
  AwaitErasure(10);
  EXPECT_TRUE(status_);
  EXPECT_THAT(store_.objects, IsEmpty());
  EXPECT_THAT(store_.cursors, ElementsAre(0, 1, 2));
}

TEST_F(CacheColdErasureTest, FailsWherePutsMayComeForMinutes) {
  Start(ColdSetup());
  WriteToStore(hashes_);
  store_.refusal = {ErrorCode::kResourceExhausted, "cold_store_busy", ""};
  store_.refuses = true;
  BeginErasure();
  AwaitErasure(200);
  ASSERT_FALSE(status_);
  EXPECT_EQ(status_.error().reason, "cold_store_busy");
}

// The next daemon's library knows nothing of the puts that it left.
TEST_F(CacheColdErasureTest, OutlastsThePutsOfADaemonThatHasEnded) {
  Start(ColdSetup());
  WriteToStore(hashes_);
  const auto objects = store_.objects;
  store_.refuses = true;
  BeginErasure();
  CrashAndRestart();
  store_.refuses = false;
  AdvanceAndTick(100);
  EXPECT_THAT(store_.objects, IsEmpty()) << "what is there goes at once";
  store_.objects = objects;
  BeginErasure();
  AwaitErasure(61);
  EXPECT_TRUE(status_);
  EXPECT_THAT(store_.objects, IsEmpty());
  EXPECT_THAT(machine_->Snapshot().erasures, IsEmpty());
}

TEST_F(CacheColdErasureTest, OfADaemonWithoutDiskOutlastsThePutsOfAnEarlierOne) {
  CacheSetup setup = ColdSetup();
  setup.disk_slots = 0;
  Start(setup);
  BeginErasure();
  store_.objects[ColdName(Identity("tenant", 1), hashes_[0])] = {};
  EXPECT_FALSE(ended_);
  AwaitErasure(61);
  EXPECT_THAT(store_.objects, IsEmpty());
}

// Deletion of many objects takes minutes, in which acquires find those that are left.
TEST_F(CacheColdErasureTest, TakesWhatTheStoreGaveWhileItsObjectsWent) {
  WriteByAnotherHost(hashes_);
  store_.holds = true;
  BeginErasure();
  store_.holds = false;
  AdvanceAndTick(5'000);
  const AcquireReply reply = Acquire(kAlice, hashes_);
  ASSERT_THAT(reply.hits, SizeIs(4));
  Release(kAlice, HandlesOf(reply));
  store_.Answer();
  Settle();
  EXPECT_TRUE(ended_);
  EXPECT_TRUE(status_);
  EXPECT_FALSE(Presence(hashes_[0]).anywhere());
  Drain();
  CrashAndRestart();
  EXPECT_FALSE(Presence(hashes_[0]).anywhere());
  EXPECT_THAT(Acquire(kAlice, hashes_).hits, IsEmpty());
}

TEST_F(CacheColdErasureTest, WaitsForFetchesThatBeganBeforeTheObjectsWereGone) {
  WriteByAnotherHost(hashes_);
  store_.holds = true;
  BeginErasure();
  store_.holds = false;
  AdvanceAndTick(5'000);
  machine_->loop.Hold(machine_->executor->source());
  const PendingAcquire acquire = BeginAcquire(kAlice, hashes_);
  Settle();
  store_.Answer();
  Settle();
  EXPECT_THAT(store_.objects, IsEmpty());
  EXPECT_FALSE(ended_);
  machine_->loop.LetGo(machine_->executor->source());
  Settle();
  AdvanceAndTick(100);
  EXPECT_TRUE(ended_);
  EXPECT_TRUE(status_);
  EXPECT_FALSE(Presence(hashes_[0]).anywhere());
}

// Names tell no time: the objects of later hours go as well, and their blocks are written again.
TEST_F(CacheColdErasureTest, OfOlderHoursDeletesWhatIsYoungerToo) {
  Start(ColdSetup());
  WriteToStore(hashes_);
  BeginErasure("tenant", /*end_hour=*/1);
  EXPECT_TRUE(ended_);
  EXPECT_THAT(store_.objects, IsEmpty());
  EXPECT_TRUE(Presence(hashes_[0]).anywhere());
  AdvanceAndTick(100);
  EXPECT_THAT(store_.objects, SizeIs(4));
}

// Another host may have written it again since.
TEST_F(CacheColdErasureTest, TheStoreIsNotAskedForWhatWasErasedHere) {
  Start(ColdSetup());
  WriteToStore(hashes_);
  const auto objects = store_.objects;
  BeginErasure();
  ASSERT_TRUE(ended_);
  store_.objects = objects;
  store_.questions = 0;
  EXPECT_THAT(Ask(hashes_), ElementsAre(false, false, false, false));
  const AcquireReply reply = Acquire(kAlice, hashes_);
  EXPECT_THAT(reply.hits, IsEmpty());
  EXPECT_EQ(reply.miss, MissReason::kErased);
  EXPECT_EQ(store_.questions, 0u);
  EXPECT_EQ(store_.gets, 0u);
}

// A list may be of several sequences.
TEST_F(CacheColdErasureTest, TheStoreIsAskedForWhatStandsBesideErasedBlocks) {
  Start(ColdSetup());
  WriteToStore(hashes_);
  BeginErasure();
  const Hashes other = Sequence(2, 2);
  for (const BlockHash& hash : other) store_.objects[Name(hash)] = {};
  const uint64_t asked = stats().lookup_blocks;
  EXPECT_THAT(Ask({other[0], hashes_[0], hashes_[1], other[1]}),
              ElementsAre(true, false, false, true));
  EXPECT_EQ(stats().lookup_blocks - asked, 2u);
}

}  // namespace
}  // namespace kvtier
