// SPDX-License-Identifier: Apache-2.0
// The cache's messages to its tracer.

#include <algorithm>

#include "tests/unit/tiers/cache_fixture.h"

namespace kvtier {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

class KeepingTracer final : public Tracer {
 public:
  void Record(const TraceEvent& event) override { events.push_back(event); }
  [[nodiscard]] int64_t NowUs() const override { return ++readings; }
  mutable int64_t readings = 0;
  std::vector<TraceEvent> events;
};

constexpr auto kBegin = TracePhase::kBegin;
constexpr auto kEnd = TracePhase::kEnd;

class CacheTraceTest : public CacheTest {
 protected:
  // Before the cache lets go of it.
  ~CacheTraceTest() override { cache_.reset(); }

  void StartTraced(CacheSetup setup = {}) {
    setup.tracer = &tracer_;
    Start(setup);
  }

  [[nodiscard]] std::vector<TraceEvent> Of(TraceKind kind) const {
    std::vector<TraceEvent> found;
    std::ranges::copy_if(tracer_.events, std::back_inserter(found),
                         [kind](const TraceEvent& event) { return event.kind == kind; });
    return found;
  }
  // The events of one block, in order.
  [[nodiscard]] std::vector<std::pair<TraceKind, TracePhase>> Story(const BlockHash& hash) const {
    std::vector<std::pair<TraceKind, TracePhase>> story;
    for (const TraceEvent& event : tracer_.events) {
      if (event.hash_prefix == hash.Prefix64()) story.emplace_back(event.kind, event.phase);
    }
    return story;
  }

