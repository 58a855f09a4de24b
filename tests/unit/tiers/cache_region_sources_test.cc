// SPDX-License-Identifier: Apache-2.0
// Loads whose source is a region of another engine, which says what its blocks hold and overwrites
// them as it likes.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <optional>

#include "tests/fakes/fake_published_blocks.h"
#include "tests/unit/tiers/region_fixture.h"
#include "tiers/blocks/blocks.h"

namespace kvtier {
namespace {

class CacheRegionSourcesTest : public CacheRegionsTest {
 protected:
  struct Engine {
    PoolId region;
    std::shared_ptr<FakePublishedBlocks> published;
    FakeDevicePool* memory = nullptr;
  };

  Engine OpenEngine(SessionId session, uint32_t device, std::vector<RegionPiece> pieces = {}) {
    if (pieces.empty()) pieces = {{0, kBlockBytes, kBlockBytes}};
    if (!looks_) looks_ = machine_->loop.AddSource(FakeLoop::Order::kAsPosted);
    auto published = std::make_shared<FakePublishedBlocks>(&machine_->loop, *looks_);
    RegionMemory memory{
        .lent = {.kind = LentMemory::Kind::kVmm, .bytes = kRegionBlocks * kBlockBytes},
        .device = DeviceIndex(device),
        .blocks = kRegionBlocks,
        .block_tokens = kBlockTokens,
        .pieces = std::move(pieces),
        .published = published};
    const auto region = cache_->OpenRegion(session, Identity("tenant", 1), std::move(memory));
    EXPECT_TRUE(region) << region.error().ToString();
    return {*region, std::move(published), machine_->devices[device]->lent().back()};
  }
  // The engine computes the blocks, publishes them, and has them stored.
  void Compute(const Engine& engine, const Hashes& hashes) {
    memory_ = engine.memory;
    for (uint32_t i = 0; i < hashes.size(); ++i) {
      engine.published->Publish(BlockIndex(i), hashes[i]);
    }
    ASSERT_EQ(StoreAll(engine.region, hashes)->copied, hashes.size());
  }
  // As an engine does that needs the block for something else.
  static void Overwrite(const Engine& engine, uint32_t block) {
    engine.published->Retract(BlockIndex(block));
    FillFromHash(TestHash(99, block), BytesOf(engine, block));
  }
  static std::span<std::byte> BytesOf(const Engine& engine, uint32_t block) {
    return {engine.memory->data() + block * kBlockBytes, kBlockBytes};
  }
  void ExpectLoaded(const PendingTransfer& load, const Engine& engine, const Hashes& hashes) {
    ASSERT_TRUE(load.ended());
    ASSERT_EQ(load->copied, hashes.size());
    for (uint32_t i = 0; i < hashes.size(); ++i) {
      EXPECT_TRUE(MatchesHash(hashes[i], BytesOf(engine, i))) << i;
    }
  }
  [[nodiscard]] uint64_t FromNeighbour() const { return cache_->stats().neighbour_blocks; }

