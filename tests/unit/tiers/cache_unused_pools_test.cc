// SPDX-License-Identifier: Apache-2.0
// Pools that no session uses any more, and what takes their memory.

#include <string_view>

#include "tests/unit/tiers/cache_fixture.h"

namespace kvtier {
namespace {

// The fixture's pool has the whole device, and Alice has it attached.
class CacheUnusedPoolsTest : public CacheTest {
 protected:
  void StartHeld(const CacheSetup& setup = {}) {
    Start(setup);
    cache_->UsePool(kAlice, pool_.id);
  }
  // As a session does: again and again while memory is on its way back.
  [[nodiscard]] Result<PoolInfo> AttachOther(uint64_t blocks, uint8_t model = 2,
                                             const char* tenant = "tenant") {
    Result<PoolInfo> pool = TryAttachOther(blocks, model, tenant);
    for (int tries = 0; tries < 10 && IsReturning(pool); ++tries) {
      Settle();
      pool = TryAttachOther(blocks, model, tenant);
    }
    return pool;
  }
  [[nodiscard]] Result<PoolInfo> TryAttachOther(uint64_t blocks, uint8_t model = 2,
                                                const char* tenant = "tenant") {
    return cache_->AttachPool(Identity(tenant, model), blocks * kBlockBytes);
  }
  static bool IsReturning(const Result<PoolInfo>& pool) {
    return !pool && pool.error().reason == std::string_view("pool_bytes_returning");
  }
  [[nodiscard]] bool HasPool(uint8_t model) const {
    return cache_->HasPool(Identity("tenant", model), DeviceIndex(0));
  }
};

TEST_F(CacheUnusedPoolsTest, AnotherModelGetsTheMemoryOfAPoolThatNoSessionUses) {
  StartHeld();
  Put(Sequence(1, 4));
  cache_->CloseSession(kAlice);
  const Result<PoolInfo> other = AttachOther(0);
  ASSERT_TRUE(other) << other.error().ToString();
  EXPECT_EQ(other->blocks, 16u);
  EXPECT_FALSE(HasPool(1));
  Settle();
}

TEST_F(CacheUnusedPoolsTest, APoolThatASessionUsesKeepsItsMemory) {
  StartHeld();
  cache_->UsePool(kBob, pool_.id);
  cache_->CloseSession(kAlice);
  EXPECT_THAT(AttachOther(4), IsErrorOf(ErrorCode::kResourceExhausted, "pool_bytes_exhausted"));
  cache_->CloseSession(kBob);
  EXPECT_TRUE(AttachOther(4));
}

TEST_F(CacheUnusedPoolsTest, TheMemoryIsNotGivenAwayBeforeItHasReturned) {
  StartHeld();
  const uint64_t allocated = machine_->device->allocated_bytes();
  cache_->CloseSession(kAlice);
  EXPECT_TRUE(IsReturning(TryAttachOther(16)));
  EXPECT_TRUE(IsReturning(TryAttachOther(16))) << "the thread that frees it has not run";
  cache_->CheckInvariants();
  Settle();
  EXPECT_EQ(machine_->device->allocated_bytes(), 0u);
  EXPECT_TRUE(TryAttachOther(16));
  EXPECT_EQ(machine_->device->allocated_bytes(), allocated);
}

TEST_F(CacheUnusedPoolsTest, APoolIsEmptiedInParts) {
  CacheSetup setup;
  setup.options.close_part_blocks = 3;
  StartHeld(setup);
  Put(Sequence(1, 16));
  cache_->CloseSession(kAlice);
  Settle();
  EXPECT_TRUE(IsReturning(TryAttachOther(16)));
  EXPECT_EQ(PoolGaugesNow().cached, 13u);
  EXPECT_TRUE(AttachOther(16));
}

TEST_F(CacheUnusedPoolsTest, ASessionThatComesMeanwhileFindsWhatIsLeft) {
  CacheSetup setup;
  setup.options.close_part_blocks = 3;
  StartHeld(setup);
  Put(Sequence(1, 16));
  cache_->CloseSession(kAlice);
  Settle();
  EXPECT_TRUE(IsReturning(TryAttachOther(16)));
  UseDevice(0);
  cache_->UsePool(kBob, pool_.id);
  EXPECT_THAT(AttachOther(16), IsErrorOf(ErrorCode::kResourceExhausted, "pool_bytes_exhausted"));
  EXPECT_EQ(PoolGaugesNow().cached, 13u);
}

TEST_F(CacheUnusedPoolsTest, WhatAnotherTierHasIsFoundAgainInANewPool) {
  StartHeld();
  Put(Sequence(1, 4));
  Drain();
  cache_->CloseSession(kAlice);
  ASSERT_TRUE(AttachOther(8));
  UseDevice(0);
  EXPECT_EQ(pool_.blocks, 8u);
  EXPECT_EQ(Acquire(kBob, Sequence(1, 4)).hits.size(), 4u);
}

TEST_F(CacheUnusedPoolsTest, ANewPoolHasAnotherGenerationWithinTheSameMillisecond) {
  StartHeld();
  cache_->CloseSession(kAlice);
  const Result<PoolInfo> other = AttachOther(16);
  ASSERT_TRUE(other);
  EXPECT_NE(other->id, pool_.id);
  EXPECT_NE(other->generation, pool_.generation);
}

TEST_F(CacheUnusedPoolsTest, WhatOnlyThePoolHadIsDroppedAndCounted) {
  CacheSetup setup;
  setup.disk_slots = 0;
  setup.options.pool_clean_fraction = 0;
  StartHeld(setup);
  (void)Store(kAlice, Sequence(1, 4));
  cache_->CloseSession(kAlice);
  const uint64_t before = Drops(Tier::kPool, DropReason::kPoolPressure);
  ASSERT_TRUE(AttachOther(16));
  EXPECT_EQ(Drops(Tier::kPool, DropReason::kPoolPressure), before + 4);
}

TEST_F(CacheUnusedPoolsTest, ABlockThatIsBeingCopiedIsWaitedFor) {
  StartHeld();
  (void)Store(kAlice, Sequence(1, 16));
  cache_->CloseSession(kAlice);
  ASSERT_GT(cache_->Gauges().offloads_in_flight, 0u);
  machine_->loop.Hold(machine_->device->source());
  EXPECT_TRUE(IsReturning(AttachOther(16)));
  EXPECT_TRUE(HasPool(1));
  machine_->loop.LetGo(machine_->device->source());
  EXPECT_TRUE(AttachOther(16));
}

TEST_F(CacheUnusedPoolsTest, AQuarantinedBlockKeepsThePoolAndTheOthers) {
  StartHeld();
  Put(Sequence(1, 4));
  (void)Acquire(kAlice, {}, 1);
  cache_->CloseSession(kAlice);
  EXPECT_TRUE(IsReturning(AttachOther(4))) << "its process may end at any time";
  EXPECT_EQ(PoolGaugesNow().cached, 4u);
  cache_->ReleaseQuarantine(kAlice);
  EXPECT_TRUE(AttachOther(4));
}

TEST_F(CacheUnusedPoolsTest, APoolThatAProcessMayStillWriteToDoesNotHoldUpTheOthers) {
  StartHeld();
  cache_->CloseSession(kAlice);
  const Result<PoolInfo> younger = AttachOther(8, 2);
  const Result<PoolInfo> older = AttachOther(8, 3);
  ASSERT_TRUE(younger && older);
  const SessionId carol(kBob.value + 1);
  cache_->OpenSession(carol, [](const LoadProgress&) {});
  cache_->UsePool(carol, younger->id);
  cache_->UsePool(kBob, older->id);
  pool_ = *older;
  (void)Acquire(kBob, {}, 1);
  cache_->CloseSession(kBob);
  machine_->clock.Advance(1);
  cache_->CloseSession(carol);
  EXPECT_TRUE(AttachOther(8, 4));
  EXPECT_FALSE(HasPool(2));
  EXPECT_TRUE(HasPool(3));
  cache_->ReleaseQuarantine(kBob);
}

TEST_F(CacheUnusedPoolsTest, ARefusedPoolCostsNoBlocks) {
  StartHeld();
  Put(Sequence(1, 4));
  cache_->CloseSession(kAlice);
  EXPECT_FALSE(AttachOther(17));
  EXPECT_TRUE(HasPool(1));
  EXPECT_EQ(PoolGaugesNow().cached, 4u);
}

TEST_F(CacheUnusedPoolsTest, AnAttachThatFitsLeavesUnusedPoolsAlone) {
  StartHeld();
  cache_->CloseSession(kAlice);
  ASSERT_TRUE(AttachOther(8));
  cache_->UsePool(kBob, AttachOther(8)->id);
  cache_->CloseSession(kBob);
  ASSERT_TRUE(AttachOther(8, 3));
  EXPECT_TRUE(HasPool(2));
}

TEST_F(CacheUnusedPoolsTest, TheLongestUnusedPoolGoesFirst) {
  StartHeld();
  cache_->CloseSession(kAlice);
  cache_->UsePool(kBob, AttachOther(8, 2)->id);
  cache_->OpenSession(SessionId(7), [](const LoadProgress&) {});
  cache_->UsePool(SessionId(7), AttachOther(8, 3)->id);
  cache_->CloseSession(SessionId(7));
  AdvanceAndTick(1000);
  cache_->CloseSession(kBob);
  ASSERT_TRUE(AttachOther(8, 4));
  EXPECT_TRUE(HasPool(2));
  EXPECT_FALSE(HasPool(3));
}

TEST_F(CacheUnusedPoolsTest, ATenantAtItsCapTakesFromItsOwnPoolsOnly) {
  CacheSetup setup;
  TenantQuota quota{.name = "tenant"};
  quota.tiers[0].max_bytes = 8 * kBlockBytes;
  setup.options.tenants = {quota};
  StartHeld(setup);
  const Result<PoolInfo> others = AttachOther(8, 1, "other");
  ASSERT_TRUE(others);
  cache_->UsePool(kBob, others->id);
  cache_->CloseSession(kBob);
  EXPECT_FALSE(AttachOther(8));
  cache_->CloseSession(kAlice);
  EXPECT_TRUE(AttachOther(8));
  EXPECT_TRUE(cache_->HasPool(Identity("other", 1), DeviceIndex(0)));
}

TEST_F(CacheUnusedPoolsTest, APoolWithinItsTenantsReserveIsNotTakenForOthers) {
  CacheSetup setup;
  TenantQuota quota{.name = "tenant"};
  quota.tiers[0].reserved_bytes = 16 * kBlockBytes;
  setup.options.tenants = {quota};
  StartHeld(setup);
  cache_->CloseSession(kAlice);
  EXPECT_THAT(AttachOther(4, 1, "other"),
              IsErrorOf(ErrorCode::kResourceExhausted, "pool_bytes_exhausted"));
  EXPECT_TRUE(AttachOther(4)) << "the tenant itself may";
}

TEST_F(CacheUnusedPoolsTest, AnAcquireThatWaitedInAClosedPoolLeavesNothingBehind) {
  StartHeld();
  (void)Acquire(kBob, {}, 16);
  const PendingAcquire waiting = BeginAcquire(kAlice, Sequence(1, 2), 0);
  cache_->CloseSession(kAlice);
  cache_->CloseSession(kBob);
  cache_->ReleaseQuarantine(kBob);
  EXPECT_TRUE(waiting.answered());
  ASSERT_TRUE(AttachOther(16));
  AdvanceAndTick(1000);
  EXPECT_FALSE(HasPool(1));
}

TEST_F(CacheUnusedPoolsTest, APoolThatSomethingElseReadsIsWaitedFor) {
  bool read = true;
  pool_read_ = [&read](PoolId) { return read; };
  StartHeld();
  cache_->CloseSession(kAlice);
  EXPECT_TRUE(IsReturning(AttachOther(4)));
  EXPECT_TRUE(HasPool(1));
  read = false;
  EXPECT_TRUE(AttachOther(4));
}

TEST_F(CacheUnusedPoolsTest, APoolThatSomethingElseReadsDoesNotHoldUpTheOthers) {
  PoolId read(UINT32_MAX);
  pool_read_ = [&read](PoolId pool) { return pool == read; };
  StartHeld();
  cache_->CloseSession(kAlice);
  read = AttachOther(8, 2)->id;
  cache_->UsePool(kBob, read);
  cache_->OpenSession(SessionId(7), [](const LoadProgress&) {});
  cache_->UsePool(SessionId(7), AttachOther(8, 3)->id);
  cache_->CloseSession(kBob);
  AdvanceAndTick(1000);
  cache_->CloseSession(SessionId(7));
  ASSERT_TRUE(AttachOther(8, 4));
  EXPECT_TRUE(HasPool(2));
  EXPECT_FALSE(HasPool(3));
}

}  // namespace
}  // namespace kvtier
