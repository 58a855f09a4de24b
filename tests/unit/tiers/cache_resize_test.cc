// SPDX-License-Identifier: Apache-2.0
// Host memory becomes smaller and larger while blocks come and go.

#include "base/units.h"
#include "tests/unit/tiers/cache_fixture.h"
#include "tiers/storage/slot_header.h"

namespace kvtier {
namespace {

using ::testing::Each;

class CacheResizeTest : public CacheTest {
 protected:
  // Three slabs of host memory, and no disk that could bring a block back.
  [[nodiscard]] static CacheSetup HostOnly() {
    return {.pool_blocks = 8, .host_slots = 3 * kSlotsPerSlab, .disk_slots = 0};
  }
  static Hashes Blocks(uint64_t first, uint64_t count) {
    Hashes hashes;
    for (uint64_t i = first; i < first + count; ++i) hashes.push_back(Sequence(i, 1).front());
    return hashes;
  }
  // Each is a sequence of its own, in the order of their last use.
  void Sink(const Hashes& hashes) {
    for (const BlockHash& hash : hashes) Put({hash});
    EvictFromPool();
  }
  void ResizeTo(uint32_t slabs) {
    cache_->ResizeHost(slabs * kSlabBytes);
    Settle();
  }
  [[nodiscard]] uint64_t InHost(const Hashes& hashes) const {
    const auto present = cache_->Lookup(pool_.id, hashes);
    return static_cast<uint64_t>(std::ranges::count(present, true, &BlockPresence::host));
  }
  void ExpectHostHit(const BlockHash& hash) {
    const AcquireReply reply = Acquire(kAlice, {hash});
    ASSERT_EQ(reply.hits.size(), 1u);
    EXPECT_EQ(reply.hits[0].tier, Tier::kHost);
    EXPECT_TRUE(MatchesHash(hash, Bytes(reply.hits[0].handle)));
    Release(kAlice, HandlesOf(reply));
    Settle();
  }
  [[nodiscard]] uint64_t ReadySlabs() const { return machine_->arena->ready_bytes() / kSlabBytes; }
};

TEST_F(CacheResizeTest, TheColdestLeaveWhateverSlotsTheyHave) {
  Start(HostOnly());
  // The slabs fill up in order, so that the last has the youngest.
  Sink(Blocks(0, 24));
  ASSERT_EQ(InHost(Blocks(0, 24)), 24u);
  ResizeTo(1);
  EXPECT_EQ(ReadySlabs(), 1u);
  EXPECT_EQ(cache_->Gauges().host_capacity_bytes, kSlabBytes);
  EXPECT_EQ(InHost(Blocks(0, 16)), 0u);
  EXPECT_EQ(InHost(Blocks(16, 8)), 8u);
  for (const BlockHash& hash : Blocks(16, 8)) ExpectHostHit(hash);
}

TEST_F(CacheResizeTest, NothingLeavesThatFits) {
  Start(HostOnly());
  Sink(Blocks(0, 20));
  for (const BlockHash& hash : Blocks(0, 12)) {
    ASSERT_EQ(cache_->Evict({pool_.namespace_id, hash}, std::nullopt), EvictOutcome::kEvicted);
  }
  ResizeTo(1);
  EXPECT_EQ(ReadySlabs(), 1u);
  for (const BlockHash& hash : Blocks(12, 8)) ExpectHostHit(hash);
}

TEST_F(CacheResizeTest, PinnedBlocksMove) {
  Start(HostOnly());
  Sink(Blocks(0, 24));
  const Hashes pinned = {Blocks(0, 1)[0], Blocks(23, 1)[0]};
  ASSERT_EQ(cache_->Pin(pool_.namespace_id, pinned, 60'000), 2u);
  ResizeTo(1);
  EXPECT_EQ(ReadySlabs(), 1u);
  EXPECT_EQ(InHost(pinned), 2u);
  for (const BlockHash& hash : pinned) ExpectHostHit(hash);
}

TEST_F(CacheResizeTest, ABlockThatIsBeingLoadedIsWaitedFor) {
  Start(HostOnly());
  Sink(Blocks(0, 24));
  const BlockHash last = Blocks(23, 1).front();
  const PendingAcquire pending = BeginAcquire(kAlice, {last});
  cache_->ResizeHost(kSlabBytes);
  Settle();
  AdvanceAndTick(100);
  ASSERT_TRUE(pending.succeeded());
  EXPECT_TRUE(MatchesHash(last, Bytes(pending.reply().hits[0].handle)));
  EXPECT_EQ(ReadySlabs(), 1u);
}

TEST_F(CacheResizeTest, MemoryThatComesBackIsUsedAgain) {
  Start(HostOnly());
  Sink(Blocks(0, 24));
  ResizeTo(1);
  ResizeTo(3);
  EXPECT_EQ(ReadySlabs(), 1u);
  machine_->arena->Grow(2 * kSlabBytes);
  Sink(Blocks(100, 16));
  EXPECT_EQ(InHost(Blocks(16, 8)), 8u);
  EXPECT_EQ(InHost(Blocks(100, 16)), 16u);
  ExpectHostHit(Blocks(115, 1)[0]);
}

TEST_F(CacheResizeTest, AShrinkThatIsTakenBackLosesNothingMore) {
  Start(HostOnly());
  Sink(Blocks(0, 20));
  cache_->ResizeHost(kSlabBytes);
  cache_->ResizeHost(3 * kSlabBytes);
  Settle();
  EXPECT_EQ(InHost(Blocks(0, 20)), 20u);
  EXPECT_EQ(ReadySlabs(), 3u);
}

TEST_F(CacheResizeTest, WithADiskTheyLeaveWhenTheyAreThere) {
  CacheSetup setup = HostOnly();
  setup.disk_slots = 32;
  Start(setup);
  Sink(Blocks(0, 24));
  ResizeTo(1);
  for (int tick = 0; tick < 50 && ReadySlabs() > 1; ++tick) AdvanceAndTick(100);
  EXPECT_EQ(ReadySlabs(), 1u);
  const auto present = cache_->Lookup(pool_.id, Blocks(0, 24));
  EXPECT_TRUE(std::ranges::all_of(
      present, [](const BlockPresence& each) { return each.host || each.disk; }));
}

TEST_F(CacheResizeTest, ABlockThatIsWrittenToDiskWhileItMovesKeepsTheHeaderOfTheWrite) {
  CacheSetup setup = HostOnly();
  setup.disk_slots = 32;
  Start(setup);
  Sink(Blocks(0, 24));
  for (const BlockHash& hash : Blocks(0, 16)) {
    ASSERT_EQ(cache_->Evict({pool_.namespace_id, hash}, std::nullopt), EvictOutcome::kEvicted);
  }
  const EventSource executor = machine_->executor->source();
  machine_->loop.Hold(executor);
  cache_->ResizeHost(kSlabBytes);
  machine_->loop.RunAll();
  ASSERT_TRUE(machine_->loop.RunOneOf(executor))
      << "the bytes are copied, and the loop hears later";
  cache_->Drain([] {});
  machine_->loop.RunAll();
  ASSERT_EQ(cache_->Gauges().disk_blocks, 8u);
  machine_->loop.LetGo(executor);
  Settle();
  ASSERT_EQ(ReadySlabs(), 1u);
  for (uint64_t slot = 0; slot < kSlotsPerSlab; ++slot) {
    const std::span<const std::byte, kSlotHeaderBytes> header(
        machine_->arena->data() + slot * (kSlotHeaderBytes + kBlockBytes), kSlotHeaderBytes);
    const auto decoded = DecodeSlotHeader(header);
    ASSERT_TRUE(decoded) << decoded.error().ToString();
    EXPECT_TRUE(decoded->address.valid()) << "it is on disk: " << slot;
  }
}

TEST_F(CacheResizeTest, ADeathAtAnyStepLeavesWholeBlocksOnly) {
  for (int steps = 0; steps < 60; ++steps) {
    CacheSetup setup = HostOnly();
    setup.keep_host = true;
    Start(setup);
    Sink(Blocks(0, 24));
    cache_->ResizeHost(kSlabBytes);
    for (int i = 0; i < steps; ++i) (void)machine_->loop.RunOne();
    DieAndAdopt();
    EXPECT_EQ(cache_->stats().adoption_drops[static_cast<size_t>(AdoptionDrop::kCorrupt)], 0u);
    EXPECT_EQ(InHost(Blocks(16, 8)), 8u) << "after step " << steps;
    ExpectHostHit(Blocks(20, 1)[0]);
    cache_.reset();
    machine_->loop.DropAll();
  }
}

}  // namespace
}  // namespace kvtier
