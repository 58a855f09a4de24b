// SPDX-License-Identifier: Apache-2.0
// Host memory and disk become smaller and larger while blocks come and go.

#include <algorithm>

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
    cache_->Resize({.host_bytes = slabs * kSlabBytes});
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
  cache_->Resize({.host_bytes = kSlabBytes});
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
  cache_->Resize({.host_bytes = kSlabBytes});
  cache_->Resize({.host_bytes = 3 * kSlabBytes});
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
  cache_->Resize({.host_bytes = kSlabBytes});
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
    cache_->Resize({.host_bytes = kSlabBytes});
    for (int i = 0; i < steps; ++i) (void)machine_->loop.RunOne();
    DieAndAdopt();
    EXPECT_EQ(cache_->stats().adoption_drops[static_cast<size_t>(AdoptionDrop::kCorrupt)], 0u);
    EXPECT_EQ(InHost(Blocks(16, 8)), 8u) << "after step " << steps;
    ExpectHostHit(Blocks(20, 1)[0]);
    cache_.reset();
    machine_->loop.DropAll();
  }
}

// The disk tier, with nothing in host that stays there.
class CacheDiskResizeTest : public CacheResizeTest {
 protected:
  void StartWithDisk(uint32_t files = 1) {
    CacheSetup setup;
    setup.pool_blocks = 8;
    setup.host_slots = 2 * kSlotsPerSlab;
    setup.disk_slots = 4 * kSlotsPerSlab;
    setup.disk_files = files;
    Start(setup);
  }
  void Persist(const Hashes& hashes) {
    for (const BlockHash& hash : hashes) {
      Put({hash});
      Drain();
    }
  }
  // Disk alone has them, the first used before all others.
  void StartWithOnDisk(const Hashes& hashes, uint32_t files = 1) {
    StartWithDisk(files);
    for (const BlockHash& hash : hashes) {
      machine_->clock.Advance(1000);
      Persist({hash});
    }
    CrashAndRestart();
    ASSERT_EQ(OnDisk(hashes), hashes.size());
  }
  // So many on each drive.
  void BeginDiskResize(uint64_t slabs) {
    DriveSlabs each{};
    for (uint32_t drive = 0; drive < machine_->files.size(); ++drive) each[drive] = slabs;
    cache_->Resize({.disk = each});
  }
  void TickOften() {
    for (int tick = 0; tick < 100; ++tick) AdvanceAndTick(100);
  }
  void ResizeDiskTo(uint64_t slabs) {
    BeginDiskResize(slabs);
    TickOften();
    Drain();
  }
  [[nodiscard]] uint64_t OnDisk(const Hashes& hashes) const {
    const auto present = cache_->Lookup(pool_.id, hashes);
    return static_cast<uint64_t>(std::ranges::count(present, true, &BlockPresence::disk));
  }
  [[nodiscard]] uint64_t FileSlabs(size_t i = 0) {
    return (file(i).bytes() - kFirstSlabOffset) / kSlabBytes;
  }
  // A later process finds these on disk, with their bytes.
  void ExpectAfterARestart(const Hashes& hashes) {
    CrashAndRestart();
    for (const BlockHash& hash : hashes) {
      const AcquireReply reply = Acquire(kAlice, {hash});
      ASSERT_EQ(reply.hits.size(), 1u);
      EXPECT_TRUE(MatchesHash(hash, Bytes(reply.hits[0].handle)));
      Release(kAlice, HandlesOf(reply));
      Settle();
    }
  }
};

TEST_F(CacheDiskResizeTest, TheColdestLeaveAndTheRestIsWrittenAnew) {
  StartWithOnDisk(Blocks(0, 32));
  ResizeDiskTo(2);
  EXPECT_EQ(FileSlabs(), 2u);
  EXPECT_EQ(cache_->Gauges().disk_capacity_bytes, 2 * kSlabBytes);
  EXPECT_EQ(OnDisk(Blocks(0, 16)), 0u);
  EXPECT_EQ(OnDisk(Blocks(16, 16)), 16u);
  ExpectAfterARestart(Blocks(16, 16));
}