  KeepingTracer tracer_;
};

TEST_F(CacheTraceTest, BlockFromDiskIsReadCheckedAndCopiedWithinItsLoad) {
  StartTraced();
  Put(Sequence(1, 1));
  DrainAndRestart();
  tracer_.events.clear();
  (void)Acquire(kAlice, Sequence(1, 1));
  EXPECT_THAT(Story(TestHash(1, 0)),
              ElementsAre(Pair(TraceKind::kBlockLoad, kBegin), Pair(TraceKind::kDiskRead, kBegin),
                          Pair(TraceKind::kDiskRead, kEnd), Pair(TraceKind::kCheck, kBegin),
                          Pair(TraceKind::kCheck, kEnd), Pair(TraceKind::kCopyUp, kBegin),
                          Pair(TraceKind::kCopyUp, kEnd), Pair(TraceKind::kBlockLoad, kEnd)));
  EXPECT_EQ(Of(TraceKind::kBlockLoad).front().tier, Tier::kDisk);
}

TEST_F(CacheTraceTest, BlockOnItsWayDownIsCopiedSealedAndWritten) {
  StartTraced();
  Put(Sequence(1, 1));
  Drain();
  EXPECT_THAT(Story(TestHash(1, 0)),
              ElementsAre(Pair(TraceKind::kOffload, kBegin), Pair(TraceKind::kOffload, kEnd),
                          Pair(TraceKind::kSeal, kBegin), Pair(TraceKind::kSeal, kEnd),
                          Pair(TraceKind::kDiskWrite, kBegin), Pair(TraceKind::kDiskWrite, kEnd)));
  const auto commits = Of(TraceKind::kIndexCommit);
  ASSERT_EQ(commits.size(), 2u);
  EXPECT_EQ(commits[0].blocks[0], 1u);
  EXPECT_EQ(commits[0].phase, kBegin);
  EXPECT_EQ(commits[1].phase, kEnd);
}

TEST_F(CacheTraceTest, LoadsNameTheRequestTheyAreFor) {
  StartTraced();
  Put(Sequence(1, 3));
  DrainAndRestart();
  std::optional<Result<AcquireReply>> answer;
  cache_->Acquire({.session = kBob,
                   .pool = pool_.id,
                   .hashes = Sequence(1, 3),
                   .block_tokens = kBlockTokens,
                   .request_id = 77},
                  [&](Result<AcquireReply> reply) { answer = std::move(reply); });
  Settle();
  ASSERT_TRUE(answer && *answer);
  const auto loads = Of(TraceKind::kLoad);
  ASSERT_EQ(loads.size(), 2u);
  EXPECT_EQ(loads[0].tag.session, kBob);
  EXPECT_EQ(loads[0].tag.request, 77u);
  EXPECT_EQ(loads[0].blocks[0], 3u);
  EXPECT_EQ(loads[0].id, (*answer)->load.value);
  EXPECT_EQ(loads[1].id, (*answer)->load.value);
  EXPECT_EQ(loads[1].blocks[0], 3u);
  uint32_t begun = 0;
  for (const TraceEvent& event : Of(TraceKind::kBlockLoad)) {
    if (event.phase != kBegin) continue;
    ++begun;
    EXPECT_EQ(event.tag.session, kBob);
    EXPECT_EQ(event.tag.request, 77u);
  }
  EXPECT_EQ(begun, 3u);
}

TEST_F(CacheTraceTest, PrefetchedBlocksNameTheRequestToo) {
  StartTraced();
  Put(Sequence(1, 1));
  DrainAndRestart();
  EXPECT_EQ(cache_->Prefetch(pool_.id, Sequence(1, 1), {kAlice, 9}), 1u);
  Settle();
  EXPECT_EQ(Of(TraceKind::kBlockLoad).front().tag.session, kAlice);
  EXPECT_EQ(Of(TraceKind::kBlockLoad).front().tag.request, 9u);
}

TEST_F(CacheTraceTest, WaitingForRoomIsTold) {
  StartTraced({.pool_blocks = 4});
  machine_->loop.Hold(machine_->device->source());
  Put(Sequence(1, 4));
  const PendingAcquire answer = BeginAcquire(kBob, {}, 4);
  Settle();
  ASSERT_EQ(Of(TraceKind::kWait).size(), 1u);
  EXPECT_EQ(Of(TraceKind::kWait)[0].phase, kBegin);
  machine_->loop.LetGo(machine_->device->source());
  Settle();
  ASSERT_TRUE(answer.succeeded());
  ASSERT_EQ(Of(TraceKind::kWait).size(), 2u);
  EXPECT_EQ(Of(TraceKind::kWait)[1].phase, kEnd);
  EXPECT_EQ(Of(TraceKind::kWait)[1].tag.session, kBob);
}

TEST_F(CacheTraceTest, WaitEndsWithItsSession) {
  StartTraced({.pool_blocks = 4});
  machine_->loop.Hold(machine_->device->source());
  Put(Sequence(1, 4));
  const PendingAcquire answer = BeginAcquire(kBob, {}, 4);
  Settle();
  cache_->CloseSession(kBob);
  EXPECT_EQ(Of(TraceKind::kWait).back().phase, kEnd);
  machine_->loop.LetGo(machine_->device->source());
  Settle();
}

TEST_F(CacheTraceTest, WhoNeedsNoRoomDoesNotWait) {
  StartTraced();
  Put(Sequence(1, 4));
  Use(Sequence(1, 4));
  EXPECT_THAT(Of(TraceKind::kWait), IsEmpty());
}

TEST_F(CacheTraceTest, EvictionTellsTierAndReason) {
  StartTraced({.pool_blocks = 4, .disk_slots = 0});
  Put(Sequence(1, 2));
  EvictFromPool();
  const auto evictions = Of(TraceKind::kEvict);
  ASSERT_FALSE(evictions.empty());
  EXPECT_EQ(evictions[0].tier, Tier::kPool);
  EXPECT_EQ(evictions[0].drop, DropReason::kCleanCopyBelow);
  EXPECT_EQ(evictions[0].phase, TracePhase::kInstant);
  EXPECT_EQ(evictions.size(), Drops(Tier::kPool, DropReason::kCleanCopyBelow));
}

TEST_F(CacheTraceTest, DamagedBlockFailsItsChecksAndItsLoad) {
  StartTraced();
  Put(Sequence(1, 1));
  DrainAndRestart();
  tracer_.events.clear();
  machine_->SetDiskFaultRates({.read_eio = 1});
  (void)BeginAcquire(kAlice, Sequence(1, 1));
  Settle();
  // Every read is tried twice.
  EXPECT_EQ(Of(TraceKind::kDiskRead).size(), 4u);
  EXPECT_TRUE(Of(TraceKind::kDiskRead)[1].failed);
  EXPECT_EQ(Of(TraceKind::kBlockLoad).back().miss, MissReason::kReadError);
  EXPECT_TRUE(Of(TraceKind::kLoad).back().failed);
}

TEST_F(CacheTraceTest, WhateverBeginsEnds) {
  StartTraced({.pool_blocks = 8, .host_slots = 8});
  for (uint64_t stream = 1; stream <= 6; ++stream) Put(Sequence(stream, 6));
  for (uint64_t stream = 1; stream <= 6; ++stream) {
    const PendingAcquire answer = BeginAcquire(kAlice, Sequence(stream, 6));
    Settle();
    ASSERT_TRUE(answer.succeeded());
    Release(kAlice, HandlesOf(answer.reply()));
  }
  Drain();
  std::map<TraceKind, int> open;
  for (const TraceEvent& event : tracer_.events) {
    open[event.kind] += event.phase == kBegin ? 1 : event.phase == kEnd ? -1 : 0;
    EXPECT_GE(open[event.kind], 0);
  }
  for (const auto& [kind, count] : open) EXPECT_EQ(count, 0) << static_cast<int>(kind);
}

TEST_F(CacheTraceTest, WhatIsDoneToManyBlocksTogetherSharesReadingsOfTheClock) {
  StartTraced();
  Put(Sequence(1, 6));
  EvictFromPool();
  tracer_.events.clear();
  tracer_.readings = 0;
  Use(Sequence(1, 6));
  EXPECT_EQ(Of(TraceKind::kBlockLoad).size(), 12u);
  EXPECT_LT(tracer_.readings, 12);
  int64_t before_us = 0;
  for (const TraceEvent& event : tracer_.events) {
    if (event.time_us == 0) continue;  // the tracer's to set
    EXPECT_GE(event.time_us, before_us);
    before_us = event.time_us;
  }
}

}  // namespace
}  // namespace kvtier
