// SPDX-License-Identifier: Apache-2.0
// The time in which blocks of an earlier process come back: moments of it, and an arena of which
// much is not ready yet.

#include <functional>
#include <vector>

#include "base/clock.h"
#include "base/units.h"
#include "tests/unit/tiers/cache_fixture.h"

namespace kvtier {
namespace {

// Calls a function with each look at the time: in the midst of events.
class WatchedClock final : public Clock {
 public:
  WatchedClock(const Clock* clock, std::function<void()> look)
      : clock_(*clock), look_(std::move(look)) {}
  [[nodiscard]] int64_t MonotonicMs() const override { return clock_.MonotonicMs(); }
  [[nodiscard]] int64_t WallMs() const override {
    look_();
    return clock_.WallMs();
  }

 private:
  const Clock& clock_;
  const std::function<void()> look_;
};

class CacheDuringAdoptionTest : public CacheTest {
 protected:
  void DieAndBegin(const Clock* clock = nullptr) {
    cache_.reset();
    machine_->Crash(FakeMachine::HostMemory::kKept);
    CacheEnvironment environment = machine_->Environment();
    if (clock != nullptr) environment.clock = clock;
    cache_ = std::make_unique<Cache>(setup_.options, std::move(environment), machine_->Snapshot());
    cache_->OpenSession(kAlice, [this](const LoadProgress& p) { progress_.push_back(p); });
    UseDevice(0);
  }
};

TEST_F(CacheDuringAdoptionTest, TheTableHasEachBlockAndItsPinAtAnyMoment) {
  Start({.keep_host = true, .disk_slots = 0});
  Put(Sequence(1, 6));
  EvictFromPool();
  ASSERT_TRUE(cache_->Pin(kAlice, pool_.id, Sequence(1, 6), kHourMs));
  HostTable& table = *machine_->arena->table();
  std::vector<uint64_t> addresses;
  for (uint64_t slab = 0; slab < table.slabs(); ++slab) {
    const uint64_t slot_bytes = table.SlotBytesOf(slab);
    for (uint64_t i = 0; slot_bytes > 0 && i < kSlotsPerSlab; ++i) {
      const uint64_t address = slab * kSlabBytes + i * slot_bytes;
      if (table.StateOf(address) == HostSlotState::kComplete) addresses.push_back(address);
    }
  }
  ASSERT_EQ(addresses.size(), 6u);
  uint64_t looks = 0;
  const WatchedClock clock(&machine_->clock, [&] {
    ++looks;
    for (const uint64_t address : addresses) {
      ASSERT_EQ(table.StateOf(address), HostSlotState::kComplete);
      ASSERT_GT(table.FactsOf(address).pinned_until_s, 0u);
    }
  });
  DieAndBegin(&clock);
  Settle();
  EXPECT_EQ(cache_->stats().adopted_blocks, 6u);
  EXPECT_GT(looks, 6u);
  cache_.reset();
}

// Before a reboot they would be lost.
TEST_F(CacheDuringAdoptionTest, ADrainWaitsForBlocksInWhatIsNotReadyYet) {
  Start({.host_slots_ready = 8, .keep_host = true});
  machine_->arena->Grow(kSlabBytes);
  Put(Sequence(1, 10));
  EvictFromPool();
  DieAndBegin();
  Settle();
  ASSERT_LT(cache_->Gauges().entries, 10u);
  bool done = false;
  cache_->Drain([&] { done = true; });
  AdvanceAndTick(kSecondMs);
  EXPECT_FALSE(done);
  machine_->arena->Grow(kSlabBytes);
  AdvanceAndTick(kSecondMs);
  EXPECT_TRUE(done);
  for (const BlockHash& hash : Sequence(1, 10)) EXPECT_TRUE(Presence(hash).disk);
}

TEST_F(CacheDuringAdoptionTest, ADrainThatIsCutOffLeavesWhatWasNotLookedAt) {
  Start({.host_slots_ready = 8, .keep_host = true});
  machine_->arena->Grow(kSlabBytes);
  Put(Sequence(1, 10));
  EvictFromPool();
  DieAndBegin();
  cache_->Drain([] {});
  Settle();
  cache_->StopDraining();
  Settle();
  const CacheGauges gauges = cache_->Gauges();
  EXPECT_EQ(gauges.adoption_waiting, kSlotsPerSlab) << "those of the second slab";
  EXPECT_EQ(gauges.drain_left, gauges.unpersisted_blocks + kSlotsPerSlab);
}

// As where host.bytes was raised, or the last daemon had filled little of it.
TEST_F(CacheDuringAdoptionTest, MemoryBehindAllThatWasLeftIsNotWaitedFor) {
  Start({.host_slots_ready = 8, .keep_host = true});
  Put(Sequence(1, 4));
  EvictFromPool();
  DieAndBegin();
  bool done = false;
  cache_->Drain([&] { done = true; });
  Settle();
  EXPECT_EQ(cache_->stats().adopted_blocks, 4u);
  EXPECT_TRUE(machine_->arena->growing());
  EXPECT_TRUE(cache_->AdoptionEnded());
  EXPECT_TRUE(done);
}

// It ended without them, and erasures and evictions have been answered since.
TEST_F(CacheDuringAdoptionTest, BlocksInMemoryThatComesAfterItsEndAreNotAdopted) {
  Start({.host_slots = 24, .host_slots_ready = 8, .keep_host = true, .disk_slots = 0});
  machine_->arena->Grow(kSlabBytes);
  Put(Sequence(1, 10));
  EvictFromPool();
  DieAndBegin();
  Settle();
  const uint64_t adopted = cache_->stats().adopted_blocks;
  ASSERT_LT(adopted, 10u);
  machine_->arena->EndGrowth();
  AdvanceAndTick(kSecondMs);
  ASSERT_TRUE(cache_->AdoptionEnded());
  cache_->Resize({.host_bytes = 2 * kSlabBytes});
  Settle();
  machine_->arena->Grow(kSlabBytes);
  Settle();
  EXPECT_EQ(cache_->stats().adopted_blocks, adopted);
  EXPECT_EQ(cache_->Gauges().host_used_bytes, adopted * 2 * kBlockBytes);
}

TEST_F(CacheDuringAdoptionTest, AnArenaThatNoneHasLeftIsNotWaitedFor) {
  Start({.host_slots_ready = 8, .keep_host = true});
  EXPECT_TRUE(cache_->AdoptionEnded());
  bool done = false;
  cache_->Drain([&] { done = true; });
  Settle();
  EXPECT_TRUE(done);
}

}  // namespace
}  // namespace kvtier