TEST_F(CacheDiskResizeTest, NothingLeavesThatFits) {
  StartWithOnDisk(Blocks(0, 28));
  for (const BlockHash& hash : Blocks(0, 16)) {
    ASSERT_EQ(cache_->Evict({pool_.namespace_id, hash}, std::nullopt), EvictOutcome::kEvicted);
  }
  ResizeDiskTo(2);
  EXPECT_EQ(FileSlabs(), 2u);
  EXPECT_EQ(OnDisk(Blocks(16, 12)), 12u);
  ExpectAfterARestart(Blocks(16, 12));
}

TEST_F(CacheDiskResizeTest, BlocksThatMoveKeepTheirPlaceInTheOrderOfEviction) {
  StartWithOnDisk(Blocks(0, 32));
  for (const BlockHash& hash : Blocks(0, 8)) Use({hash});
  ResizeDiskTo(2);
  ASSERT_EQ(OnDisk(Blocks(0, 8)), 8u);
  ASSERT_EQ(OnDisk(Blocks(24, 8)), 8u) << "they have moved";
  Persist(Blocks(100, 4));
  EXPECT_EQ(OnDisk(Blocks(0, 8)), 8u) << "they were used after the others";
  EXPECT_EQ(OnDisk(Blocks(24, 8)), 4u);
}