  std::optional<EventSource> looks_;  // at what engines publish
};

TEST_F(CacheRegionSourcesTest, ABlockThatAnotherEngineHoldsComesFromItsMemory) {
  Start({.devices = 2, .neighbours = true});
  const Engine first = OpenEngine(kAlice, 0);
  const Engine second = OpenEngine(kBob, 1);
  Compute(first, Sequence(1, 3));
  const PendingTransfer load = BeginLoad(second.region, Sequence(1, 3));
  Settle();
  ExpectLoaded(load, second, Sequence(1, 3));
  EXPECT_EQ(FromNeighbour(), 3u);
  EXPECT_EQ(cache_->stats().onload_blocks, 0u);
}

// Clients say in which pieces blocks lie: 4,096 of them, of a byte each, are as good as any.
TEST_F(CacheRegionSourcesTest, ManyPiecesOfBothAreWalkedInStep) {
  constexpr uint64_t kPieces = 4096;
  static_assert(kPieces <= kBlockBytes);
  std::vector<RegionPiece> pieces;
  for (uint64_t i = 0; i + 1 < kPieces; ++i) pieces.push_back({i, kBlockBytes, 1});
  pieces.push_back({kPieces - 1, kBlockBytes, kBlockBytes - (kPieces - 1)});
  Start({.devices = 2, .neighbours = true});
  const Engine first = OpenEngine(kAlice, 0, pieces);
  const Engine second = OpenEngine(kBob, 1, pieces);
  Compute(first, Sequence(1, 3));
  const PendingTransfer load = BeginLoad(second.region, Sequence(1, 3));
  Settle();
  ExpectLoaded(load, second, Sequence(1, 3));
  EXPECT_EQ(FromNeighbour(), 3u);

  const CachePool source{
      .blocks = PoolBlocks(1), .victims = VictimQueue(MakeLruPolicy()), .pieces = pieces};
  CachePool::PiecePlace at;
  uint64_t parts = 0;
  for (uint64_t i = 0; i < kPieces; ++i) {
    const size_t before = at.piece;
    source.ForEachPart(BlockIndex(0), i, 1, &at, [&](uint64_t, uint64_t, uint64_t) { ++parts; });
    EXPECT_LE(at.piece - before, 1u);
  }
  EXPECT_EQ(parts, kPieces);
}

TEST_F(CacheRegionSourcesTest, TheEndOfARegionIsToldWhenItsGpuHasLetGoOfTheMemory) {
  Start();
  const Engine engine = OpenEngine(kAlice, 0);
  bool told = false;
  cache_->CloseRegion(engine.region, [&] {
    told = true;
    EXPECT_TRUE(machine_->device->lent().empty());
  });
  EXPECT_FALSE(told);
  EXPECT_EQ(machine_->device->lent().size(), 1u) << "the driver takes long: not on the event loop";
  Settle();
  EXPECT_TRUE(told);
}

TEST_F(CacheRegionSourcesTest, NoEndIsToldWhenTheSessionHasEndedBefore) {
  Start();
  bool told = false;
  cache_->CloseRegion(OpenEngine(kAlice, 0).region, [&] { told = true; });
  cache_->CloseSession(kAlice);
  Settle();
  EXPECT_TRUE(machine_->device->lent().empty());
  EXPECT_FALSE(told);
}

TEST_F(CacheRegionSourcesTest, AnEngineOfTheSameDeviceIsASourceToo) {
  Start();
  const Engine first = OpenEngine(kAlice, 0);
  const Engine second = OpenEngine(kBob, 0);
  Compute(first, Sequence(1, 2));
  const PendingTransfer load = BeginLoad(second.region, Sequence(1, 2));
  Settle();
  ExpectLoaded(load, second, Sequence(1, 2));
  EXPECT_EQ(FromNeighbour(), 2u);
}

TEST_F(CacheRegionSourcesTest, DevicesThatCannotReadEachOtherGoThroughHost) {
  Start({.devices = 2});
  const Engine first = OpenEngine(kAlice, 0);
  const Engine second = OpenEngine(kBob, 1);
  Compute(first, Sequence(1, 2));
  const PendingTransfer load = BeginLoad(second.region, Sequence(1, 2));
  Settle();
  ExpectLoaded(load, second, Sequence(1, 2));
  EXPECT_EQ(FromNeighbour(), 0u);
}

TEST_F(CacheRegionSourcesTest, BlocksWhosePartsLieElsewhereInEachRegionArriveWhole) {
  Start({.devices = 2, .neighbours = true});
  const uint64_t third = kBlockBytes / 4;
  const Engine first = OpenEngine(
      kAlice, 0,
      {{0, third, third}, {kRegionBlocks * third, kBlockBytes - third, kBlockBytes - third}});
  const Engine second = OpenEngine(kBob, 1);
  // The first engine's blocks are put together by a load, from a third one.
  const Engine origin = OpenEngine(kAlice, 0);
  Compute(origin, Sequence(1, 2));
  const PendingTransfer loaded = BeginLoad(first.region, Sequence(1, 2));
  Settle();
  ASSERT_EQ(loaded->copied, 2u);
  EXPECT_EQ(FromNeighbour(), 2u);
  const std::byte* const second_part = first.memory->data() + kRegionBlocks * third;
  EXPECT_EQ(std::memcmp(first.memory->data() + third, BytesOf(origin, 1).data(), third), 0);
  EXPECT_EQ(std::memcmp(second_part + (kBlockBytes - third), BytesOf(origin, 1).data() + third,
                        kBlockBytes - third),
            0);
}

TEST_F(CacheRegionSourcesTest, AnEngineThatOverwritesABlockInMidCopyCostsADetourAndNoWrongByte) {
  Start({.devices = 2, .neighbours = true});
  const Engine first = OpenEngine(kAlice, 0);
  const Engine second = OpenEngine(kBob, 1);
  Compute(first, Sequence(1, 3));
  machine_->loop.Hold(machine_->devices[1]->source());
  const PendingTransfer load = BeginLoad(second.region, Sequence(1, 3));
  machine_->loop.RunAll();
  Overwrite(first, 1);
  machine_->loop.LetGo(machine_->devices[1]->source());
  Settle();
  ExpectLoaded(load, second, Sequence(1, 3));
  EXPECT_EQ(FromNeighbour(), 2u);
  EXPECT_EQ(cache_->stats().neighbour_fallbacks, 1u);
}

TEST_F(CacheRegionSourcesTest, HostKeepsABlockThatIsCopiedFromAnEngineSoThatThereIsAnotherWay) {
  Start({.devices = 2, .neighbours = true, .host_slots = 8, .disk_slots = 0});
  const Engine first = OpenEngine(kAlice, 0);
  const Engine second = OpenEngine(kBob, 1);
  Compute(first, Sequence(1, 2));
  machine_->loop.Hold(machine_->devices[1]->source());
  const PendingTransfer load = BeginLoad(second.region, Sequence(1, 2));
  machine_->loop.RunAll();
  // As much as host has room for is stored meanwhile.
  memory_ = first.memory;
  const PendingTransfer others = BeginStore(first.region, Sequence(2, 8), /*first=*/2);
  Settle();
  EXPECT_TRUE(Presence(TestHash(1, 0)).host);
  Overwrite(first, 0);
  Overwrite(first, 1);
  machine_->loop.LetGo(machine_->devices[1]->source());
  Settle();
  ExpectLoaded(load, second, Sequence(1, 2));
  EXPECT_EQ(cache_->stats().neighbour_fallbacks, 2u);
}

TEST_F(CacheRegionSourcesTest, ABlockThatWasOverwrittenAndPublishedAnewIsNotTheOldOne) {
  Start({.devices = 2, .neighbours = true});
  const Engine first = OpenEngine(kAlice, 0);
  const Engine second = OpenEngine(kBob, 1);
  Compute(first, Sequence(1, 1));
  // Another hash, and then the same one, computed with other weights.
  for (const BlockHash& published : {TestHash(7, 0), TestHash(1, 0)}) {
    Overwrite(first, 0);
    first.published->Publish(BlockIndex(0), published);
    const PendingTransfer load = BeginLoad(second.region, Sequence(1, 1));
    Settle();
    ExpectLoaded(load, second, Sequence(1, 1));
  }
  EXPECT_EQ(FromNeighbour(), 0u);
}

TEST_F(CacheRegionSourcesTest, ABlockThatWasPublishedOnlyAfterItsStoreHadEndedIsNoSource) {
  Start({.devices = 2, .neighbours = true});
  const Engine first = OpenEngine(kAlice, 0);
  const Engine second = OpenEngine(kBob, 1);
  machine_->loop.Hold(*looks_);
  memory_ = first.memory;
  ASSERT_EQ(StoreAll(first.region, Sequence(1, 1))->copied, 1u);
  Overwrite(first, 0);
  first.published->Publish(BlockIndex(0), TestHash(1, 0));
  machine_->loop.LetGo(*looks_);
  Settle();
  const PendingTransfer load = BeginLoad(second.region, Sequence(1, 1));
  Settle();
  ExpectLoaded(load, second, Sequence(1, 1));
  EXPECT_EQ(FromNeighbour(), 0u);
}

TEST_F(CacheRegionSourcesTest, AnEngineWhoseTableIsNeverAnsweredHoldsNobodyUp) {
  Start({.devices = 2, .neighbours = true});
  const Engine first = OpenEngine(kAlice, 0);
  const Engine second = OpenEngine(kBob, 1);
  Compute(first, Sequence(1, 2));
  first.published->Hang();
  const PendingTransfer load = BeginLoad(second.region, Sequence(1, 2));
  Settle();
  EXPECT_FALSE(load.ended());
  // Another copy is under way when it is given up.
  const Engine third = OpenEngine(kBob, 1);
  machine_->loop.Hold(machine_->devices[1]->source());
  const PendingTransfer late = BeginLoad(third.region, Sequence(1, 2));
  machine_->loop.RunAll();
  machine_->clock.Advance(1'000);
  cache_->Tick();
  machine_->loop.LetGo(machine_->devices[1]->source());
  Settle();
  ExpectLoaded(load, second, Sequence(1, 2));
  // It is looked at in vain once more.
  machine_->clock.Advance(1'000);
  cache_->Tick();
  Settle();
  ExpectLoaded(late, third, Sequence(1, 2));
  // And is asked no more.
  const PendingTransfer again = BeginLoad(second.region, Sequence(1, 2));
  Settle();
  ExpectLoaded(again, second, Sequence(1, 2));
  EXPECT_EQ(FromNeighbour(), 0u);
}

TEST_F(CacheRegionSourcesTest, AnEngineWhoseTableWasLateIsASourceAgain) {
  Start({.devices = 2, .neighbours = true});
  const Engine first = OpenEngine(kAlice, 0);
  const Engine second = OpenEngine(kBob, 1);
  Compute(first, Sequence(1, 1));
  machine_->loop.Hold(*looks_);
  const PendingTransfer late = BeginLoad(second.region, Sequence(1, 1));
  machine_->loop.RunAll();
  // A store's look stands behind the load's, which is given up.
  memory_ = first.memory;
  first.published->Publish(BlockIndex(1), TestHash(2, 0));
  (void)BeginStore(first.region, Sequence(2, 1), /*first=*/1);
  Settle();
  machine_->clock.Advance(1'000);
  cache_->Tick();
  Settle();
  ExpectLoaded(late, second, Sequence(1, 1));
  // Another store's begins before the first is answered.
  first.published->Publish(BlockIndex(2), TestHash(3, 0));
  (void)BeginStore(first.region, Sequence(3, 1), /*first=*/2);
  Settle();
  machine_->loop.LetGo(*looks_);
  Settle();
  ASSERT_EQ(FromNeighbour(), 0u);
  // From now on all is answered at once.
  Compute(first, Sequence(4, 1));
  const PendingTransfer load = BeginLoad(second.region, Sequence(4, 1));
  Settle();
  ExpectLoaded(load, second, Sequence(4, 1));
  EXPECT_EQ(FromNeighbour(), 1u);
}

TEST_F(CacheRegionSourcesTest, ARegionThatClosesKeepsItsMemoryUntilTheCopyFromItHasLanded) {
  Start({.devices = 2, .neighbours = true});
  const Engine first = OpenEngine(kAlice, 0);
  const Engine second = OpenEngine(kBob, 1);
  Compute(first, Sequence(1, 2));
  machine_->loop.Hold(machine_->devices[1]->source());
  const PendingTransfer load = BeginLoad(second.region, Sequence(1, 2));
  machine_->loop.RunAll();
  bool closed = false;
  cache_->CloseRegion(first.region, [&closed] { closed = true; });
  machine_->loop.RunAll();
  EXPECT_FALSE(closed);
  machine_->loop.LetGo(machine_->devices[1]->source());
  Settle();
  ExpectLoaded(load, second, Sequence(1, 2));
  EXPECT_TRUE(closed);
  // From now on it is no source.
  const PendingTransfer again = BeginLoad(second.region, Sequence(1, 2));
  Settle();
  ExpectLoaded(again, second, Sequence(1, 2));
  EXPECT_EQ(FromNeighbour(), 2u);
}

TEST_F(CacheRegionSourcesTest, ARegionInHostMemoryReadsNoGpu) {
  auto host = std::unique_ptr<FakeDevice>();
  change_environment_ = [this, &host](CacheEnvironment* environment, IndexSnapshot*) {
    host = std::make_unique<FakeDevice>(&machine_->loop, 64 * kMiB, 1);
    environment->lent_host_memory = host.get();
  };
  Start({.devices = 2, .neighbours = true});
  const Engine first = OpenEngine(kAlice, 1);
  Compute(first, Sequence(1, 2));
  // Named with the number of a device that could.
  const PoolId in_host = OpenRegion(kBob);
  memory_ = host->lent().back();
  const PendingTransfer load = BeginLoad(in_host, Sequence(1, 2));
  Settle();
  ASSERT_EQ(load->copied, 2u);
  EXPECT_TRUE(MatchesHash(TestHash(1, 1), RegionBytes(1)));
  EXPECT_EQ(FromNeighbour(), 0u);
  cache_.reset();
}

TEST_F(CacheRegionSourcesTest, ABlockThatIsComputedElsewhereIsLookedForAtItsLastPlace) {
  Start({.devices = 2, .neighbours = true});
  const Engine first = OpenEngine(kAlice, 0);
  const Engine second = OpenEngine(kBob, 1);
  Compute(first, Sequence(1, 2));
  // The first engine's blocks are another sequence's by now.
  Overwrite(first, 0);
  Overwrite(first, 1);
  Compute(first, Sequence(2, 2));
  const PendingTransfer old = BeginLoad(second.region, Sequence(1, 2));
  Settle();
  ExpectLoaded(old, second, Sequence(1, 2));
  EXPECT_EQ(cache_->stats().neighbour_fallbacks, 0u);
  const PendingTransfer now = BeginLoad(second.region, Sequence(2, 2));
  Settle();
  ExpectLoaded(now, second, Sequence(2, 2));
  EXPECT_EQ(FromNeighbour(), 2u);
}

}  // namespace
}  // namespace kvtier
