// SPDX-License-Identifier: Apache-2.0
// A cache whose files are encrypted: nothing changes for its users, and the bytes on disk come to
// nothing without the keys.

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "tests/unit/tiers/encrypted_cache_fixture.h"
#include "tiers/index/index_start.h"

namespace kvtier {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

class CacheEncryptionTest : public EncryptedCacheTest {};

TEST_F(CacheEncryptionTest, BlocksAreServedFromDiskWithTheirBytes) {
  Start();
  Put(Sequence(1, 10));
  Drain();
  CrashAndRestart();
  const AcquireReply reply = Acquire(kAlice, Sequence(1, 10));
  ASSERT_EQ(reply.hits.size(), 10u);
  EXPECT_THAT(TiersOf(reply), Each(Tier::kDisk));
  EXPECT_EQ(LastProgress(reply.load).ready, 10u);
  for (uint32_t i = 0; i < 10; ++i) {
    EXPECT_TRUE(MatchesHash(TestHash(1, i), Bytes(reply.hits[i].handle)));
  }
}

TEST_F(CacheEncryptionTest, BlocksThatMoveBelowTheEndOfASmallerDiskKeepTheirBytes) {
  Start();
  Put(Sequence(1, 12));
  Put(Sequence(2, 12));
  Drain();
  for (const BlockHash& hash : Sequence(1, 12)) {
    ASSERT_EQ(cache_->Evict({pool_.namespace_id, hash}, std::nullopt), EvictOutcome::kEvicted);
  }
  Settle();
  CrashAndRestart();
  cache_->Resize({.disk = DriveSlabs{2}});
  for (int tick = 0; tick < 50; ++tick) AdvanceAndTick(100);
  ASSERT_EQ(file().bytes(), kFirstSlabOffset + 2 * kSlabBytes);
  CrashAndRestart();
  const AcquireReply reply = Acquire(kAlice, Sequence(2, 12));
  ASSERT_EQ(reply.hits.size(), 12u);
  EXPECT_THAT(TiersOf(reply), Each(Tier::kDisk));
  for (uint32_t i = 0; i < 12; ++i) {
    EXPECT_TRUE(MatchesHash(TestHash(2, i), Bytes(reply.hits[i].handle)));
  }
}

TEST_F(CacheEncryptionTest, WithoutTheKeysNothingIsServed) {
  Start();
  Put(Sequence(1, 10));
  Drain();
  NewKeys();
  CrashAndRestart();
  EXPECT_EQ(cache_->stats().restored_blocks, 0u);
  EXPECT_TRUE(Acquire(kAlice, Sequence(1, 10)).hits.empty());
}

TEST_F(CacheEncryptionTest, NeitherHashesNorBytesLieOnDiskOrInTheIndex) {
  Start();
  Put(Sequence(1, 10));
  Drain();
  const IndexSnapshot stored = machine_->Snapshot();
  ASSERT_EQ(stored.records.size(), 10u);
  const Hashes hashes = Sequence(1, 10);
  for (const IndexRecord& record : stored.records) {
    EXPECT_EQ(std::ranges::count(hashes, record.key.hash), 0);
    if (record.parent) {
      EXPECT_EQ(std::ranges::count(hashes, *record.parent), 0);
    }
  }
  const AcquireReply reply = Acquire(kAlice, hashes);
  for (uint32_t i = 0; i < 10; ++i) {
    EXPECT_FALSE(OnDisk(std::as_bytes(std::span(hashes[i].bytes))));
    EXPECT_FALSE(OnDisk(Bytes(reply.hits[i].handle).first(32)));
  }
}

TEST_F(CacheEncryptionTest, TokenIdsInTheIndexAreReadWithTheKeysAndDeletedWithoutThem) {
  CacheSetup setup;
  setup.options.token_tenants = {"tenant"};
  Start(setup);
  const std::vector<uint32_t> ids(kBlockTokens, 0x12345678);
  ASSERT_TRUE(cache_->GiveTokenIds(pool_.id, Sequence(1, 1)[0], ids));
  Put(Sequence(1, 1));
  Drain();
  const IndexSnapshot stored = machine_->Snapshot();
  ASSERT_EQ(stored.tokens.size(), 1u);
  EXPECT_NE(stored.tokens[0].key.hash, Sequence(1, 1)[0]);
  const auto plain = std::as_bytes(std::span(ids)).first(8);
  EXPECT_EQ(std::ranges::search(stored.tokens[0].ids, plain).size(), 0u);
  AdoptKeys();
  CrashAndRestart();
  EXPECT_EQ(cache_->Gauges().token_blocks, 1u);
  cipher_->keys().Destroy("tenant", KeyRing::kNoHour);
  CrashAndRestart();
  Settle();
  EXPECT_EQ(cache_->Gauges().token_blocks, 0u);
  EXPECT_TRUE(machine_->Snapshot().tokens.empty());
}

TEST_F(CacheEncryptionTest, AnIndexThatIsLostIsRebuiltFromEncryptedHeaders) {
  Start();
  Put(Sequence(1, 10));
  Drain();
  cache_.reset();
  machine_->Crash();
  const DiskReadFunction read = [this](std::span<DiskRead> reads) {
    for (DiskRead& one : reads) {
      const auto from = file(one.file).contents().subspan(one.offset, one.into.size());
      std::ranges::copy(from, one.into.begin());
    }
  };
  RebuildOptions options{.now_ms = machine_->clock.WallMs(), .cipher = cipher_};
  const RebuiltIndex rebuilt = RebuildIndex(machine_->geometry(), read, options);
  std::vector<BlockHash> found;
  for (const IndexRecord& record : rebuilt.snapshot.records) found.push_back(record.key.hash);
  EXPECT_THAT(found, ::testing::UnorderedElementsAreArray(Sequence(1, 10)));
  // And without keys nothing is found, and it is said why.
  cipher_->keys().Destroy("tenant", KeyRing::kNoHour);
  const RebuiltIndex erased = RebuildIndex(machine_->geometry(), read, options);
  EXPECT_TRUE(erased.snapshot.records.empty());
  EXPECT_EQ(erased.rejected[static_cast<size_t>(RebuildReject::kErased)], 10u);
}

TEST_F(CacheEncryptionTest, ABlockWhoseKeyIsGoneIsAMissThatSaysErasedAndItsSlotIsUsedAgain) {
  Start();
  Put(Sequence(1, 4));
  Drain();
  CrashAndRestart();
  cipher_->keys().Destroy("tenant", KeyRing::kNoHour);
  const AcquireReply reply = Acquire(kAlice, Sequence(1, 1));
  EXPECT_EQ(LastProgress(reply.load).ready, 0u);
  EXPECT_EQ(LastProgress(reply.load).miss, MissReason::kErased);
  EXPECT_EQ(Misses(MissReason::kErased), 1u);
  EXPECT_EQ(Drops(Tier::kDisk, DropReason::kErased), 1u);
  EXPECT_EQ(cache_->stats().slots_quarantined, 0u);
}

TEST_F(CacheEncryptionTest, AScrubDropsWhatIsErased) {
  Start();
  Put(Sequence(1, 4));
  Drain();
  CrashAndRestart();
  cipher_->keys().Destroy("tenant", KeyRing::kNoHour);
  std::optional<VerifyResult> result;
  cache_->VerifyStep(0, 100, [&](const VerifyResult& verified) { result = verified; });
  Settle();
  ASSERT_TRUE(result.has_value());
  EXPECT_EQ(result->bad, 4u);
  EXPECT_EQ(Drops(Tier::kDisk, DropReason::kErased), 4u);
  EXPECT_EQ(Drops(Tier::kDisk, DropReason::kCorrupt), 0u);
}

TEST_F(CacheEncryptionTest, AFlippedBitOnDiskIsAMiss) {
  Start();
  Put(Sequence(1, 1));
  Drain();
  const DiskLocation location = machine_->Snapshot().records.at(0).location;
  const uint64_t slot = machine_->geometry().OffsetInFile(location);
  CrashAndRestart();
  file().contents()[slot + kSlotHeaderBytes + 17] ^= std::byte{1};
  const AcquireReply reply = Acquire(kAlice, Sequence(1, 1));
  EXPECT_EQ(LastProgress(reply.load).miss, MissReason::kChecksumMismatch);
}

TEST_F(CacheEncryptionTest, ErasedBlocksAreGoneFromEveryTierAndTheirKeysFirst) {
  Start();
  Put(Sequence(1, 4));
  Drain();
  ASSERT_EQ(cipher_->keys().size(), 2u);
  BeginErasure({.tenant = "tenant"});
  EXPECT_EQ(cache_->Gauges().host_blocks, 4u);
  // The key of the index stays, for deletions need it.
  EXPECT_EQ(cipher_->keys().size(), 1u);
  ASSERT_TRUE(FinishErasure());
  EXPECT_EQ(erased_.keys, 1u);
  EXPECT_THAT(erased_.blocks, ElementsAre(4u, 4u, 4u));
  EXPECT_EQ(erased_.referenced, 0u);
  EXPECT_EQ(erased_.moving, 0u);
  EXPECT_TRUE(machine_->Snapshot().records.empty());
  EXPECT_TRUE(machine_->Snapshot().erasures.empty());
  EXPECT_EQ(cache_->Gauges().host_blocks, 0u);
  EXPECT_EQ(PoolGaugesNow().cached, 0u);
  const AcquireReply reply = Acquire(kAlice, Sequence(1, 4));
  EXPECT_TRUE(reply.hits.empty());
  EXPECT_EQ(reply.miss, MissReason::kErased);
}

TEST_F(CacheEncryptionTest, ErasingOneTenantLeavesTheOthers) {
  Start();
  Put(Sequence(1, 4));
  Drain();
  Erase({.tenant = "another"});
  ASSERT_TRUE(FinishErasure());
  EXPECT_EQ(erased_.keys, 0u);
  EXPECT_THAT(erased_.blocks, Each(0u));
  CrashAndRestart();
  EXPECT_EQ(LastProgress(Acquire(kAlice, Sequence(1, 4)).load).ready, 4u);
}

TEST_F(CacheEncryptionTest, ErasingWhatIsOlderLeavesWhatIsYounger) {
  Start();
  Put(Sequence(1, 4));
  Drain();
  AdvanceAndTick(2 * kHourMs);
  Put(Sequence(2, 4));
  Drain();
  const auto hour = static_cast<uint32_t>(machine_->clock.WallMs() / kHourMs);
  Erase({.tenant = "tenant", .end_hour = hour});
  ASSERT_TRUE(FinishErasure());
  EXPECT_EQ(erased_.keys, 1u);
  EXPECT_THAT(erased_.blocks, ElementsAre(4u, 4u, 4u));
  CrashAndRestart();
  EXPECT_TRUE(Acquire(kAlice, Sequence(1, 4)).hits.empty());
  EXPECT_EQ(LastProgress(Acquire(kAlice, Sequence(2, 4)).load).ready, 4u);
}

TEST_F(CacheEncryptionTest, ErasedBlocksThatAreHeldLiveUntilTheyAreReleased) {
  Start();
  const Handles held = Store(kAlice, Sequence(1, 4));
  Drain();
  Erase({.tenant = "tenant"});
  ASSERT_TRUE(FinishErasure());
  EXPECT_EQ(erased_.referenced, 4u);
  EXPECT_TRUE(MatchesHash(TestHash(1, 2), Bytes(held[2])));
  EXPECT_EQ(Acquire(kBob, Sequence(1, 4)).miss, MissReason::kErased);
  EXPECT_EQ(PoolGaugesNow().free, 12u);
  Release(kAlice, held);
  Settle();
  EXPECT_EQ(PoolGaugesNow().free, 16u);
  EXPECT_TRUE(Acquire(kBob, Sequence(1, 4)).hits.empty());
}

TEST_F(CacheEncryptionTest, PinsDoNotKeepBlocksFromBeingErased) {
  Start();
  Put(Sequence(1, 4));
  Drain();
  ASSERT_EQ(cache_->Pin(NamespaceId(0), Sequence(1, 4), kHourMs).value(), 4u);
  Erase({.tenant = "tenant"});
  ASSERT_TRUE(FinishErasure());
  EXPECT_THAT(erased_.blocks, ElementsAre(4u, 4u, 4u));
  EXPECT_EQ(cache_->Gauges().pinned_blocks, 0u);
}

TEST_F(CacheEncryptionTest, AnErasureDuringWritesLeavesNothingOfThem) {
  Start();
  Put(Sequence(1, 4));
  Drain();
  Put(Sequence(2, 4));
  file().HoldWrites();
  cache_->Drain([] {});
  Settle();
  ASSERT_GT(cache_->Gauges().disk_writes_in_flight, 0u);
  Erase({.tenant = "tenant"});
  Settle();
  EXPECT_FALSE(erasure_ended_) << "a block is looked at again when it has been written";
  for (int i = 0; i < 10 && !erasure_ended_; ++i) {
    file().LetWritesGo(100);
    AdvanceAndTick(1);
  }
  ASSERT_TRUE(erasure_ended_);
  EXPECT_EQ(erased_.moving, 0u);
  EXPECT_EQ(cipher_->keys().size(), 1u);
  EXPECT_TRUE(machine_->Snapshot().records.empty());
  CrashAndRestart();
  EXPECT_TRUE(Acquire(kAlice, Sequence(1, 4)).hits.empty());
  EXPECT_TRUE(Acquire(kAlice, Sequence(2, 4)).hits.empty());
}

TEST_F(CacheEncryptionTest, ACrashDuringAnErasureLeavesTheKeysDestroyed) {
  Start();
  Put(Sequence(1, 4));
  Drain();
  BeginErasure({.tenant = "tenant"});
  AdoptKeys();
  CrashAndRestart();
  const AcquireReply reply = Acquire(kAlice, Sequence(1, 4));
  EXPECT_EQ(LastProgress(reply.load).ready, 0u);
  EXPECT_EQ(LastProgress(reply.load).miss, MissReason::kErased);
}

// Host memory has the blocks in the open.
TEST_F(CacheEncryptionTest, WhatADaemonBeganToEraseTheNextOneErases) {
  Start({.keep_host = true});
  Put(Sequence(1, 4));
  Drain();
  BeginErasure({.tenant = "tenant"});
  AdoptKeys();
  DieAndAdopt();
  for (int ticks = 0; ticks < 5 && resumed_.empty(); ++ticks) AdvanceAndTick(1);
  EXPECT_THAT(resumed_, ElementsAre("tenant"));
  EXPECT_EQ(cache_->stats().adopted_blocks, 0u);
  EXPECT_EQ(cache_->Gauges().host_blocks, 0u);
  EXPECT_TRUE(machine_->Snapshot().records.empty());
  EXPECT_TRUE(machine_->Snapshot().erasures.empty());
  EXPECT_TRUE(Acquire(kAlice, Sequence(1, 4)).hits.empty());
  // Later blocks stay, also over the next death.
  AdvanceAndTick(1000);
  Put(Sequence(2, 4));
  Drain();
  AdoptKeys();
  DieAndAdopt();
  EXPECT_EQ(Acquire(kAlice, Sequence(2, 4)).hits.size(), 4u);
  EXPECT_EQ(resumed_.size(), 1u);
}

TEST_F(CacheEncryptionTest, AnErasureThatFailedLeavesTheNextDaemonTheBlocksOfLaterHours) {
  Start();
  Put(Sequence(1, 4));
  Drain();
  bool failed = false;
  cache_->Erase({.tenant = "tenant"},
                [&](const EraseReport&, const Status& status) { failed = !status; });
  ASSERT_TRUE(machine_->loop.RunOneOf(machine_->index->source()));
  machine_->index->RefuseNextBatches(1);
  Settle();
  ASSERT_TRUE(failed);
  AdvanceAndTick(kHourMs);
  Put(Sequence(2, 4));
  Drain();
  AdoptKeys();
  CrashAndRestart();
  for (int ticks = 0; ticks < 5 && resumed_.empty(); ++ticks) AdvanceAndTick(1);
  EXPECT_THAT(resumed_, ElementsAre("tenant"));
  EXPECT_EQ(LastProgress(Acquire(kAlice, Sequence(2, 4)).load).ready, 4u);
}

TEST_F(CacheEncryptionTest, AnErasureIsRememberedWithTheHourOfAClockThatWasSetBack) {
  Start();
  const auto hour = static_cast<uint32_t>(machine_->clock.WallMs() / kHourMs);
  machine_->clock.StepWall(kHourMs);
  Put(Sequence(1, 4));
  Drain();
  machine_->clock.StepWall(-kHourMs);
  BeginErasure({.tenant = "tenant"});
  EXPECT_EQ(machine_->Snapshot().erasures.at(0).end_hour, hour + 2);
}

TEST_F(CacheEncryptionTest, DaemonsThatDieOneAfterTheOtherFinishErasuresOfTwoTenants) {
  Start({.keep_host = true});
  Put(Sequence(1, 4));
  Drain();
  Erase({.tenant = "another"});
  Erase({.tenant = "tenant"});
  ASSERT_TRUE(machine_->loop.RunOneOf(machine_->index->source()));
  ASSERT_TRUE(machine_->loop.RunOneOf(machine_->index->source()));
  for (int deaths = 0; deaths < 3; ++deaths) {
    AdoptKeys();
    cache_.reset();
    machine_->Crash(FakeMachine::HostMemory::kKept);
    EXPECT_EQ(machine_->Snapshot().erasures.size(), 2u);
  }
  DieAndAdopt();
  for (int ticks = 0; ticks < 5 && resumed_.size() < 2; ++ticks) AdvanceAndTick(1);
  EXPECT_THAT(resumed_, ElementsAre("another", "tenant"));
  EXPECT_EQ(cache_->Gauges().host_blocks, 0u);
}

TEST_F(CacheEncryptionTest, AnErasureThatTheIndexRefusesToRememberIsDoneAndReported) {
  Start();
  Put(Sequence(1, 4));
  Drain();
  machine_->index->FailNextBatches(1);
  Status told;
  bool ended = false;
  cache_->Erase({.tenant = "tenant"}, [&](const EraseReport&, const Status& status) {
    told = status;
    ended = true;
  });
  Settle();
  for (int ticks = 0; ticks < 5 && !ended; ++ticks) AdvanceAndTick(1);
  ASSERT_TRUE(ended);
  EXPECT_THAT(told, IsErrorOf(ErrorCode::kIoError, "index_write"));
  EXPECT_EQ(cipher_->keys().size(), 1u);
  EXPECT_EQ(cache_->Gauges().host_blocks, 0u);
}

TEST_F(CacheEncryptionTest, ATenantWhoseNameIsTooLongHasNothingToErase) {
  Start();
  Put(Sequence(1, 4));
  Erase({.tenant = std::string(kMaxTenantBytes + 1, 't')});
  ASSERT_TRUE(FinishErasure());
  EXPECT_THAT(erased_.blocks, Each(0u));
}

TEST_F(CacheEncryptionTest, AnErasureAnswersWhenTheFileOfKeysHasForgottenThem) {
  KeepKeysInFile();
  Start();
  Put(Sequence(1, 4));
  Drain();
  ASSERT_EQ(key_file_->Load(std::nullopt)->keys.size(), 2u);
  Erase({.tenant = "tenant"});
  ASSERT_TRUE(FinishErasure());
  const std::vector<StoredKey> left = key_file_->Load(std::nullopt)->keys;
  ASSERT_EQ(left.size(), 1u);
  EXPECT_EQ(left.front().hour, KeyRing::kNoHour) << "that of the index";
}

TEST_F(CacheEncryptionTest, BlocksThatAreStoredAfterAnErasureStay) {
  Start();
  Put(Sequence(1, 4));
  Drain();
  Erase({.tenant = "tenant"});
  ASSERT_TRUE(FinishErasure());
  AdvanceAndTick(1000);
  Put(Sequence(1, 4));
  Drain();
  CrashAndRestart();
  EXPECT_EQ(LastProgress(Acquire(kAlice, Sequence(1, 4)).load).ready, 4u);
}

TEST_F(CacheEncryptionTest, EvictedBlocksLeaveTheIndex) {
  Start();
  Put(Sequence(1, 4));
  Drain();
  for (const BlockHash& hash : Sequence(1, 4)) {
    EXPECT_EQ(cache_->Evict({NamespaceId(0), hash}, std::nullopt), EvictOutcome::kEvicted);
  }
  Settle();
  EXPECT_TRUE(machine_->Snapshot().records.empty());
}

}  // namespace
}  // namespace kvtier
