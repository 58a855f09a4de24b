// SPDX-License-Identifier: Apache-2.0
// Sessions that go on in the next process: what they are given of what they held, and what not.
#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "tests/unit/tiers/cache_fixture.h"

namespace kvtier {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

// Says of copies that they are done only in a later event, as a device does whose copies are
// counted by threads of its own.
class LateToTell final : public Device {
 public:
  LateToTell(Device* device, EventQueue* loop) : device_(*device), loop_(*loop) {}
  [[nodiscard]] DeviceInfo info() const override { return device_.info(); }
  [[nodiscard]] Result<std::unique_ptr<DevicePool>> CreatePool(uint64_t bytes) override {
    return device_.CreatePool(bytes);
  }
  void Copy(CopyRequest request) override {
    request.done = [this, done = std::move(request.done)](const Status& status) {
      loop_.Post([done, status] { done(status); });
    };
    device_.Copy(std::move(request));
  }

 private:
  Device& device_;
  EventQueue& loop_;
};

class CacheResumeTest : public CacheTest {
 protected:
  void StartKept() {
    Start({.pool_blocks = 16, .keep_pools = true, .disk_slots = 0});
    NameSessions();
  }
  void Die() {
    DieAndAdopt();
    NameSessions();
    absent_ = cache_->TakeAbsentClients();
  }
  [[nodiscard]] SessionId HoldingsOf(SessionId former) const {
    for (const AbsentClients::Session& session : absent_.front().sessions) {
      if (session.identity.session == former) return session.holdings;
    }
    ADD_FAILURE() << "the session is not known";
    return {};
  }
  [[nodiscard]] std::vector<ResumeOutcome> Resume(SessionId former,
                                                  const std::vector<BlockHandle>& blocks,
                                                  uint32_t references = 1) {
    std::vector<ResumeClaim> claims;
    for (const BlockHandle& block : blocks) claims.push_back({block, references});
    return cache_->Resume(HoldingsOf(former), former, pool_.id, claims);
  }
  void ReleaseReaders() {
    cache_->ReleaseQuarantine(absent_.front().readers);
    Settle();
  }

  std::vector<AbsentClients> absent_;