TEST_F(CacheDiskResizeTest, PinnedBlocksMove) {
  StartWithOnDisk(Blocks(0, 32));
  const Hashes pinned = {Blocks(0, 1)[0], Blocks(20, 1)[0], Blocks(31, 1)[0]};
  ASSERT_EQ(cache_->Pin(pool_.namespace_id, pinned, 60'000), 3u);
  ResizeDiskTo(1);
  EXPECT_EQ(FileSlabs(), 1u);
  EXPECT_EQ(OnDisk(pinned), 3u);
  EXPECT_EQ(OnDisk(Blocks(27, 5)), 5u);
  ExpectAfterARestart(pinned);
}

TEST_F(CacheDiskResizeTest, PinnedBlocksWithoutRoomAreWaitedFor) {
  StartWithOnDisk(Blocks(0, 32));
  ASSERT_EQ(cache_->Pin(pool_.namespace_id, Blocks(0, 12), 60'000), 12u);
  ResizeDiskTo(1);
  EXPECT_EQ(FileSlabs(), 4u) << "eight fit, and four do not";
  EXPECT_EQ(OnDisk(Blocks(0, 12)), 12u);
  ASSERT_EQ(cache_->Pin(pool_.namespace_id, Blocks(0, 12), 0), 12u);
  TickOften();
  EXPECT_EQ(FileSlabs(), 1u);
  EXPECT_EQ(OnDisk(Blocks(0, 12)), 8u);
}

TEST_F(CacheDiskResizeTest, ABlockThatIsBeingReadIsWaitedFor) {
  StartWithOnDisk(Blocks(0, 32));
  const BlockHash block = Blocks(12, 1).front();
  machine_->loop.Hold(file().source());
  const PendingAcquire pending = BeginAcquire(kAlice, {block});
  BeginDiskResize(1);
  for (int tick = 0; tick < 10; ++tick) AdvanceAndTick(100);
  EXPECT_EQ(FileSlabs(), 4u);
  machine_->loop.LetGo(file().source());
  TickOften();
  ASSERT_TRUE(pending.succeeded());
  EXPECT_TRUE(MatchesHash(block, Bytes(pending.reply().hits[0].handle)));
  EXPECT_EQ(FileSlabs(), 1u);
}

// The verification gives up the slot, so that the file is cut before the load's read has ended.
TEST_F(CacheDiskResizeTest, ADamagedBlockThatIsVerifiedAndReadIsNotReadAgainBeyondTheEnd) {
  StartWithOnDisk(Blocks(0, 32));
  const BlockHash block = Blocks(31, 1).front();
  for (const BlockHash& hash : Blocks(0, 31)) {
    ASSERT_EQ(cache_->Evict({pool_.namespace_id, hash}, std::nullopt), EvictOutcome::kEvicted);
  }
  Settle();
  for (std::byte& byte : file().contents().subspan(kFirstSlabOffset)) byte ^= std::byte{0x10};
  machine_->loop.Hold(file().source());
  std::optional<Cache::VerifyResult> verified;
  cache_->VerifyStep(0, 100, [&](const Cache::VerifyResult& result) { verified = result; });
  machine_->loop.RunAll();
  ASSERT_TRUE(machine_->loop.RunOneOf(file().source()));
  machine_->loop.RunAll();
  const PendingAcquire pending = BeginAcquire(kAlice, {block});
  machine_->loop.RunAll();
  ASSERT_EQ(machine_->loop.pending(file().source()), 2u) << "both read it, one again";
  BeginDiskResize(1);
  ASSERT_TRUE(machine_->loop.RunOneOf(file().source()));
  TickOften();
  ASSERT_TRUE(verified.has_value());
  EXPECT_EQ(verified->bad, 1u);
  EXPECT_EQ(FileSlabs(), 1u);
  machine_->loop.LetGo(file().source());
  Settle();
  EXPECT_FALSE(Presence(block).anywhere());
}

TEST_F(CacheDiskResizeTest, TheEndOfAPauseOfWritesIsWaitedFor) {
  StartWithOnDisk(Blocks(0, 32));
  file().ScriptWrites({WriteFault::kEio});
  Persist(Blocks(50, 1));
  const uint64_t kept = OnDisk(Blocks(0, 32));
  BeginDiskResize(2);
  for (int tick = 0; tick < 20; ++tick) AdvanceAndTick(100);
  EXPECT_EQ(FileSlabs(), 4u);
  EXPECT_EQ(OnDisk(Blocks(0, 32)), kept);
  AdvanceAndTick(10'000);
  TickOften();
  EXPECT_EQ(FileSlabs(), 2u);
  EXPECT_GE(OnDisk(Blocks(16, 16)), 15u) << "the refused slot leaves, or another block";
}

TEST_F(CacheDiskResizeTest, ADrainIsNotHeldUpAndTheShrinkGoesOnAfterIt) {
  StartWithOnDisk(Blocks(0, 28));
  Put(Blocks(50, 4));
  bool drained = false;
  cache_->Drain([&drained] { drained = true; });
  BeginDiskResize(1);
  for (int tick = 0; tick < 20 && !drained; ++tick) AdvanceAndTick(100);
  EXPECT_TRUE(drained);
  EXPECT_EQ(OnDisk(Blocks(0, 28)), 28u) << "nothing has left yet";
  EXPECT_EQ(OnDisk(Blocks(50, 4)), 4u);
  TickOften();
  EXPECT_EQ(FileSlabs(), 1u);
  EXPECT_EQ(OnDisk(Blocks(50, 4)), 4u);
}

TEST_F(CacheDiskResizeTest, AShrinkThatIsTakenBackLosesNothingMore) {
  StartWithOnDisk(Blocks(0, 28));
  BeginDiskResize(2);
  BeginDiskResize(4);
  TickOften();
  EXPECT_EQ(FileSlabs(), 4u);
  EXPECT_EQ(OnDisk(Blocks(0, 28)), 28u);
  EXPECT_EQ(cache_->Gauges().disk_capacity_bytes, 4 * kSlabBytes);
}

TEST_F(CacheDiskResizeTest, SizesThatChangeWhileTheFilesAreBeingCutComeAfterThat) {
  StartWithDisk();
  Persist(Blocks(0, 8));
  BeginDiskResize(2);
  BeginDiskResize(3);
  cache_->Tick();
  BeginDiskResize(1);
  TickOften();
  EXPECT_EQ(FileSlabs(), 1u);
  EXPECT_EQ(OnDisk(Blocks(0, 8)), 8u);
  ExpectAfterARestart(Blocks(0, 8));
}

TEST_F(CacheDiskResizeTest, AGrowthThatIsAskedForAgainWhileItFailsIsTriedAgain) {
  StartWithDisk();
  ResizeDiskTo(1);
  const int before = machine_->drive_sizer.resizes();
  machine_->drive_sizer.SetRoom(2);
  machine_->drive_sizer.DoMeanwhile([this] { BeginDiskResize(4); });
  ResizeDiskTo(4);
  EXPECT_EQ(FileSlabs(), 2u);
  EXPECT_EQ(machine_->drive_sizer.resizes() - before, 2);
}

TEST_F(CacheDiskResizeTest, EachDriveIsResizedAndOneThatFailedStaysAsItIs) {
  StartWithOnDisk(Blocks(0, 32), 2);
  ASSERT_TRUE(cache_->LoseDrive(1, "it is gone", false));
  ResizeDiskTo(1);
  EXPECT_EQ(FileSlabs(0), 1u);
  EXPECT_EQ(FileSlabs(1), 2u);
  Persist(Blocks(100, 4));
  EXPECT_EQ(OnDisk(Blocks(100, 4)), 4u);
}

// The next process begins with files of either size, as a start makes them.
TEST_F(CacheDiskResizeTest, ADeathAtAnyStepLeavesWholeBlocksOnly) {
  for (int steps = 0; steps < 200; steps += 5) {
    StartWithOnDisk(Blocks(0, 32));
    BeginDiskResize(1);
    for (int i = 0; i < steps; ++i) {
      if (machine_->loop.RunOne()) continue;
      machine_->clock.Advance(100);
      cache_->Tick();
    }
    CrashAndRestart();
    for (const BlockHash& hash : Blocks(0, 32)) {
      const AcquireReply reply = Acquire(kAlice, {hash});
      if (reply.hits.empty()) continue;
      EXPECT_TRUE(MatchesHash(hash, Bytes(reply.hits[0].handle))) << "after step " << steps;
      Release(kAlice, HandlesOf(reply));
      Settle();
    }
    EXPECT_EQ(Misses(MissReason::kChecksumMismatch) + Misses(MissReason::kIdentityMismatch), 0u)
        << "after step " << steps;
    cache_.reset();
    machine_->loop.DropAll();
  }
}

TEST_F(CacheDiskResizeTest, RoomThatComesBackIsUsedAgain) {
  StartWithOnDisk(Blocks(0, 32));
  ResizeDiskTo(1);
  EXPECT_EQ(FileSlabs(), 1u);
  ResizeDiskTo(4);
  EXPECT_EQ(FileSlabs(), 4u);
  Persist(Blocks(100, 20));
  EXPECT_EQ(OnDisk(Blocks(100, 20)), 20u);
  ExpectAfterARestart(Blocks(100, 20));
}

TEST_F(CacheDiskResizeTest, AFullFileSystemLeavesItAtTheSizeReached) {
  StartWithDisk();
  ResizeDiskTo(1);
  machine_->drive_sizer.SetRoom(3);
  ResizeDiskTo(4);
  EXPECT_EQ(FileSlabs(), 3u);
  EXPECT_EQ(cache_->Gauges().disk_capacity_bytes, 3 * kSlabBytes);
  Persist(Blocks(0, 20));
  EXPECT_EQ(OnDisk(Blocks(0, 20)), 20u);
}

TEST_F(CacheDiskResizeTest, SlotsThatTheDiskRefusedGoWithTheirSlabs) {
  StartWithDisk();
  Persist(Blocks(0, 26));
  file().ScriptWrites({WriteFault::kEio});
  Persist(Blocks(50, 1));
  AdvanceAndTick(10'000);
  ResizeDiskTo(2);
  EXPECT_EQ(FileSlabs(), 2u);
}

}  // namespace
}  // namespace kvtier
