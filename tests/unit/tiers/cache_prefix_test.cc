// SPDX-License-Identifier: Apache-2.0
// A block can be hit only behind all those before it: prefixes are kept, and what lost its start
// goes.

#include <algorithm>
#include <numeric>

#include "tests/unit/tiers/cache_fixture.h"

namespace kvtier {
namespace {

using ::testing::Each;

class CachePrefixTest : public CacheTest {
 protected:
  static constexpr int64_t kKeepMs = 10'000;
  static constexpr uint64_t kWritesInFlight = 2;

  // Blocks that have lost their start are kept for ten seconds.
  static CacheSetup KeepingUnusable(CacheSetup setup = {}) {
    setup.options.keep_unusable_ms = kKeepMs;
    // A write that has begun keeps its block in host until it ends.
    setup.options.max_disk_write_bytes = kWritesInFlight * 2 * kBlockBytes;
    return setup;
  }
  // Commits the sequence, each block with the one before it as its parent; `taken` are private.
  void CommitSequence(const Hashes& hashes, const Handles& taken) {
    for (uint32_t depth = 0; depth < hashes.size(); ++depth) {
      CommitRequest request{.hash = hashes[depth], .depth = depth};
      if (depth > 0) request.parent = hashes[depth - 1];
      ASSERT_TRUE(TryCommit(kAlice, taken[depth], request));
    }
  }
  Handles StoreLinked(const Hashes& hashes) {
    const AcquireReply reply = Acquire(kAlice, {}, static_cast<uint32_t>(hashes.size()));
    CommitSequence(hashes, reply.new_blocks);
    return reply.new_blocks;
  }
  void PutLinked(const Hashes& hashes) {
    Release(kAlice, StoreLinked(hashes));
    Settle();
  }
  // Waits for room as long as it takes, while the disk writes `writes_per_tick` slots a tick.
  void PushThrough(const Hashes& hashes, int writes_per_tick) {
    const PendingAcquire answer = BeginAcquire(kAlice, {}, static_cast<uint32_t>(hashes.size()));
    while (!answer.answered()) {
      Settle();
      for (int i = 0; i < writes_per_tick; ++i) (void)machine_->loop.RunOneOf(file().source());
      if (!answer.answered()) AdvanceAndTick(setup_.options.max_wait_ms);
    }
    ASSERT_TRUE(answer.succeeded());
    CommitSequence(hashes, answer.reply().new_blocks);
    Release(kAlice, answer.reply().new_blocks);
    Settle();
  }
  void LetUnusableGo() {
    for (int i = 0; i < 3; ++i) AdvanceAndTick(kKeepMs + 1000);
  }
  // The disk is as fast as it ever was, until nothing is left to write.
  void EndWrites() {
    machine_->loop.LetGo(file().source());
    Settle();
    LetUnusableGo();
    EXPECT_EQ(UnusableNow(), 0u);
  }
  void EvictEverywhere(const BlockHash& hash) {
    ASSERT_EQ(cache_->Evict({NamespaceId(0), hash}, std::nullopt), EvictOutcome::kEvicted);
  }

