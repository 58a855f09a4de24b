// SPDX-License-Identifier: Apache-2.0
// Which tokens blocks hold, as clients tell it and events say it: never of a tenant that did not
// ask for it, never of another block, and no longer than the block is cached.

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "tests/fakes/seeded_random.h"
#include "tests/unit/tiers/cache_fixture.h"
#include "tiers/index/index_codec.h"
#include "tiers/state/token_ids.h"

namespace kvtier {
namespace {

using Ids = std::vector<uint32_t>;

// A router's knowledge of ids.
class IdSink final : public BlockEventSink {
 public:
  void BlockStored(const StoredBlock& block) override {
    ids[{block.key.hash, block.tier}] = Ids(block.token_ids.begin(), block.token_ids.end());
    ++stored;
  }
  void BlockRemoved(const BlockKey& key, Tier tier) override { ids.erase({key.hash, tier}); }
  void TokenIdsErased() override { ++erased; }

  std::map<std::pair<BlockHash, Tier>, Ids> ids;
  uint64_t stored = 0;
  uint64_t erased = 0;
};

class CacheTokenIdsTest : public CacheTest {
 protected:
  ~CacheTokenIdsTest() override { cache_.reset(); }

  void Open(CacheSetup setup = {}, std::vector<std::string> tenants = {"tenant"}) {
    setup.options.token_tenants = std::move(tenants);
    setup.options.token_bytes = token_bytes_;
    setup.events = &sink_;
    Start(setup);
  }
  [[nodiscard]] static Ids IdsOf(const BlockHash& hash, size_t tokens = kBlockTokens) {
    Ids ids(tokens);
    for (size_t i = 0; i < tokens; ++i) {
      ids[i] = static_cast<uint32_t>(hash.Prefix64() + i);
    }
    return ids;
  }
  // As Store and Put, but each block names the one before it.
  Handles StoreChain(const Hashes& hashes, RetentionClass retention = RetentionClass::kExtended) {
    const AcquireReply reply = Acquire(kAlice, hashes, static_cast<uint32_t>(hashes.size()));
    Handles blocks = HandlesOf(reply);
    for (const BlockHandle block : reply.new_blocks) {
      const size_t depth = blocks.size();
      blocks.push_back(block);
      if (depth >= hashes.size()) continue;
      CommitRequest request{
          .hash = hashes[depth], .depth = static_cast<uint32_t>(depth), .retention = retention};
      if (depth > 0) request.parent = hashes[depth - 1];
      EXPECT_TRUE(TryCommit(kAlice, block, request));
    }
    return blocks;
  }
  void PutChain(const Hashes& hashes, RetentionClass retention = RetentionClass::kExtended) {
    Handles blocks = StoreChain(hashes, retention);
    std::ranges::reverse(blocks);
    Release(kAlice, blocks);
    Settle();
  }
  bool Give(const BlockHash& hash, const Ids& ids) {
    return cache_->GiveTokenIds(pool_.id, hash, ids);
  }
  void GiveAll(const Hashes& hashes) {
    for (const BlockHash& hash : hashes) (void)Give(hash, IdsOf(hash));
  }
  // Nothing: it was not told of there.
  [[nodiscard]] std::optional<Ids> Told(const BlockHash& hash, Tier tier) const {
    const auto found = sink_.ids.find({hash, tier});
    return found == sink_.ids.end() ? std::nullopt : std::optional(found->second);
  }
  // The ids of the blocks that a snapshot for a late router tells.
  [[nodiscard]] std::map<std::pair<BlockHash, Tier>, Ids> Replayed() const {
    IdSink late;
    for (uint64_t cursor = 0; cursor != Cache::kReplayEnd;) {
      cursor = cache_->ReplayEvents(cursor, 4, &late);
    }
    return late.ids;
  }
  void RandomStep(SeededRandom* random);
  void ExpectIdsAreTheBlocks() const {
    for (const auto& [block, ids] : Replayed()) {
      EXPECT_TRUE(ids.empty() || ids == IdsOf(block.first)) << block.first.Hex();
    }
  }
  void ExpectIndexAgrees() const {
    const IndexSnapshot snapshot = machine_->Snapshot();
    for (const TokensRecord& tokens : snapshot.tokens) {
      EXPECT_EQ(tokens.ids, BytesOfTokenIds(IdsOf(tokens.key.hash)));
      EXPECT_TRUE(std::ranges::any_of(
          snapshot.records, [&](const IndexRecord& record) { return record.key == tokens.key; }));
    }
  }
  [[nodiscard]] size_t InIndex() const { return machine_->Snapshot().tokens.size(); }