 private:
  void NameSessions() {
    for (const SessionId session : {kAlice, kBob}) {
      cache_->UsePool(
          session, pool_.id,
          {.process = {static_cast<int32_t>(70 + session.value), 5}, .session = session});
    }
  }
};

TEST_F(CacheResumeTest, APrivateBlockIsThereAgainAsItsClientLeftIt) {
  StartKept();
  const AcquireReply held = Acquire(kAlice, {}, 4);
  const BlockHash hash = Sequence(1, 1)[0];
  FillFromHash(hash, Bytes(held.new_blocks[0]));
  Die();
  EXPECT_EQ(PoolGaugesNow().quarantined, 4u);
  EXPECT_THAT(Resume(kAlice, held.new_blocks), Each(ResumeOutcome::kPrivate));
  EXPECT_EQ(PoolGaugesNow().private_blocks, 4u);
  ASSERT_TRUE(cache_->Commit(kAlice, pool_.id,
                             {.block = held.new_blocks[0], .hash = hash, .tokens = kBlockTokens}));
  const AcquireReply found = Acquire(kBob, {hash});
  ASSERT_EQ(found.hits.size(), 1u);
  EXPECT_EQ(found.hits[0].handle, held.new_blocks[0]);
  EXPECT_TRUE(MatchesHash(hash, Bytes(found.hits[0].handle)));
  Release(kAlice, held.new_blocks);
  Settle();
  EXPECT_EQ(PoolGaugesNow().free, 15u);
}

TEST_F(CacheResumeTest, WhatIsReferencedAgainIsNotEvicted) {
  StartKept();
  Put(Sequence(1, 4));
  const AcquireReply held = Acquire(kAlice, Sequence(1, 4));
  Die();
  EXPECT_THAT(Resume(kAlice, HandlesOf(held)), Each(ResumeOutcome::kReferenced));
  ReleaseReaders();
  const AcquireReply others = Acquire(kBob, {}, 12);
  Release(kBob, others.new_blocks);
  for (const BlockHandle& block : HandlesOf(held)) {
    EXPECT_TRUE(cache_->ReadableMemory(kAlice, pool_.id, std::vector{block}));
  }
  EXPECT_EQ(PoolGaugesNow().referenced, 4u);
  Release(kAlice, HandlesOf(held));
  Settle();
  EvictFromPool();
  EXPECT_EQ(PoolGaugesNow().free, 16u);
}

TEST_F(CacheResumeTest, OneThatComesLateIsGivenWhatIsStillThere) {
  StartKept();
  Put(Sequence(1, 4));
  const AcquireReply held = Acquire(kAlice, Sequence(1, 4), 2);
  Die();
  ReleaseReaders();
  EXPECT_THAT(Resume(kAlice, HandlesOf(held)), Each(ResumeOutcome::kReferenced));
  EXPECT_THAT(Resume(kAlice, held.new_blocks), Each(ResumeOutcome::kPrivate));
}

TEST_F(CacheResumeTest, WhatWasEvictedMeanwhileIsLost) {
  StartKept();
  Put(Sequence(1, 4));
  const AcquireReply held = Acquire(kAlice, Sequence(1, 4));
  Die();
  ReleaseReaders();
  EvictFromPool();
  EXPECT_THAT(Resume(kAlice, HandlesOf(held)), Each(ResumeOutcome::kLost));
  Put(Sequence(2, 16));
  EXPECT_THAT(Resume(kAlice, HandlesOf(held)), Each(ResumeOutcome::kLost));
  EXPECT_EQ(cache_->stats().resume_lost_blocks, 8u);
}

TEST_F(CacheResumeTest, ReferencesCountAsOftenAsTheyWereHeld) {
  StartKept();
  Put(Sequence(1, 1));
  const AcquireReply once = Acquire(kAlice, Sequence(1, 1));
  (void)Acquire(kAlice, Sequence(1, 1));
  Die();
  EXPECT_THAT(Resume(kAlice, HandlesOf(once), 2), ElementsAre(ResumeOutcome::kReferenced));
  ReleaseReaders();
  Release(kAlice, HandlesOf(once));
  EXPECT_EQ(PoolGaugesNow().referenced, 1u);
  Release(kAlice, HandlesOf(once));
  EXPECT_EQ(PoolGaugesNow().referenced, 0u);
  EXPECT_TRUE(TryRelease(kAlice, once.hits[0].handle));
}

TEST_F(CacheResumeTest, AClaimWithoutReferencesGivesNone) {
  StartKept();
  Put(Sequence(1, 1));
  const AcquireReply held = Acquire(kAlice, Sequence(1, 1));
  Die();
  ReleaseReaders();
  EXPECT_THAT(Resume(kAlice, HandlesOf(held), 0), ElementsAre(ResumeOutcome::kLost));
}

TEST_F(CacheResumeTest, NoMoreReferencesThanASessionMayHoldAreGivenBack) {
  StartKept();
  Put(Sequence(1, 4));
  const AcquireReply held = Acquire(kAlice, Sequence(1, 4), 1);
  setup_.options.max_references_per_session = 3;
  Die();
  EXPECT_THAT(Resume(kAlice, HandlesOf(held)),
              ElementsAre(ResumeOutcome::kReferenced, ResumeOutcome::kReferenced,
                          ResumeOutcome::kReferenced, ResumeOutcome::kLost));
  EXPECT_THAT(Resume(kAlice, held.new_blocks), ElementsAre(ResumeOutcome::kPrivate));
}

TEST_F(CacheResumeTest, AnotherSessionsPrivateBlockIsNotGivenAway) {
  StartKept();
  const AcquireReply held = Acquire(kAlice, {}, 2);
  Die();
  EXPECT_THAT(Resume(kBob, held.new_blocks), Each(ResumeOutcome::kLost));
  EXPECT_THAT(Resume(kAlice, held.new_blocks), Each(ResumeOutcome::kPrivate));
}

TEST_F(CacheResumeTest, ABlockThatWasBeingLoadedIsLost) {
  Start({.pool_blocks = 16, .keep_host = true, .keep_pools = true, .disk_slots = 0});
  cache_->UsePool(kAlice, pool_.id, {.process = {71, 5}, .session = kAlice});
  Put(Sequence(1, 4));
  EvictFromPool();
  const auto pending = BeginAcquire(kAlice, Sequence(1, 4));
  std::vector<BlockHandle> loading;
  for (uint32_t i = 0; i < 4; ++i) loading.push_back({BlockIndex(i), 0});
  for (BlockHandle& block : loading) {
    block.generation = machine_->pool_keeper.kept().front().table->GenerationOf(block.index);
  }
  Die();
  EXPECT_THAT(Resume(kAlice, loading), Each(ResumeOutcome::kLost));
}

// Its client may be reading blocks that the counter called usable.
TEST_F(CacheResumeTest, ALoadThatWasCountedAndNotNotedIsLostAndStaysUntilItsReadersHaveCome) {
  std::unique_ptr<LateToTell> late;
  change_environment_ = [&](CacheEnvironment* environment, IndexSnapshot*) {
    late = std::make_unique<LateToTell>(environment->devices[0].device, &machine_->loop);
    environment->devices[0].device = late.get();
  };
  Start({.pool_blocks = 16, .keep_host = true, .keep_pools = true, .disk_slots = 0});
  cache_->UsePool(kAlice, pool_.id, {.process = {71, 5}, .session = kAlice});
  Put(Sequence(1, 4));
  EvictFromPool();
  const AcquireReply reply = BeginCounted(kAlice, Sequence(1, 4)).reply();
  ASSERT_TRUE(machine_->loop.RunOneOf(machine_->device->source()));
  ASSERT_EQ(Counted(reply), 4u);
  const auto still_there = [&] {
    const Hashes hashes = Sequence(1, 4);
    return std::ranges::equal(hashes, HandlesOf(reply), [&](const auto& hash, const auto& block) {
      return MatchesHash(hash, Bytes(block));
    });
  };
  ASSERT_TRUE(still_there());
  Die();
  EXPECT_THAT(Resume(kAlice, HandlesOf(reply)), Each(ResumeOutcome::kLost));
  Put(Sequence(2, 12));
  EXPECT_TRUE(still_there());
  ReleaseReaders();
  Put(Sequence(3, 16));
  EXPECT_FALSE(still_there());
  cache_.reset();
}

TEST_F(CacheResumeTest, WhatIsNotClaimedIsFreeOnceTheSessionIsGivenBack) {
  StartKept();
  const AcquireReply held = Acquire(kAlice, {}, 4);
  Die();
  EXPECT_THAT(Resume(kAlice, {held.new_blocks[1]}), ElementsAre(ResumeOutcome::kPrivate));
  cache_->ReleaseQuarantine(HoldingsOf(kAlice));
  Settle();
  EXPECT_EQ(PoolGaugesNow().free, 15u);
  EXPECT_THAT(Resume(kAlice, {held.new_blocks[2]}), ElementsAre(ResumeOutcome::kLost));
}

TEST_F(CacheResumeTest, TwoDeathsInARowLoseNothing) {
  StartKept();
  Put(Sequence(1, 2));
  const AcquireReply held = Acquire(kAlice, Sequence(1, 2), 3);
  Die();
  Die();
  EXPECT_THAT(Resume(kAlice, HandlesOf(held)), Each(ResumeOutcome::kReferenced));
  EXPECT_THAT(Resume(kAlice, {held.new_blocks[0]}), Each(ResumeOutcome::kPrivate));
  // The blocks taken back are the new session's, the rest the first one's still.
  Die();
  std::vector<SessionId> owners;
  for (const AbsentClients::Session& session : absent_.front().sessions) {
    const std::vector<ResumeClaim> claim{{held.new_blocks[0]}};
    const auto outcome = cache_->Resume(session.holdings, kBob, pool_.id, claim);
    if (outcome.front() == ResumeOutcome::kPrivate) owners.push_back(session.identity.session);
  }
  EXPECT_THAT(owners, ElementsAre(kAlice));
}

TEST_F(CacheResumeTest, AnOrderlyEndKeepsWhatSessionsHeld) {
  StartKept();
  Put(Sequence(1, 2));
  const AcquireReply held = Acquire(kAlice, Sequence(1, 2), 3);
  cache_->KeepHoldings();
  cache_->CloseSession(kAlice);
  cache_->ReleaseQuarantine(kAlice);
  Settle();
  EXPECT_TRUE(cache_->Idle());
  Die();
  EXPECT_THAT(Resume(kAlice, HandlesOf(held)), Each(ResumeOutcome::kReferenced));
  EXPECT_THAT(Resume(kAlice, held.new_blocks), Each(ResumeOutcome::kPrivate));
}

TEST_F(CacheResumeTest, ASessionThatEndedWhileItsProcessLivesCanBeResumed) {
  StartKept();
  const AcquireReply held = Acquire(kAlice, {}, 3);
  cache_->CloseSession(kAlice);
  Settle();
  Die();
  EXPECT_THAT(Resume(kAlice, held.new_blocks), Each(ResumeOutcome::kPrivate));
}

}  // namespace
}  // namespace kvtier