  struct Usable {
    uint64_t pool = 0, host = 0, disk = 0;
  };
  // How many blocks of the sequences' cached prefixes each tier holds.
  [[nodiscard]] Usable CountUsable(const std::vector<Hashes>& sequences) const {
    Usable usable;
    for (const Hashes& hashes : sequences) {
      for (const BlockPresence& present : cache_->Lookup(pool_.id, hashes)) {
        if (!present.anywhere()) break;
        usable.pool += present.pool;
        usable.host += present.host;
        usable.disk += present.disk;
      }
    }
    return usable;
  }
  [[nodiscard]] uint64_t UnusableNow() const {
    const auto unusable = cache_->Gauges().unusable_blocks;
    return std::accumulate(unusable.begin(), unusable.end(), uint64_t{0});
  }
};

TEST_F(CachePrefixTest, BlocksThatStayDoNotHideThoseThatGoWhenPartsAreSmall) {
  CacheSetup setup = KeepingUnusable({.pool_blocks = 16});
  setup.options.search_part_blocks = 2;
  Start(setup);
  const Hashes children = Sequence(2, 6);
  const Handles taken = Acquire(kAlice, {}, 7).new_blocks;
  ASSERT_TRUE(TryCommit(kAlice, taken[6], {.hash = TestHash(1, 0)}));
  for (size_t i = 0; i < children.size(); ++i) {
    ASSERT_TRUE(
        TryCommit(kAlice, taken[i], {.hash = children[i], .parent = TestHash(1, 0), .depth = 1}));
  }
  // The ones linked last are met first, and stay in use.
  Release(kAlice, {taken[0], taken[1], taken[2], taken[6]});
  Settle();
  EvictEverywhere(TestHash(1, 0));
  LetUnusableGo();
  for (size_t i = 0; i < children.size(); ++i) {
    EXPECT_EQ(Presence(children[i]).anywhere(), i >= 3) << i;
  }
  Release(kAlice, {taken[3], taken[4], taken[5]});
  LetUnusableGo();
  EXPECT_EQ(UnusableNow(), 0u);
}

TEST_F(CachePrefixTest, SequencesPushedThroughAFullDirtyHostLeaveUsablePrefixes) {
  constexpr uint32_t kBlocks = 768;
  Start(KeepingUnusable({.pool_blocks = 1024, .host_slots = 992, .disk_slots = 8192}));
  std::vector<Hashes> sequences{Sequence(1, 992)};
  PushThrough(sequences[0], 1000);
  machine_->loop.Hold(file().source());
  for (uint64_t stream = 2; stream < 6; ++stream) {
    sequences.push_back(Sequence(stream, kBlocks));
    PushThrough(sequences.back(), 4);
  }
  LetUnusableGo();
  const Usable usable = CountUsable(sequences);
  EXPECT_GE(usable.host, 992 * 95 / 100);
  EXPECT_GE(usable.pool, 1024 * 95 / 100);
  EXPECT_LE(cache_->Gauges().host_blocks - usable.host, kWritesInFlight);
  EndWrites();
  EXPECT_EQ(CountUsable(sequences).host, cache_->Gauges().host_blocks);
  EXPECT_EQ(CountUsable(sequences).disk, cache_->Gauges().disk_blocks);
}

TEST_F(CachePrefixTest, OlderUnwrittenBlocksOfHostGoBeforeYoungerOnesOfThePool) {
  Start(KeepingUnusable({.pool_blocks = 16, .host_slots = 16, .disk_slots = 64}));
  machine_->loop.Hold(file().source());
  PutLinked(Sequence(1, 16));
  const std::vector<Hashes> young{Sequence(2, 16), Sequence(3, 16)};
  for (const Hashes& hashes : young) PushThrough(hashes, 0);
  EXPECT_GT(Drops(Tier::kHost, DropReason::kPoolPressure), 0u);
  EXPECT_EQ(Drops(Tier::kPool, DropReason::kPoolPressure), 0u);
  EndWrites();
}

TEST_F(CachePrefixTest, WhatASlowDiskWritesUnderPressureIsPrefixes) {
  Start(KeepingUnusable({.pool_blocks = 32, .host_slots = 128, .disk_slots = 1024}));
  machine_->loop.Hold(file().source());
  std::vector<Hashes> sequences;
  for (uint64_t stream = 1; stream < 40; ++stream) {
    sequences.push_back(Sequence(stream, 24));
    PushThrough(sequences.back(), 6);
  }
  EndWrites();
  const uint64_t written = cache_->stats().disk_write_blocks;
  ASSERT_GT(written, 30u);
  EXPECT_GE(CountUsable(sequences).disk, written * 9 / 10);
  EXPECT_EQ(UnusableNow(), 0u);
}

// As blocks of windows and states are committed: without parents, the later the less deep.
TEST_F(CachePrefixTest, BlocksThatStandAloneStayWhenTheOneBeforeThemIsLost) {
  Start(KeepingUnusable());
  const Hashes hashes = Sequence(1, 4);
  const Handles taken = Acquire(kAlice, {}, 4).new_blocks;
  for (uint32_t i = 0; i < 4; ++i) {
    ASSERT_TRUE(TryCommit(kAlice, taken[i], {.hash = hashes[i], .depth = UINT32_MAX - i}));
  }
  Release(kAlice, taken);
  // An acquire of neighbours must not link them either.
  Release(kAlice, HandlesOf(Acquire(kAlice, hashes)));
  EvictEverywhere(hashes[1]);
  EXPECT_EQ(UnusableNow(), 0u);
  LetUnusableGo();
  EXPECT_TRUE(Presence(hashes[2]).anywhere());
  EXPECT_TRUE(Presence(hashes[3]).anywhere());
}

TEST_F(CachePrefixTest, WhatFollowsALostBlockLeavesEveryTierAfterAWhile) {
  Start(KeepingUnusable());
  PutLinked(Sequence(1, 6));
  Drain();
  EvictEverywhere(TestHash(1, 2));
  EXPECT_GT(UnusableNow(), 0u);
  AdvanceAndTick(kKeepMs / 2);
  EXPECT_TRUE(Presence(TestHash(1, 5)).anywhere()) << "the lost block may come back";
  LetUnusableGo();
  for (uint32_t i = 0; i < 6; ++i) EXPECT_EQ(Presence(TestHash(1, i)).anywhere(), i < 2) << i;
  EXPECT_EQ(Drops(Tier::kPool, DropReason::kParentLost), 3u);
  EXPECT_EQ(Drops(Tier::kDisk, DropReason::kParentLost), 3u);
  EXPECT_EQ(UnusableNow(), 0u);
  EXPECT_EQ(cache_->Gauges().entries, 2u);
}

TEST_F(CachePrefixTest, ABlockThatComesBackInTimeMakesItsFollowersUsableAgain) {
  Start(KeepingUnusable());
  PutLinked(Sequence(1, 6));
  EvictEverywhere(TestHash(1, 0));
  AdvanceAndTick(kKeepMs / 2);
  PutLinked(Sequence(1, 1));
  LetUnusableGo();
  EXPECT_EQ(Acquire(kBob, Sequence(1, 6)).hits.size(), 6u);
  EXPECT_EQ(UnusableNow(), 0u);
}

TEST_F(CachePrefixTest, ALostBlockIsNotListedAndCannotBePinned) {
  Start(KeepingUnusable());
  PutLinked(Sequence(1, 3));
  EvictEverywhere(TestHash(1, 0));
  EXPECT_FALSE(cache_->Inspect({NamespaceId(0), TestHash(1, 0)}));
  EXPECT_EQ(cache_->Walk(0, 100, 100, {}).blocks.size(), 2u);
  EXPECT_EQ(*cache_->Pin(kAlice, pool_.id, Sequence(1, 1), 1000), 0u);
  EXPECT_EQ(cache_->Evict({NamespaceId(0), TestHash(1, 0)}, std::nullopt), EvictOutcome::kAbsent);
}

TEST_F(CachePrefixTest, UnusableBlocksThatASessionHoldsStayUntilItReleasesThem) {
  Start(KeepingUnusable());
  const Handles held = StoreLinked(Sequence(1, 3));
  Release(kAlice, {held[0]});
  EvictEverywhere(TestHash(1, 0));
  LetUnusableGo();
  EXPECT_TRUE(Presence(TestHash(1, 1)).pool);
  EXPECT_TRUE(Presence(TestHash(1, 2)).pool);
  EXPECT_EQ(UnusableNow(), 1u) << "of each stretch the first is counted";
  Release(kAlice, {held[1], held[2]});
  LetUnusableGo();
  EXPECT_EQ(cache_->Gauges().entries, 0u);
}

TEST_F(CachePrefixTest, PinnedBlocksStayThoughTheyAreUnusable) {
  Start(KeepingUnusable());
  PutLinked(Sequence(1, 3));
  ASSERT_EQ(*cache_->Pin(kAlice, pool_.id, Hashes{TestHash(1, 1)}, 1'000'000), 1u);
  EvictEverywhere(TestHash(1, 0));
  LetUnusableGo();
  EXPECT_TRUE(Presence(TestHash(1, 1)).anywhere());
  EXPECT_FALSE(Presence(TestHash(1, 2)).anywhere()) << "the pin is not its own";
}

TEST_F(CachePrefixTest, UnusableBlocksLeaveInParts) {
  constexpr uint32_t kBlocks = 2500;
  Start(KeepingUnusable({.pool_blocks = kBlocks, .host_slots = 8, .disk_slots = 0}));
  PutLinked(Sequence(1, kBlocks));
  EvictEverywhere(TestHash(1, 0));
  machine_->clock.Advance(kKeepMs + 1000);
  cache_->Tick();
  uint64_t dropped = Drops(Tier::kPool, DropReason::kParentLost);
  EXPECT_LE(dropped, 1024u);
  while (machine_->loop.RunOne()) {
    const uint64_t now = Drops(Tier::kPool, DropReason::kParentLost);
    EXPECT_LE(now - dropped, 1024u);
    dropped = now;
  }
  EXPECT_EQ(dropped, kBlocks - 1);
}

TEST_F(CachePrefixTest, ALostBlockWithManyFollowersIsFoundAgain) {
  Start(KeepingUnusable({.pool_blocks = 64}));
  PutLinked(Sequence(1, 1));
  for (uint64_t stream = 2; stream < 40; ++stream) {
    const AcquireReply reply = Acquire(kAlice, {}, 1);
    ASSERT_TRUE(TryCommit(kAlice, reply.new_blocks[0],
                          {.hash = TestHash(stream, 1), .parent = TestHash(1, 0), .depth = 1}));
    Release(kAlice, reply.new_blocks);
  }
  EvictEverywhere(TestHash(1, 0));
  PutLinked(Sequence(1, 1));
  LetUnusableGo();
  EXPECT_EQ(Drops(Tier::kPool, DropReason::kParentLost), 0u);
  EvictEverywhere(TestHash(1, 0));
  LetUnusableGo();
  EXPECT_EQ(cache_->Gauges().entries, 0u);
}

TEST_F(CachePrefixTest, ABlockCommittedBehindAnUnknownOneIsUnusable) {
  Start(KeepingUnusable());
  const AcquireReply reply = Acquire(kAlice, {}, 1);
  ASSERT_TRUE(TryCommit(kAlice, reply.new_blocks[0],
                        {.hash = TestHash(1, 4), .parent = TestHash(1, 3), .depth = 4}));
  Release(kAlice, reply.new_blocks);
  LetUnusableGo();
  EXPECT_EQ(cache_->Gauges().entries, 0u);
}

TEST_F(CachePrefixTest, BlocksThatNameEachOtherAsParentsMakeNoCircle) {
  Start(KeepingUnusable());
  const AcquireReply reply = Acquire(kAlice, {}, 2);
  ASSERT_TRUE(TryCommit(kAlice, reply.new_blocks[0],
                        {.hash = TestHash(1, 0), .parent = TestHash(1, 1), .depth = 5}));
  ASSERT_TRUE(TryCommit(kAlice, reply.new_blocks[1],
                        {.hash = TestHash(1, 1), .parent = TestHash(1, 0), .depth = 6}));
  Release(kAlice, reply.new_blocks);
  Settle();
  Drain();
  LetUnusableGo();
  EXPECT_EQ(UnusableNow(), 0u);
}

TEST_F(CachePrefixTest, AfterARestartAnAcquireTellsWhichBlockFollowsWhich) {
  Start(KeepingUnusable());
  PutLinked(Sequence(1, 4));
  DrainAndRestart();
  Use(Sequence(1, 4));
  EvictEverywhere(TestHash(1, 1));
  LetUnusableGo();
  for (uint32_t i = 0; i < 4; ++i) EXPECT_EQ(Presence(TestHash(1, i)).anywhere(), i < 1) << i;
}

TEST_F(CachePrefixTest, BlocksWithoutAKnownParentStay) {
  Start(KeepingUnusable());
  Put(Sequence(1, 4));
  EvictEverywhere(TestHash(1, 1));
  LetUnusableGo();
  EXPECT_TRUE(Presence(TestHash(1, 2)).anywhere());
}

TEST_F(CachePrefixTest, LinksOutliveTheDaemonInTheIndex) {
  Start(KeepingUnusable());
  PutLinked(Sequence(1, 6));
  DrainAndRestart();
  EXPECT_EQ(UnusableNow(), 0u);
  EvictEverywhere(TestHash(1, 2));
  LetUnusableGo();
  for (uint32_t i = 0; i < 6; ++i) EXPECT_EQ(Presence(TestHash(1, i)).disk, i < 2) << i;
}

TEST_F(CachePrefixTest, LinksOutliveTheIndexInTheHeaders) {
  Start(KeepingUnusable());
  PutLinked(Sequence(1, 6));
  Drain();
  LoseIndexAndRestart();
  EXPECT_EQ(UnusableNow(), 0u);
  EvictEverywhere(TestHash(1, 2));
  LetUnusableGo();
  EXPECT_EQ(cache_->Gauges().disk_blocks, 2u);
  EXPECT_EQ(Acquire(kAlice, Sequence(1, 6)).hits.size(), 2u);
}

// The start of the sequence was only in memory when the daemon died.
TEST_F(CachePrefixTest, WhatLostItsStartWithTheDaemonWaitsForIt) {
  Start(KeepingUnusable());
  PutLinked(Sequence(1, 6));
  Drain();
  IndexSnapshot snapshot = machine_->Snapshot();
  std::erase_if(snapshot.records, [](const IndexRecord& record) { return record.depth == 2; });
  machine_->index->ReplaceWith(snapshot);
  CrashAndRestart();
  EXPECT_EQ(UnusableNow(), 1u) << "of each stretch the first is counted";
  AdvanceAndTick(kKeepMs / 2);
  EXPECT_TRUE(Presence(TestHash(1, 5)).disk) << "the lost block may come back";
  LetUnusableGo();
  for (uint32_t i = 0; i < 6; ++i) EXPECT_EQ(Presence(TestHash(1, i)).disk, i < 2) << i;
}

TEST_F(CachePrefixTest, TheHeaderOnDiskNamesTheParent) {
  Start(KeepingUnusable());
  PutLinked(Sequence(1, 2));
  Drain();
  const BlockHash parent = TestHash(1, 0);
  const auto contents = std::as_bytes(std::span(file().contents()));
  const auto named = std::ranges::search(contents, std::as_bytes(std::span(parent.bytes)));
  ASSERT_FALSE(named.empty());
  // Once as the first block's own hash, once as the second's parent.
  const std::span after(named.end(), contents.end());
  EXPECT_FALSE(std::ranges::search(after, std::as_bytes(std::span(parent.bytes))).empty());
}

}  // namespace
}  // namespace kvtier
