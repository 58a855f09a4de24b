// SPDX-License-Identifier: Apache-2.0
// The cold tier: what goes down to the store, what comes back from it, and what a store that is
// slow, gone or wrong costs.

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "tests/fakes/seeded_random.h"
#include "tests/unit/tiers/cache_cold_fixture.h"

namespace kvtier {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST_F(CacheColdTest, WritesIdleBlocksOnce) {
  Start(ColdSetup());
  Put(hashes_);
  Use(hashes_);
  EvictFromPool();
  AdvanceAndTick(kAfterMs / 2);
  EXPECT_THAT(store_.objects, IsEmpty());
  AdvanceAndTick(kAfterMs / 2);
  EXPECT_THAT(store_.objects, SizeIs(4));
  AdvanceAndTick(kAfterMs);
  AdvanceAndTick(kAfterMs);
  EXPECT_EQ(stats().write_blocks, 4u);
  EXPECT_EQ(stats().write_bytes, 4 * ColdObjectBytes(kBlockBytes));
}

TEST_F(CacheColdTest, BeginsNoWriteWhenTheProcessIsAboutToEnd) {
  Start(ColdSetup());
  Put(hashes_);
  Use(hashes_);
  EvictFromPool();
  cache_->StopDraining();
  AdvanceAndTick(kAfterMs);
  EXPECT_THAT(store_.objects, IsEmpty());
  EXPECT_TRUE(cache_->Idle());
}

TEST_F(CacheColdTest, CountsWhatComesFromTheStoreAsCold) {
  WriteByAnotherHost(hashes_);
  ExpectBytes(hashes_, Acquire(kAlice, hashes_));
  EXPECT_EQ(cache_->stats().blocks.cold, 4u);
  EXPECT_EQ(cache_->stats().tokens.cold, 4u * kBlockTokens);
  // A number above the blocks that were missed would show a hit rate above the possible one.
  EXPECT_EQ(cache_->Gauges().infinite_missed_blocks, 0u);
  Release(kAlice, HandlesOf(Acquire(kAlice, hashes_)));
  EXPECT_EQ(cache_->stats().blocks.cold, 4u) << "the pool has them by now";
}

TEST_F(CacheColdTest, VerifiesWhatTheStoreHasAndDeletesWhatIsDamaged) {
  WriteByAnotherHost(hashes_);
  ExpectBytes(hashes_, Acquire(kAlice, hashes_));
  store_.objects.at(Name(hashes_[1])).bytes.back() ^= std::byte{1};
  store_.objects.erase(Name(hashes_[2]));
  VerifyResult result;
  cache_->VerifyStep(
      0, 100, [&](const VerifyResult& verified) { result = verified; }, Cache::Verified::kCold);
  Settle();
  EXPECT_TRUE(result.finished);
  EXPECT_EQ(result.checked, 3u);
  EXPECT_EQ(result.bad, 1u);
  EXPECT_EQ(result.absent, 1u);
  EXPECT_FALSE(store_.objects.contains(Name(hashes_[1])));
  EXPECT_TRUE(store_.objects.contains(Name(hashes_[0])));
}

TEST_F(CacheColdTest, TellsOfObjectsThatTheStoreDoesNotReturn) {
  WriteByAnotherHost(hashes_);
  ExpectBytes(hashes_, Acquire(kAlice, hashes_));
  store_.refuses = true;
  VerifyResult result;
  cache_->VerifyStep(
      0, 100, [&](const VerifyResult& verified) { result = verified; }, Cache::Verified::kCold);
  Settle();
  EXPECT_TRUE(result.finished);
  EXPECT_EQ(result.checked, 0u);
  EXPECT_EQ(result.unread, 4u);
}

TEST_F(CacheColdTest, WritesNothingThatWasNotUsedOrIsNotToBeKept) {
  Start(ColdSetup());
  Put(Sequence(1, 2));
  Put(Sequence(2, 2), RetentionClass::kMemory);
  Use(Sequence(2, 2));
  EvictFromPool();
  AdvanceAndTick(kAfterMs);
  EXPECT_THAT(store_.objects, IsEmpty());
}

TEST_F(CacheColdTest, WritesBlocksThatOnlyTheDiskHas) {
  Start(ColdSetup());
  Put(hashes_);
  Use(hashes_);
  Drain();
  EvictFromPool();
  for (const BlockHash& hash : hashes_) {
    (void)cache_->Evict({pool_.namespace_id, hash}, Tier::kHost);
    EXPECT_FALSE(Presence(hash).host);
    EXPECT_TRUE(Presence(hash).disk);
  }
  AdvanceAndTick(kAfterMs);
  EXPECT_THAT(store_.objects, SizeIs(4));
  StartAnotherHost();
  ExpectBytes(hashes_, Acquire(kAlice, hashes_));
}

TEST_F(CacheColdTest, KeepsToItsBytesPerSecond) {
  CacheSetup setup = ColdSetup();
  setup.options.cold_write_bytes_per_s = ColdObjectBytes(kBlockBytes);
  Start(setup);
  Put(hashes_);
  Use(hashes_);
  EvictFromPool();
  AdvanceAndTick(kAfterMs);
  EXPECT_THAT(store_.objects, SizeIs(1));
  AdvanceAndTick(1000);
  EXPECT_THAT(store_.objects, SizeIs(2));
}

TEST_F(CacheColdTest, WritesAgainWhatTheStoreDidNotTake) {
  Start(ColdSetup());
  Put(hashes_);
  Use(hashes_);
  EvictFromPool();
  store_.refuses = true;
  AdvanceAndTick(kAfterMs);
  EXPECT_EQ(stats().write_errors, 4u);
  store_.refuses = false;
  AdvanceAndTick(1000);
  EXPECT_THAT(store_.objects, SizeIs(1)) << "a try";
  AdvanceAndTick(1000);
  EXPECT_THAT(store_.objects, SizeIs(4));
}

TEST_F(CacheColdTest, ServesWhatAnotherHostComputed) {
  WriteByAnotherHost(hashes_);
  const AcquireReply reply = Acquire(kAlice, hashes_);
  EXPECT_THAT(reply.hits, SizeIs(4));
  EXPECT_EQ(LastProgress(reply.load).ready, 4u);
  ExpectBytes(hashes_, reply);
  EXPECT_EQ(stats().read_blocks, 4u);
  EXPECT_EQ(Lookups(ColdAnswer::kFound), 1u);
  Release(kAlice, HandlesOf(reply));
  Settle();
  // From now on the blocks are this host's own.
  EXPECT_TRUE(Presence(hashes_[0]).host);
  const uint64_t questions = store_.questions;
  Use(hashes_);
  EXPECT_EQ(store_.questions, questions);
  AdvanceAndTick(2 * kAfterMs);
  EXPECT_EQ(stats().write_blocks, 0u) << "the store has them";
}

TEST_F(CacheColdTest, GoesOnWhereThisHostsPrefixEnds) {
  WriteByAnotherHost(hashes_);
  store_.available = false;
  Put(Sequence(1, 2));
  store_.available = true;
  const AcquireReply reply = Acquire(kAlice, hashes_);
  EXPECT_THAT(TiersOf(reply), ElementsAre(Tier::kPool, Tier::kPool, Tier::kDisk, Tier::kDisk));
  EXPECT_EQ(LastProgress(reply.load).ready, 4u);
  ExpectBytes(hashes_, reply);
}

TEST_F(CacheColdTest, StopsAtTheFirstBlockThatTheStoreLacks) {
  WriteByAnotherHost(hashes_);
  store_.objects.erase(Name(hashes_[2]));
  const AcquireReply reply = Acquire(kAlice, hashes_);
  EXPECT_THAT(reply.hits, SizeIs(2));
  EXPECT_EQ(reply.miss, MissReason::kUnknown);
  EXPECT_FALSE(Presence(hashes_[3]).anywhere());
}

TEST_F(CacheColdTest, LoadsNoMoreThanThePoolHasRoomFor) {
  WriteByAnotherHost(hashes_);
  (void)Acquire(kBob, {}, pool_.blocks - 2);
  const AcquireReply reply = Acquire(kAlice, hashes_);
  EXPECT_THAT(reply.hits, SizeIs(2));
  EXPECT_EQ(reply.miss, MissReason::kPoolFull);
  Settle();
  EXPECT_FALSE(Presence(hashes_[3]).anywhere());
}

TEST_F(CacheColdTest, AsksNothingForWhatThisHostHas) {
  Start(ColdSetup());
  Put(hashes_);
  const uint64_t questions = store_.questions;
  Use(hashes_);
  (void)Acquire(kAlice, {}, 1);
  EXPECT_EQ(store_.questions, questions);
}

TEST_F(CacheColdTest, AnswersAsAMissWhenTheStoreIsLate) {
  WriteByAnotherHost(hashes_);
  store_.holds = true;
  const PendingAcquire pending = BeginAcquire(kAlice, hashes_);
  Settle();
  EXPECT_FALSE(pending.answered());
  EXPECT_FALSE(cache_->Idle());
  store_.TimeOut();
  Settle();
  ASSERT_TRUE(pending.succeeded());
  EXPECT_THAT(pending.reply().hits, IsEmpty());
  EXPECT_EQ(Lookups(ColdAnswer::kLate), 1u);
}

TEST_F(CacheColdTest, HoldsUpNoOtherAcquireMeanwhile) {
  WriteByAnotherHost(hashes_);
  Put(Sequence(2, 2));
  store_.holds = true;
  const PendingAcquire waiting = BeginAcquire(kAlice, hashes_);
  Use(Sequence(2, 2));
  (void)Acquire(kBob, {}, 3);
  EXPECT_FALSE(waiting.answered());
  store_.Answer();
  store_.holds = false;
  Settle();
  ASSERT_TRUE(waiting.succeeded());
  EXPECT_THAT(waiting.reply().hits, SizeIs(4));
}

TEST_F(CacheColdTest, ReadsFromDiskWhileTheStoreDoesNotAnswer) {
  CacheSetup setup = ColdSetup();
  WriteByAnotherHost(hashes_);
  setup.options.max_disk_read_bytes = 1;  // one at a time
  StartAnotherHost(setup);
  const Hashes local = Sequence(2, 2);
  Put(local);
  Drain();
  EvictFromPool();
  for (const BlockHash& hash : local) {
    (void)cache_->Evict({pool_.namespace_id, hash}, Tier::kHost);
  }
  const PendingAcquire cold = BeginAcquire(kAlice, hashes_);
  store_.holds = true;
  while (store_.held() == 0 && machine_->loop.RunOne()) {
  }
  EXPECT_EQ(store_.held(), 1u);
  const AcquireReply reply = Acquire(kBob, local);
  EXPECT_EQ(LastProgress(reply.load).ready, 2u);
  store_.TimeOut();
  store_.holds = false;
  Settle();
}

TEST_F(CacheColdTest, AsksNothingWhileTheStoreIsAway) {
  WriteByAnotherHost(hashes_);
  const uint64_t questions = store_.questions;
  store_.available = false;
  EXPECT_THAT(Acquire(kAlice, hashes_).hits, IsEmpty());
  EXPECT_EQ(store_.questions, questions);
  EXPECT_EQ(Lookups(ColdAnswer::kSkipped), 1u);
}

TEST_F(CacheColdTest, EndsTheLoadWhereTheStoreFails) {
  WriteByAnotherHost(hashes_);
  const PendingAcquire pending = BeginAcquire(kAlice, hashes_);
  store_.holds = true;
  Settle();
  ASSERT_TRUE(pending.succeeded());
  EXPECT_EQ(store_.held(), 4u);
  store_.TimeOut();
  Settle();
  const LoadProgress& progress = LastProgress(pending.reply().load);
  EXPECT_TRUE(progress.finished);
  EXPECT_EQ(progress.ready, 0u);
  EXPECT_EQ(progress.miss, MissReason::kReadError);
  EXPECT_EQ(FailedReads(MissReason::kReadError), 4u);
  GiveBack(pending.reply());
}

TEST_F(CacheColdTest, ServesNoByteOfADamagedObject) {
  WriteByAnotherHost(hashes_);
  store_.objects[Name(hashes_[1])].bytes[kSlotHeaderBytes + 100] ^= std::byte{1};
  const AcquireReply reply = Acquire(kAlice, hashes_);
  EXPECT_EQ(LastProgress(reply.load).ready, 1u);
  EXPECT_EQ(LastProgress(reply.load).miss, MissReason::kChecksumMismatch);
  EXPECT_EQ(FailedReads(MissReason::kChecksumMismatch), 1u);
}

// A store that replaces no object would else keep it until its end.
TEST_F(CacheColdTest, DeletesWhatIsNoBlockAnyMore) {
  WriteByAnotherHost(hashes_);
  store_.objects[Name(hashes_[3])].bytes.back() ^= std::byte{1};
  EXPECT_EQ(LastProgress(Acquire(kAlice, hashes_).load).ready, 3u);
  EXPECT_FALSE(store_.objects.contains(Name(hashes_[3])));
  EXPECT_THAT(store_.objects, SizeIs(3)) << "and no other";
}

TEST_F(CacheColdTest, ServesNoByteOfATruncatedObject) {
  WriteByAnotherHost(hashes_);
  for (auto& [name, object] : store_.objects) object.bytes.resize(kSlotHeaderBytes + 1);
  const AcquireReply reply = Acquire(kAlice, hashes_);
  EXPECT_EQ(LastProgress(reply.load).ready, 0u);
  EXPECT_EQ(LastProgress(reply.load).miss, MissReason::kChecksumMismatch);
  GiveBack(reply);
}

TEST_F(CacheColdTest, ServesNoOtherBlockUnderTheRightName) {
  WriteByAnotherHost(hashes_);
  store_.objects[Name(hashes_[0])] = store_.objects[Name(hashes_[1])];
  const AcquireReply reply = Acquire(kAlice, hashes_);
  EXPECT_EQ(LastProgress(reply.load).ready, 0u);
  EXPECT_EQ(LastProgress(reply.load).miss, MissReason::kIdentityMismatch);
}

TEST_F(CacheColdTest, ServesNothingThatHasExpiredByItsOwnHeader) {
  WriteByAnotherHost(hashes_);
  machine_->clock.Advance(setup_.options.extended_ttl_ms + 1000);
  const AcquireReply reply = Acquire(kAlice, hashes_);
  EXPECT_EQ(LastProgress(reply.load).ready, 0u);
  EXPECT_EQ(LastProgress(reply.load).miss, MissReason::kExpired);
  GiveBack(reply);
  EXPECT_FALSE(store_.objects.contains(Name(hashes_[0])));
}

TEST_F(CacheColdTest, TakesAnObjectThatWentMeanwhileForAMiss) {
  WriteByAnotherHost(hashes_);
  const PendingAcquire pending = BeginAcquire(kAlice, hashes_);
  store_.holds = true;
  Settle();
  store_.objects.clear();
  store_.Answer();
  Settle();
  EXPECT_EQ(LastProgress(pending.reply().load).miss, MissReason::kUnknown);
  GiveBack(pending.reply());
}

TEST_F(CacheColdTest, SharesOneReadAmongThoseWhoWaitForIt) {
  WriteByAnotherHost(hashes_);
  const PendingAcquire alice = BeginAcquire(kAlice, hashes_);
  const PendingAcquire bob = BeginAcquire(kBob, hashes_);
  Settle();
  EXPECT_THAT(alice.reply().hits, SizeIs(4));
  EXPECT_THAT(bob.reply().hits, SizeIs(4));
  EXPECT_EQ(store_.gets, 4u);
}

TEST_F(CacheColdTest, ForgetsAnAcquireWhoseSessionEnds) {
  WriteByAnotherHost(hashes_);
  store_.holds = true;
  const PendingAcquire pending = BeginAcquire(kAlice, hashes_);
  cache_->CloseSession(kAlice);
  ASSERT_TRUE(pending.answered());
  EXPECT_THAT(pending.result(), IsErrorOf(ErrorCode::kCancelled, "session_closed"));
  store_.Answer();
  Settle();
  EXPECT_TRUE(cache_->Idle());
  EXPECT_FALSE(Presence(hashes_[0]).anywhere());
}

TEST_F(CacheColdTest, GivesUpALoadWhoseSessionEnds) {
  WriteByAnotherHost(hashes_);
  const PendingAcquire pending = BeginAcquire(kAlice, hashes_);
  store_.holds = true;
  Settle();
  ASSERT_TRUE(pending.succeeded());
  cache_->CloseSession(kAlice);
  store_.TimeOut();
  Settle();
  EXPECT_TRUE(cache_->Idle());
  EXPECT_FALSE(Presence(hashes_[0]).anywhere());
}

TEST_F(CacheColdTest, AnEvictionByHandReachesTheStore) {
  WriteByThisHost();
  EXPECT_EQ(cache_->Evict({pool_.namespace_id, hashes_[3]}, std::nullopt), EvictOutcome::kEvicted);
  Settle();
  EXPECT_FALSE(store_.objects.contains(Name(hashes_[3])));
  EXPECT_THAT(store_.objects, SizeIs(3));
}

// The block must not be served again: an operator relies on the reply.
TEST_F(CacheColdTest, AnEvictionEndsWhenTheStoreHasDeletedTheObject) {
  WriteByThisHost();
  store_.refuses = true;
  Status told;
  Evict({hashes_[3]}, &told);
  Settle();
  EXPECT_THAT(told, IsErrorOf(ErrorCode::kIoError, "cold_object_kept"));
  store_.refuses = false;
  AdvanceAndTick(60'000);
  EXPECT_FALSE(store_.objects.contains(Name(hashes_[3]))) << "asked for again";
  told = MakeError(ErrorCode::kTimeout, "not_told");
  Evict({hashes_[2]}, &told);
  Settle();
  EXPECT_TRUE(told);
}

// A store's threads and connections do not keep the order of calls.
TEST_F(CacheColdTest, AWriteUnderWayDoesNotBringBackAnEvictedBlock) {
  Start(ColdSetup());
  Put(hashes_);
  Use(hashes_);
  EvictFromPool();
  store_.holds = true;
  AdvanceAndTick(kAfterMs);
  ASSERT_EQ(store_.held(), 4u);
  store_.holds = false;
  Status told = MakeError(ErrorCode::kTimeout, "not_told");
  Evict({hashes_[3]}, &told);
  Settle();
  EXPECT_FALSE(told);
  store_.Answer();
  Settle();
  EXPECT_TRUE(told);
  EXPECT_FALSE(store_.objects.contains(Name(hashes_[3])));
  Put(hashes_);
  Use(hashes_);
  EvictFromPool();
  AdvanceAndTick(kAfterMs);
  EXPECT_TRUE(store_.objects.contains(Name(hashes_[3]))) << "computed anew";
}

TEST_F(CacheColdTest, NothingIsFetchedThatIsBeingDeleted) {
  WriteByAnotherHost(hashes_);
  store_.refuses = true;
  Status told;
  Evict({hashes_[3]}, &told);
  Settle();
  store_.refuses = false;
  EXPECT_THAT(Acquire(kAlice, hashes_).hits, SizeIs(3));
}

TEST_F(CacheColdTest, ABlockThatStaysKeepsItsObject) {
  WriteByThisHost();
  ASSERT_TRUE(cache_->Pin(pool_.namespace_id, std::span(&hashes_[3], 1), 60'000));
  EXPECT_EQ(cache_->Evict({pool_.namespace_id, hashes_[3]}, std::nullopt), EvictOutcome::kPinned);
  Settle();
  EXPECT_TRUE(store_.objects.contains(Name(hashes_[3])));
}

// Acquires, commits, releases, ticks and answers in an order drawn from a seed, with a store that
// is by turns quick, silent, late and damaged.
class CacheColdOrderTest : public CacheColdTest, public ::testing::WithParamInterface<uint64_t> {
 protected:
  struct Asked {
    Hashes hashes;
    PendingAcquire pending;
  };

  void Step() {
    switch (random_.Below(10)) {
      case 0:
      case 1:
        return BeginOne();
      case 2:
      case 3:
        return EndOne();
      case 4:
        store_.holds = random_.Below(3) == 0;
        return;
      case 5:
        return random_.Below(3) > 0 ? store_.Answer() : store_.TimeOut();
      case 6:
        if (random_.Below(10) == 0) Damage();
        return;
      case 7:
        machine_->clock.Advance(static_cast<int64_t>(random_.Below(kAfterMs)));
        return cache_->Tick();
      default:
        for (uint64_t events = random_.Below(20); events > 0; --events) machine_->loop.RunOne();
    }
  }
  void BeginOne() {
    const auto blocks = static_cast<uint32_t>(1 + random_.Below(5));
    const Hashes hashes = Sequence(random_.Below(6), blocks);
    const auto fresh = static_cast<uint32_t>(random_.Below(blocks + 1));
    asked_.push_back({hashes, BeginAcquire(kAlice, hashes, fresh)});
  }
  // Checks the blocks of the oldest that have arrived, commits those that it lacked and gives all
  // back.
  void EndOne() {
    if (asked_.empty() || !asked_.front().pending.answered()) return;
    const Asked asked = std::move(asked_.front());
    asked_.erase(asked_.begin());
    if (!asked.pending.succeeded()) return;
    const AcquireReply& reply = asked.pending.reply();
    const size_t ready = reply.load.value == 0 ? reply.hits.size() : LastProgress(reply.load).ready;
    for (size_t i = 0; i < ready; ++i) {
      EXPECT_TRUE(MatchesHash(asked.hashes[i], Bytes(reply.hits[i].handle)));
    }
    Handles blocks = HandlesOf(reply);
    for (const BlockHandle block : reply.new_blocks) {
      const auto depth = static_cast<uint32_t>(blocks.size());
      if (depth < asked.hashes.size()) {
        EXPECT_TRUE(TryCommit(kAlice, block, {.hash = asked.hashes[depth], .depth = depth}));
      }
      blocks.push_back(block);
    }
    std::ranges::reverse(blocks);
    Release(kAlice, blocks);
  }
  void Damage() {
    if (store_.objects.empty()) return;
    auto object = std::next(store_.objects.begin(),
                            static_cast<ptrdiff_t>(random_.Below(store_.objects.size())));
    if (random_.Below(2) == 0) {
      store_.objects.erase(object);
    } else {
      object->second.bytes[random_.Below(object->second.bytes.size())] ^= std::byte{1};
    }
  }

  SeededRandom random_{GetParam()};
  std::vector<Asked> asked_;
};

TEST_P(CacheColdOrderTest, NoByteIsWrongAndNothingIsLeftBehind) {
  CacheSetup setup = ColdSetup();
  setup.host_slots = 8 * (1 + static_cast<uint32_t>(random_.Below(2)));
  setup.disk_slots = 16 * static_cast<uint32_t>(random_.Below(2));
  setup.options.persist_after_ms = 1000;
  for (int host = 0; host < 3; ++host) {
    asked_.clear();
    StartAnotherHost(setup);
    machine_->loop.Shuffle(GetParam());
    for (int step = 0; step < 400; ++step) {
      Step();
      cache_->CheckInvariants();
    }
    store_.holds = false;
    store_.TimeOut();
    Settle();
    for (int ticks = 0; ticks < 40; ++ticks) AdvanceAndTick(1000);
    while (!asked_.empty()) {
      ASSERT_TRUE(asked_.front().pending.answered());
      EndOne();
    }
    for (int ticks = 0; ticks < 40; ++ticks) AdvanceAndTick(1000);
    EXPECT_TRUE(cache_->Idle());
    EXPECT_EQ(cache_->Gauges().references, 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, CacheColdOrderTest, ::testing::Range(uint64_t{1}, uint64_t{21}));

TEST_F(CacheColdTest, ATenantThatWaitsUnderItsCapHoldsUpNobodysFetches) {
  CacheSetup setup = ColdSetup();
  setup.pool_blocks = 32;
  setup.host_slots = 32;
  setup.options.tenants = {
      {.name = "tenant", .tiers = {TierQuota{16 * kBlockBytes, 0}, {.max_bytes = kSlabBytes}, {}}}};
  const auto be = [this](const std::string& tenant) {
    pool_ = cache_->AttachPool(Identity(tenant, 1), 0).value();
  };
  StartAnotherHost(setup);
  for (const char* tenant : {"tenant", "other"}) {
    be(tenant);
    Put(hashes_);
    Use(hashes_);
    EvictFromPool();
  }
  AdvanceAndTick(kAfterMs);
  ASSERT_THAT(store_.objects, SizeIs(8));
  StartAnotherHost(setup);
  // The tenant has host full of blocks that are being written without end.
  file().HoldWrites();
  Put(Sequence(2, 8));
  EvictFromPool();
  const PendingAcquire waiting = BeginAcquire(kAlice, hashes_);
  Settle();
  ASSERT_TRUE(waiting.succeeded());
  ASSERT_EQ(store_.gets, 0u);
  be("other");
  ExpectBytes(hashes_, Acquire(kBob, hashes_));
  for (int i = 0; i < 8; ++i) {
    file().LetWritesGo(8);
    Settle();
  }
  EXPECT_EQ(LastProgress(waiting.reply().load).ready, 4u);
}

}  // namespace
}  // namespace kvtier