  IdSink sink_;
  uint64_t token_bytes_ = 1 * kMiB;
};

void CacheTokenIdsTest::RandomStep(SeededRandom* random) {
  const Hashes hashes = Sequence(random->Below(8), static_cast<uint32_t>(random->Between(1, 4)));
  const uint64_t choice = random->Below(100);
  if (choice < 30) {
    (void)Give(hashes.back(), IdsOf(hashes.back()));
  } else if (choice < 60) {
    if (random->Chance(0.5)) GiveAll(hashes);
    if (cache_->Gauges().pools.front().free >= hashes.size()) PutChain(hashes);
  } else if (choice < 70) {
    const uint64_t tier = random->Below(4);
    cache_->Evict({pool_.namespace_id, hashes.back()},
                  tier == 3 ? std::nullopt : std::optional(static_cast<Tier>(tier)));
  } else if (choice < 80) {
    cache_->Drain([] {});
    for (uint64_t events = random->Below(20); events > 0; --events) machine_->loop.RunOne();
  } else if (choice < 90) {
    AdvanceAndTick(static_cast<int64_t>(random->Below(3000)));
  } else if (choice < 95) {
    machine_->index->FailBatchesAtRate(random->Chance(0.5) ? 0.3 : 0);
  } else if (choice < 98) {
    CrashAndRestart();
  } else {
    cache_->Erase({.tenant = "tenant"}, [](const EraseReport&, const Status&) {});
  }
}

TEST_F(CacheTokenIdsTest, EventsOfAllTiersSayWhichTokensABlockHolds) {
  Open();
  const Hashes hashes = Sequence(1, 3);
  GiveAll(hashes);
  PutChain(hashes);
  Drain();
  Settle();
  for (const BlockHash& hash : hashes) {
    for (const Tier tier : {Tier::kPool, Tier::kHost, Tier::kDisk}) {
      EXPECT_EQ(Told(hash, tier), IdsOf(hash));
    }
  }
  EXPECT_EQ(Replayed(), sink_.ids);
  EXPECT_EQ(cache_->Gauges().token_blocks, 3u);
}

TEST_F(CacheTokenIdsTest, OfATenantThatDidNotAskForThemNothingIsKept) {
  Open({}, {"other"});
  const Hashes hashes = Sequence(1, 2);
  EXPECT_FALSE(cache_->KeepsTokenIds(pool_.id));
  EXPECT_FALSE(Give(hashes[0], IdsOf(hashes[0])));
  PutChain(hashes);
  EXPECT_FALSE(Give(hashes[1], IdsOf(hashes[1])));
  Drain();
  Settle();
  EXPECT_EQ(Told(hashes[0], Tier::kPool), Ids());
  EXPECT_EQ(cache_->Gauges().token_bytes, 0u);
  EXPECT_EQ(InIndex(), 0u);
}

TEST_F(CacheTokenIdsTest, IdsThatComeLaterAreToldOnceMore) {
  Open();
  const Hashes hashes = Sequence(1, 2);
  PutChain(hashes);
  EXPECT_EQ(Told(hashes[0], Tier::kPool), Ids());
  GiveAll(hashes);
  EXPECT_EQ(Told(hashes[0], Tier::kPool), IdsOf(hashes[0]));
  const uint64_t stored = sink_.stored;
  EXPECT_TRUE(Give(hashes[0], Ids(kBlockTokens, 9))) << "the first ids stay";
  Settle();
  EXPECT_EQ(sink_.stored, stored);
  EXPECT_EQ(Replayed().at({hashes[0], Tier::kPool}), IdsOf(hashes[0]));
}

TEST_F(CacheTokenIdsTest, IdsOfAnotherNumberOfTokensAreNotTheBlocks) {
  Open();
  const Hashes hashes = Sequence(1, 2);
  EXPECT_TRUE(Give(hashes[0], IdsOf(hashes[0], 3)));
  PutChain(hashes);
  EXPECT_FALSE(Give(hashes[1], IdsOf(hashes[1], 3)));
  EXPECT_EQ(Told(hashes[0], Tier::kPool), Ids());
  EXPECT_EQ(Told(hashes[1], Tier::kPool), Ids());
  EXPECT_EQ(cache_->Gauges().token_blocks, 0u);
}

TEST_F(CacheTokenIdsTest, ABlockWhoseParentIsNotKnownIsToldWithoutIds) {
  Open();
  const Hashes hashes = Sequence(1, 2);
  GiveAll(hashes);
  const BlockHandle block = Acquire(kAlice, {}, 1).new_blocks.front();
  Commit(kAlice, block, hashes[1], /*depth=*/1);
  Settle();
  // A router would take it for a prompt's first.
  EXPECT_EQ(Told(hashes[1], Tier::kPool), Ids());
}

TEST_F(CacheTokenIdsTest, IdsThatNoBlockClaimsAreForgotten) {
  Open();
  const Hashes hashes = Sequence(1, 2);
  GiveAll(hashes);
  EXPECT_GT(cache_->Gauges().token_bytes, 0u);
  AdvanceAndTick(ExpectedTokens::kMaxWaitMs + 1);
  EXPECT_EQ(cache_->Gauges().token_bytes, 0u);
  PutChain(hashes);
  EXPECT_EQ(Told(hashes[0], Tier::kPool), Ids());
}

TEST_F(CacheTokenIdsTest, IdsThatNoBlockClaimsAreBounded) {
  Open();
  for (uint64_t stream = 0; stream < 40'000; ++stream) {
    const BlockHash hash = TestHash(stream, 0);
    ASSERT_TRUE(Give(hash, Ids(kBlockTokens, 1)));
  }
  EXPECT_LE(cache_->Gauges().token_bytes, ExpectedTokens::kMaxBytes);
  // The youngest are those that a client is about to commit.
  const Hashes hashes{TestHash(39'999, 0)};
  PutChain(hashes);
  EXPECT_EQ(Told(hashes[0], Tier::kPool), Ids(kBlockTokens, 1));
}

TEST_F(CacheTokenIdsTest, BeyondTheirBytesBlocksAreToldWithoutThem) {
  token_bytes_ = 250;  // of two blocks
  Open();
  const Hashes hashes = Sequence(1, 3);
  GiveAll(hashes);
  PutChain(hashes);
  EXPECT_EQ(Told(hashes[1], Tier::kPool), IdsOf(hashes[1]));
  EXPECT_EQ(Told(hashes[2], Tier::kPool), Ids());
  EXPECT_EQ(cache_->stats().token_ids_refused, 1u);
  // Blocks that leave make room.
  EXPECT_EQ(cache_->Evict({pool_.namespace_id, hashes[1]}, std::nullopt), EvictOutcome::kEvicted);
  Settle();
  EXPECT_TRUE(Give(hashes[2], IdsOf(hashes[2])));
}

TEST_F(CacheTokenIdsTest, ARestartFindsThemOfWhatIsOnDisk) {
  Open();
  const Hashes hashes = Sequence(1, 3);
  GiveAll(hashes);
  PutChain(hashes);
  DrainAndRestart();
  Settle();
  for (const BlockHash& hash : hashes) {
    EXPECT_EQ(Replayed().at({hash, Tier::kDisk}), IdsOf(hash));
  }
  EXPECT_EQ(cache_->Gauges().token_blocks, 3u);
}

TEST_F(CacheTokenIdsTest, IdsThatComeWhenABlockIsOnDiskReachTheIndex) {
  Open();
  const Hashes hashes = Sequence(1, 2);
  PutChain(hashes);
  Drain();
  Settle();
  ASSERT_EQ(InIndex(), 0u);
  GiveAll(hashes);
  cache_->Tick();
  Settle();
  EXPECT_EQ(InIndex(), 2u);
}

TEST_F(CacheTokenIdsTest, AnIndexThatRefusesIsAskedAgain) {
  Open();
  const Hashes hashes = Sequence(1, 2);
  PutChain(hashes);
  Drain();
  Settle();
  machine_->index->FailNextBatches(1);
  GiveAll(hashes);
  for (int ticks = 0; ticks < 5; ++ticks) AdvanceAndTick(1000);
  EXPECT_EQ(InIndex(), 2u);
  CrashAndRestart();
  Settle();
  EXPECT_EQ(Replayed().at({hashes[1], Tier::kDisk}), IdsOf(hashes[1]));
}

TEST_F(CacheTokenIdsTest, BlocksThatNeverGoToDiskLeaveNoIdsThere) {
  Open();
  const Hashes hashes = Sequence(1, 3);
  GiveAll(hashes);
  PutChain(hashes, RetentionClass::kMemory);
  Drain();
  Settle();
  EXPECT_EQ(Told(hashes[0], Tier::kPool), IdsOf(hashes[0]));
  EXPECT_EQ(InIndex(), 0u);
}

TEST_F(CacheTokenIdsTest, TheyGoWithTheBlocksLastTier) {
  Open();
  const Hashes hashes = Sequence(1, 3);
  GiveAll(hashes);
  PutChain(hashes);
  Drain();
  Settle();
  ASSERT_EQ(InIndex(), 3u);
  const BlockKey last{pool_.namespace_id, hashes[2]};
  EXPECT_EQ(cache_->Evict(last, Tier::kDisk), EvictOutcome::kEvicted);
  Settle();
  EXPECT_EQ(InIndex(), 2u);
  EXPECT_EQ(cache_->Gauges().token_blocks, 3u);
  EXPECT_EQ(cache_->Evict(last, std::nullopt), EvictOutcome::kEvicted);
  Settle();
  EXPECT_EQ(cache_->Gauges().token_blocks, 2u);
  // A block of that hash which is committed anew has none.
  PutChain(hashes);
  EXPECT_EQ(Told(hashes[2], Tier::kPool), Ids());
}

TEST_F(CacheTokenIdsTest, ADaemonThatKeepsThemNoMoreDeletesThem) {
  Open();
  const Hashes hashes = Sequence(1, 2);
  GiveAll(hashes);
  PutChain(hashes);
  Drain();
  Settle();
  ASSERT_EQ(InIndex(), 2u);
  setup_.options.token_tenants = {};
  CrashAndRestart();
  Settle();
  EXPECT_EQ(Replayed().at({hashes[0], Tier::kDisk}), Ids());
  EXPECT_EQ(InIndex(), 0u);
}

TEST_F(CacheTokenIdsTest, WhatIsDeletedLeavesTheFilesAlsoWhenTheIndexRefusedFirst) {
  Open();
  const Hashes hashes = Sequence(1, 2);
  GiveAll(hashes);
  PutChain(hashes);
  Drain();
  Settle();
  setup_.options.token_tenants = {};
  machine_->index->RefuseNextBatches(1);
  CrashAndRestart();
  Settle();
  ASSERT_EQ(InIndex(), 2u);
  EXPECT_EQ(machine_->index->purges(), 0u);
  AdvanceAndTick(1000);
  Settle();
  EXPECT_EQ(InIndex(), 0u);
  EXPECT_EQ(machine_->index->purges(), 1u);
}

TEST_F(CacheTokenIdsTest, AnErasureTakesThemAtOnce) {
  Open();
  const Hashes hashes = Sequence(1, 4);
  GiveAll(hashes);
  PutChain(hashes);
  Drain();
  Settle();
  EXPECT_TRUE(Give(TestHash(9, 0), IdsOf(TestHash(9, 0))));
  bool ended = false;
  cache_->Erase({.tenant = "tenant"}, [&](const EraseReport&, const Status& status) {
    EXPECT_TRUE(status);
    ended = true;
  });
  // Before anything was dropped.
  EXPECT_EQ(sink_.erased, 1u);
  for (const auto& [block, ids] : Replayed()) EXPECT_EQ(ids, Ids());
  Settle();
  for (int ticks = 0; ticks < 5 && !ended; ++ticks) AdvanceAndTick(1);
  EXPECT_TRUE(ended);
  EXPECT_EQ(InIndex(), 0u);
  EXPECT_EQ(cache_->Gauges().token_bytes, 0u);
}

TEST_F(CacheTokenIdsTest, AnErasureTakesThemOfBlocksInUse) {
  Open();
  const Hashes hashes = Sequence(1, 2);
  GiveAll(hashes);
  const Handles held = StoreChain(hashes);
  cache_->Erase({.tenant = "tenant"}, [](const EraseReport&, const Status&) {});
  Settle();
  EXPECT_EQ(cache_->Gauges().token_blocks, 0u);
  Release(kAlice, held);
}

TEST_F(CacheTokenIdsTest, IdsInTheIndexThatAreNoneAreDeleted) {
  Open();
  const Hashes hashes = Sequence(1, 3);
  GiveAll(hashes);
  PutChain(hashes);
  Drain();
  Settle();
  IndexSnapshot snapshot = machine_->Snapshot();
  ASSERT_EQ(snapshot.tokens.size(), 3u);
  const BlockHash odd = snapshot.tokens[0].key.hash, few = snapshot.tokens[1].key.hash;
  snapshot.tokens[0].ids.pop_back();
  snapshot.tokens[1].ids.resize(4);
  TokensRecord stray = snapshot.tokens[2];
  stray.key.hash = TestHash(77, 0);
  snapshot.tokens.push_back(stray);
  machine_->index->ReplaceWith(snapshot);
  CrashAndRestart();
  Settle();
  EXPECT_EQ(Replayed().at({odd, Tier::kDisk}), Ids());
  EXPECT_EQ(Replayed().at({few, Tier::kDisk}), Ids());
  EXPECT_EQ(InIndex(), 1u);
}

// Whatever fails, dies or is evicted: ids in the index are those of a record, and ids that are told
// are the block's.
TEST_F(CacheTokenIdsTest, NoOrderOfEventsTellsIdsOfAnotherBlockOrLeavesThemBehind) {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(seed);
    SeededRandom random(seed);
    cache_.reset();
    sink_.ids.clear();
    Open({.pool_blocks = 16, .host_slots = 16, .disk_slots = 32});
    for (int step = 0; step < 300 && !HasFailure(); ++step) RandomStep(&random);
    machine_->index->FailBatchesAtRate(0);
    for (int ticks = 0; ticks < 5; ++ticks) AdvanceAndTick(1000);
    ExpectIdsAreTheBlocks();
    CrashAndRestart();
    for (int ticks = 0; ticks < 5; ++ticks) AdvanceAndTick(1000);
    ExpectIdsAreTheBlocks();
    ExpectIndexAgrees();
  }
}

}  // namespace
}  // namespace kvtier
