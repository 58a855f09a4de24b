// SPDX-License-Identifier: Apache-2.0
// Several models and tenants in one cache.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <optional>
#include <random>
#include <span>
#include <vector>

#include "tests/unit/tiers/cache_fixture.h"
#include "tiers/space/pool_space.h"
#include "tiers/storage/slot_header.h"

namespace kvtier {
namespace {

class CacheNamespacesTest : public CacheTest {
 protected:
  // Attaches another pool and lets the fixture's verbs speak of it from now on.
  PoolInfo UsePool(const NamespaceIdentity& identity, uint64_t bytes) {
    const Result<PoolInfo> pool = cache_->AttachPool(identity, bytes);
    if (!pool) {
      ADD_FAILURE() << pool.error().ToString();
      return {};
    }
    return pool_ = *pool;
  }
  // Starts with an empty cache of which no pool has taken all the memory.
  void StartWithRoom(CacheSetup setup, uint32_t first_pool_blocks) {
    Start(setup);
    cache_.reset();
    machine_->Crash();
    cache_ = std::make_unique<Cache>(setup_.options, machine_->Environment(), IndexSnapshot{});
    for (const SessionId session : {kAlice, kBob}) {
      cache_->OpenSession(session, [this](const LoadProgress& p) { progress_.push_back(p); });
    }
    (void)UsePool(Identity("tenant", 1), first_pool_blocks * kBlockBytes);
  }
  // The process dies and starts again, without a pool.
  void RestartWithRoom() {
    cache_.reset();
    machine_->Crash();
    cache_ = std::make_unique<Cache>(setup_.options, machine_->Environment(), machine_->Snapshot());
    cache_->OpenSession(kAlice, [this](const LoadProgress& p) { progress_.push_back(p); });
  }
};

TEST_F(CacheNamespacesTest, SameSpaceGetsTheSamePool) {
  Start();
  const Result<PoolInfo> again = cache_->AttachPool(Identity("tenant", 1), 0);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->id, pool_.id);
  EXPECT_EQ(again->generation, pool_.generation);
}

// Their numbers are for the life of the daemon, and all tenants share them.
TEST_F(CacheNamespacesTest, APoolThatIsRefusedTakesNoNumber) {
  Start();
  const size_t before = cache_->NamespaceCount();
  EXPECT_FALSE(cache_->AttachPool(Identity("tenant", 2), uint64_t{1} << 50));
  EXPECT_EQ(cache_->NamespaceCount(), before);
}

// Tiny pools cost the process mappings and descriptors, however few bytes they have.
TEST_F(CacheNamespacesTest, ATenantsPoolsAreBoundedAndUnusedOnesMakePlace) {
  constexpr uint32_t kMost = PoolSpace::kMostPools / 2;
  Start({.pool_blocks = 2 * kMost});
  RestartWithRoom();
  uint32_t model = 0;
  const auto identity = [](uint32_t number) {
    NamespaceIdentity made = Identity("other", 1);
    std::memcpy(made.model.bytes.data(), &number, sizeof(number));
    return made;
  };
  for (; model < kMost; ++model) {
    const Result<PoolInfo> pool = cache_->AttachPool(identity(model), kBlockBytes);
    ASSERT_TRUE(pool) << pool.error().ToString();
    cache_->UsePool(kAlice, pool->id);
  }
  EXPECT_EQ(cache_->AttachPool(identity(model), kBlockBytes).error().reason, "too_many_pools");
  cache_->LeavePool(kAlice, cache_->AttachPool(identity(5), kBlockBytes)->id);
  EXPECT_EQ(cache_->AttachPool(identity(model), kBlockBytes).error().reason,
            "pool_bytes_returning");
  Settle();
  EXPECT_TRUE(cache_->AttachPool(identity(model), kBlockBytes));
}

TEST_F(CacheNamespacesTest, APoolMayBeUsedWhenItsDeviceSaysSo) {
  Start();
  int ready = 0;
  cache_->WhenPoolReady(pool_.id, [&] { ++ready; });
  EXPECT_EQ(ready, 1);
  machine_->device->TakeTimeForPools();
  cache_->WhenPoolReady(pool_.id, [&] { ++ready; });
  EXPECT_EQ(ready, 1);
  Settle();
  EXPECT_EQ(ready, 2);
  cache_->WhenPoolReady(PoolId(99), [&] { ++ready; });
  Settle();
  EXPECT_EQ(ready, 2);
}

TEST_F(CacheNamespacesTest, PoolTakesAllThatIsLeftWhenNotToldOtherwise) {
  StartWithRoom({.pool_blocks = 16}, 4);
  EXPECT_EQ(pool_.blocks, 4u);
  EXPECT_EQ(UsePool(Identity("tenant", 2), 0).blocks, 12u);
}

// Host makes ready a quarter of its bytes, whichever model asked last.
TEST_F(CacheNamespacesTest, ASmallBlockHasNoMoreLargeOnesWrittenThanTheirShare) {
  // Each large block fills a slab.
  constexpr uint64_t kLargeBytes = 2 * (kSlotsPerSlab - 1) * kBlockBytes;
  constexpr uint32_t kSlabs = 16;
  const uint32_t slots = kSlabs * kSlotsPerSlab;
  StartWithRoom({.pool_blocks = 100, .host_slots = slots, .disk_slots = 2 * slots}, 4);
  const PoolInfo small = pool_;
  const PoolInfo large = UsePool(Identity("tenant", 2, kLargeBytes), 4 * kLargeBytes);
  for (uint64_t stream = 1; stream <= kSlabs / 4; ++stream) {
    Put(Sequence(stream, 4));
    EvictFromPool();
  }
  ASSERT_EQ(cache_->Gauges().host_blocks, kSlabs);
  const auto on_disk = [this] { return cache_->Gauges().disk_blocks; };
  ASSERT_EQ(on_disk(), kSlabs / 4);
  pool_ = small;
  Put(Sequence(20, 1));
  EvictFromPool();
  EXPECT_TRUE(Presence(TestHash(20, 0)).host);
  EXPECT_LE(on_disk(), kSlabs / 4 + 1) << "one has left for the small block";
  pool_ = large;
  EXPECT_FALSE(Presence(TestHash(1, 3)).host);
}

TEST_F(CacheNamespacesTest, PoolBeyondTheCapIsRefused) {
  StartWithRoom({.pool_blocks = 16}, 4);
  const auto pool = cache_->AttachPool(Identity("tenant", 2), 13 * kBlockBytes);
  ASSERT_FALSE(pool);
  EXPECT_EQ(pool.error().code, ErrorCode::kResourceExhausted);
}

TEST_F(CacheNamespacesTest, BlockLargerThanASlabIsRefused) {
  StartWithRoom({.pool_blocks = 64}, 4);
  const auto pool = cache_->AttachPool(Identity("tenant", 2, kSlabBytes), 0);
  ASSERT_FALSE(pool);
  EXPECT_EQ(pool.error().code, ErrorCode::kInvalidArgument);
}

TEST_F(CacheNamespacesTest, EmptyBlockIsRefused) {
  StartWithRoom({.pool_blocks = 64}, 4);
  EXPECT_FALSE(cache_->AttachPool(Identity("tenant", 2, 0), 0));
}

TEST_F(CacheNamespacesTest, OverlongTenantIsRefused) {
  StartWithRoom({.pool_blocks = 64}, 4);
  EXPECT_FALSE(cache_->AttachPool(Identity(std::string(65, 'x'), 1), 0));
}

TEST_F(CacheNamespacesTest, SameHashOfAnotherTenantIsAMiss) {
  StartWithRoom({.pool_blocks = 16}, 8);
  Put(Sequence(1, 2));
  (void)UsePool(Identity("stranger", 1), 0);
  EXPECT_TRUE(Acquire(kBob, Sequence(1, 2)).hits.empty());
  EXPECT_FALSE(Presence(TestHash(1, 0)).anywhere());
}

TEST_F(CacheNamespacesTest, SameHashOfAnotherModelIsAMiss) {
  StartWithRoom({.pool_blocks = 16}, 8);
  Put(Sequence(1, 2));
  (void)UsePool(Identity("tenant", 2), 0);
  EXPECT_TRUE(Acquire(kBob, Sequence(1, 2)).hits.empty());
}

TEST_F(CacheNamespacesTest, WhatIsAskedIsCountedForTheSpaceThatIsAsked) {
  StartWithRoom({.pool_blocks = 16}, 8);
  Put(Sequence(1, 2));
  Release(kBob, HandlesOf(Acquire(kBob, Sequence(1, 2))));
  (void)UsePool(Identity("tenant", 2), 0);
  (void)Acquire(kBob, Sequence(1, 3));
  const CacheStats& stats = cache_->stats();
  std::map<uint8_t, CacheStats::Asked> by_model;
  for (const PoolGauges& pool : cache_->Gauges().pools) {
    const NamespaceIdentity& identity = cache_->IdentityOf(pool.namespace_id);
    by_model[identity == Identity("tenant", 1) ? 1 : 2] =
        stats.of_namespaces[pool.namespace_id.value].blocks;
  }
  EXPECT_EQ(by_model[1].hit[static_cast<size_t>(Tier::kPool)], 2u);
  EXPECT_EQ(by_model[2].hit[static_cast<size_t>(Tier::kPool)], 0u);
  EXPECT_EQ(by_model[2].miss, 3u);
  EXPECT_EQ(by_model[1].asked + by_model[2].asked, stats.blocks.asked);
}

TEST_F(CacheNamespacesTest, TenantsKeepTheirOwnBytesUnderOneHashInEveryTier) {
  StartWithRoom({.pool_blocks = 16, .host_slots = 16, .disk_slots = 16}, 8);
  const PoolInfo first = pool_;
  Put(Sequence(1, 1));
  const PoolInfo second = UsePool(Identity("stranger", 1), 0);
  const BlockHandle block = Acquire(kBob, {}, 1).new_blocks.front();
  FillFromHash(TestHash(66, 6), Bytes(block));
  ASSERT_TRUE(
      cache_->Commit(kBob, pool_.id, {.block = block, .hash = TestHash(1, 0), .tokens = 16}));
  Release(kBob, {block});
  Drain();
  EvictFromPool();
  const AcquireReply theirs = Acquire(kBob, Sequence(1, 1));
  ASSERT_EQ(theirs.hits.size(), 1u);
  EXPECT_TRUE(MatchesHash(TestHash(66, 6), Bytes(theirs.hits[0].handle)));
  pool_ = first;
  EvictFromPool();
  const AcquireReply ours = Acquire(kAlice, Sequence(1, 1));
  ASSERT_EQ(ours.hits.size(), 1u);
  EXPECT_TRUE(MatchesHash(TestHash(1, 0), Bytes(ours.hits[0].handle)));
  EXPECT_NE(first.id, second.id);
}

TEST_F(CacheNamespacesTest, HandleOfOnePoolMeansNothingInAnother) {
  StartWithRoom({.pool_blocks = 16}, 8);
  const BlockHandle block = Acquire(kAlice, {}, 1).new_blocks.front();
  (void)UsePool(Identity("tenant", 2), 0);
  EXPECT_TRUE(TryRelease(kAlice, block).has_value());
  EXPECT_FALSE(
      cache_->Commit(kAlice, pool_.id, {.block = block, .hash = TestHash(1, 0), .tokens = 16}));
}

TEST_F(CacheNamespacesTest, SecondModelTakesItsShareOfAFullHostTier) {
  StartWithRoom({.pool_blocks = 32, .host_slots = 16, .disk_slots = 0}, 16);
  Put(Sequence(1, 16));
  EvictFromPool();
  ASSERT_EQ(cache_->Gauges().host_blocks, 16u);
  (void)UsePool(Identity("tenant", 2, 2 * kBlockBytes), 0);
  Put(Sequence(2, 4));
  EvictFromPool();
  EXPECT_TRUE(Presence(TestHash(2, 0)).host);
  const AcquireReply reply = Acquire(kAlice, Sequence(2, 4));
  EXPECT_EQ(reply.hits.size(), 4u);
  EXPECT_TRUE(MatchesHash(TestHash(2, 3), Bytes(reply.hits[3].handle)));
  EXPECT_GT(Drops(Tier::kHost, DropReason::kSlabReclaimed), 0u);
}

// The index is older than the files: the slab has been cut for the second model since.
TEST_F(CacheNamespacesTest, BlocksInASlabThatAnOldIndexIsWrongAboutAreFoundByTheirHeaders) {
  StartWithRoom({.pool_blocks = 32, .host_slots = 32, .disk_slots = 8}, 16);
  Put(Sequence(1, 8));
  Drain();
  const size_t batches = machine_->index->batches_applied();
  (void)UsePool(Identity("tenant", 2, 2 * kBlockBytes), 0);
  Put(Sequence(2, 2));
  Drain();
  ASSERT_TRUE(Presence(TestHash(2, 0)).disk);
  machine_->index->LoseTail(machine_->index->batches_applied() - batches);
  CrashAndRestart();
  Put(Sequence(3, 4));
  Drain();
  ASSERT_TRUE(Presence(TestHash(3, 3)).disk);
  LoseIndexAndRestart();
  for (const BlockHash& hash : Sequence(3, 4)) EXPECT_TRUE(Presence(hash).disk_unverified);
}

// Clients choose payloads, and those of larger slots lie where smaller ones begin later.
TEST_F(CacheNamespacesTest, PayloadIsNoHeaderWhenItsSlabHasBeenCutAnew) {
  StartWithRoom({.pool_blocks = 32, .host_slots = 32, .disk_slots = 8}, 16);
  const uint64_t second_slot = kSlabHeaderBytes + 2 * kBlockBytes;
  const SlotHeader forged{.tenant = "tenant",
                          .model = Identity("tenant", 1).model,
                          .hash = TestHash(9, 0),
                          .address = DiskLocation{second_slot},
                          .generation = 1,
                          .payload_bytes = kBlockBytes,
                          .tokens = kBlockTokens,
                          .last_use_s = UINT32_MAX};
  (void)UsePool(Identity("mallory", 2, 2 * kBlockBytes), 0);
  const BlockHandle block = Acquire(kAlice, {}, 1).new_blocks.front();
  // The payload begins behind its slot's header, which lies where the first slot does anyway.
  EncodeSlotHeader(forged, Bytes(block).subspan(kBlockBytes).first<kSlotHeaderBytes>());
  ASSERT_TRUE(
      cache_->Commit(kAlice, pool_.id, {.block = block, .hash = TestHash(1, 0), .tokens = 1}));
  Release(kAlice, {block});
  Drain();
  ASSERT_TRUE(DecodeSlotHeader(
      file().contents().subspan(kFirstSlabOffset + second_slot).first<kSlotHeaderBytes>()));
  (void)UsePool(Identity("tenant", 1), 0);
  Put(Sequence(2, 1));
  Drain();
  ASSERT_TRUE(Presence(TestHash(2, 0)).disk);
  LoseIndexAndRestart();
  EXPECT_TRUE(Presence(TestHash(2, 0)).disk_unverified);
  EXPECT_FALSE(Presence(TestHash(9, 0)).disk_unverified);
}

TEST_F(CacheNamespacesTest, SecondModelTakesItsShareOfAFullDisk) {
  StartWithRoom({.pool_blocks = 48, .host_slots = 32, .disk_slots = 16}, 16);
  Put(Sequence(1, 16));
  Drain();
  ASSERT_EQ(cache_->Gauges().disk_blocks, 16u);
  (void)UsePool(Identity("tenant", 2, 2 * kBlockBytes), 0);
  Put(Sequence(2, 2));
  Drain();
  EXPECT_TRUE(Presence(TestHash(2, 0)).disk);
  EXPECT_TRUE(Presence(TestHash(2, 1)).disk);
  EXPECT_GT(Drops(Tier::kDisk, DropReason::kSlabReclaimed), 0u);
}

TEST_F(CacheNamespacesTest, SpacesSurviveARestart) {
  StartWithRoom({.pool_blocks = 16}, 8);
  Put(Sequence(1, 2));
  (void)UsePool(Identity("stranger", 1), 0);
  Put(Sequence(2, 2));
  DrainAndRestart();
  EXPECT_EQ(Acquire(kAlice, Sequence(1, 2)).hits.size(), 2u);
  EXPECT_EQ(Acquire(kAlice, Sequence(2, 2)).hits.size(), 0u);
}

TEST_F(CacheNamespacesTest, PinnedBlockDoesNotKeepHostFromAnotherModel) {
  for (const BlockHash& pinned : Sequence(1, 16)) {
    cache_.reset();
    StartWithRoom({.pool_blocks = 32, .host_slots = 16, .disk_slots = 0}, 16);
    Put(Sequence(1, 16));
    EvictFromPool();
    ASSERT_EQ(cache_->Gauges().host_blocks, 16u);
    ASSERT_TRUE(cache_->Pin(kAlice, pool_.id, {&pinned, 1}, 60'000));
    (void)UsePool(Identity("tenant", 2, 2 * kBlockBytes), 0);
    Put(Sequence(2, 4));
    EvictFromPool();
    for (const BlockHash& hash : Sequence(2, 4)) EXPECT_TRUE(Presence(hash).host);
    EXPECT_EQ(Acquire(kAlice, Sequence(2, 4)).hits.size(), 4u);
    EXPECT_EQ(Drops(Tier::kPool, DropReason::kPoolPressure), 0u);
  }
}

// A model that fills a tier of eight slabs and pins blocks, and another tenant's with larger ones.
class CachePinnedSlabsTest : public CacheNamespacesTest {
 protected:
  static constexpr uint32_t kSlabs = 8;
  // Blocks of the second model that fit in the half of the slabs which pins may not hold. One is
  // so many of the first's, and its slot has a header.
  [[nodiscard]] uint32_t Most() const {
    return kSlabs / 2 * (kSlabBytes / ((their_size_ + 1) * kBlockBytes));
  }

  // Each slab gets a sequence of its own, of which so many blocks are pinned.
  void Fill(Tier tier, const std::array<uint32_t, kSlabs>& pins) {
    tier_ = tier;
    constexpr uint32_t kSlots = kSlabs * kSlotsPerSlab;
    StartWithRoom({.pool_blocks = 48,
                   .host_slots = tier == Tier::kHost ? kSlots : 32,
                   .disk_slots = tier == Tier::kHost ? 0 : kSlots},
                  16);
    first_ = pool_;
    for (uint32_t slab = 0; slab < kSlabs; ++slab) {
      const Hashes hashes = Sequence(slab, kSlotsPerSlab);
      Put(hashes);
      SinkAll();
      for (uint32_t i = 0; i < kSlotsPerSlab; ++i) {
        ASSERT_TRUE(In(hashes[i])) << slab;
        (i < pins[slab] ? pinned_ : others_).push_back(hashes[i]);
      }
    }
    PinAll();
  }
  // At most so many of the blocks in so many slabs are to be pinned.
  void Draw(uint32_t slabs, uint32_t pins, std::mt19937* random) {
    std::vector<Hashes> of_slabs;
    for (uint32_t slab = 0; slab < kSlabs; ++slab) {
      of_slabs.push_back(Sequence(slab, kSlotsPerSlab));
    }
    std::ranges::shuffle(of_slabs, *random);
    for (const Hashes& hashes : std::span(of_slabs).first(slabs)) {
      pinned_.insert(pinned_.end(), hashes.begin(), hashes.end());
    }
    std::ranges::shuffle(pinned_, *random);
    pinned_.resize(std::min<size_t>(pinned_.size(), pins));
    std::erase_if(others_,
                  [this](const BlockHash& hash) { return std::ranges::count(pinned_, hash) > 0; });
  }
  void PinAll() { ASSERT_TRUE(cache_->Pin(kAlice, first_.id, pinned_, 60'000)); }
  void ForgetAllButThePinned() {
    const std::optional<NamespaceId> first = cache_->FindNamespace(Identity("tenant", 1));
    for (const BlockHash& hash : others_) (void)cache_->Evict({*first, hash}, std::nullopt);
    Settle();
  }
  void UseTheSecondModel() {
    pool_ = UsePool(Identity("stranger", 2, their_size_ * kBlockBytes), 0);
    for (uint32_t i = 0; i < 3 * Most(); ++i) {
      Put(Sequence(100 + i % Most(), 1));
      SinkAll();
      if (pins_anew_) PinAll();
    }
  }
  void SinkAll() { tier_ == Tier::kHost ? EvictFromPool() : Drain(); }
  [[nodiscard]] bool In(const BlockHash& hash) const {
    const BlockPresence presence = Presence(hash);
    return tier_ == Tier::kHost ? presence.host : presence.disk;
  }
  // How many blocks of the second model the tier has, and how many of those pinned.
  [[nodiscard]] uint32_t Theirs() const {
    uint32_t count = 0;
    for (uint32_t i = 0; i < Most(); ++i) count += In(Sequence(100 + i, 1)[0]) ? 1 : 0;
    return count;
  }
  [[nodiscard]] size_t Kept() const {
    return static_cast<size_t>(
        std::ranges::count_if(pinned_, [this](const BlockHash& hash) { return In(hash); }));
  }

  Tier tier_ = Tier::kHost;
  PoolInfo first_;
  Hashes pinned_, others_;
  uint32_t their_size_ = 2;
  bool pins_anew_ = false;  // after each block of the second model
};

TEST_F(CachePinnedSlabsTest, AnyPinsLeaveAnotherModelWhatTheyMayNotHold) {
  struct Pins {
    const char* name;
    std::array<uint32_t, kSlabs> in_slab;
    size_t most_in_half;  // pinned in the four slabs that have the most of them
  };
  constexpr Pins kPins[] = {{"one each", {1, 1, 1, 1, 1, 1, 1, 1}, 4},
                            {"two each, but one", {2, 2, 2, 1, 2, 2, 2, 2}, 8},
                            {"few full", {8, 1, 8, 1, 1, 1, 1, 1}, 18},
                            {"all that may be", {4, 4, 4, 4, 4, 4, 4, 4}, 16},
                            {"ever more", {1, 2, 3, 4, 5, 5, 6, 6}, 22}};
  for (const Tier tier : {Tier::kHost, Tier::kDisk}) {
    for (const Pins& pins : kPins) {
      for (const bool alone : {false, true}) {
        for (const bool anew : {false, true}) {
          SCOPED_TRACE(fmt::format("{} {} {} {}", tier == Tier::kHost ? "host" : "disk", pins.name,
                                   alone ? "alone" : "among others", anew ? "anew" : "once"));
          cache_.reset();
          pinned_.clear();
          others_.clear();
          pins_anew_ = anew;
          Fill(tier, pins.in_slab);
          if (alone) ForgetAllButThePinned();
          UseTheSecondModel();
          EXPECT_EQ(Theirs(), Most());
          pool_ = first_;
          EXPECT_GE(Kept(), pins.most_in_half) << "pins keep the slabs that have most of them";
        }
      }
    }
  }
}

TEST_F(CachePinnedSlabsTest, PinsDrawnAtRandomLeaveAnotherModelAsMuch) {
  constexpr uint32_t kSets = 300;
  for (uint32_t seed = 1; seed <= kSets; ++seed) {
    std::mt19937 random(seed);
    const Tier tier = random() % 2 == 0 ? Tier::kHost : Tier::kDisk;
    const uint32_t slabs = 1 + random() % kSlabs;
    const uint32_t pins = 1 + random() % (kSlabs * kSlotsPerSlab / 2);
    const bool alone = random() % 2 == 0;
    pins_anew_ = random() % 2 == 0;
    their_size_ = 2 + random() % 3;
    SCOPED_TRACE(fmt::format("seed {}: {}, {} pins in {} slabs{}{}, blocks of {}", seed,
                             tier == Tier::kHost ? "host" : "disk", pins, slabs,
                             alone ? ", alone" : "", pins_anew_ ? ", anew" : "", their_size_));
    cache_.reset();
    pinned_.clear();
    others_.clear();
    Fill(tier, {});
    Draw(slabs, pins, &random);
    PinAll();
    if (alone) ForgetAllButThePinned();
    UseTheSecondModel();
    EXPECT_GE(Theirs() * 20, Most() * 19);
  }
}

TEST_F(CachePinnedSlabsTest, PinsInHalfOfTheSlabsOutliveAnotherModel) {
  for (const Tier tier : {Tier::kHost, Tier::kDisk}) {
    cache_.reset();
    pinned_.clear();
    Fill(tier, {1, 0, 1, 0, 8, 0, 1, 0});
    UseTheSecondModel();
    pool_ = first_;
    EXPECT_EQ(Kept(), pinned_.size());
    EXPECT_EQ(cache_->stats().pins_ended_for_space, 0u);
  }
}

TEST_F(CachePinnedSlabsTest, PinsInAllSlabsOutliveBlocksOfTheirOwnSize) {
  for (const Tier tier : {Tier::kHost, Tier::kDisk}) {
    cache_.reset();
    pinned_.clear();
    Fill(tier, {1, 1, 1, 1, 1, 1, 1, 1});
    for (uint64_t stream = 200; stream < 220; ++stream) {
      Put(Sequence(stream, kSlotsPerSlab));
      SinkAll();
    }
    EXPECT_EQ(Kept(), pinned_.size());
    EXPECT_EQ(cache_->stats().pins_ended_for_space, 0u);
  }
}

// The same memory counts for the pins' limit and for their end.
TEST_F(CacheNamespacesTest, PinsThatMemoryToComeAllowsStayAsLongAsItMayCome) {
  StartWithRoom({.pool_blocks = 48,
                 .host_slots = 2 * kSlotsPerSlab,
                 .host_slots_ready = kSlotsPerSlab,
                 .disk_slots = 0},
                16);
  Put(Sequence(1, kSlotsPerSlab));
  EvictFromPool();
  ASSERT_TRUE(cache_->Pin(kAlice, pool_.id, Sequence(1, kSlotsPerSlab), kHourMs));
  const PoolInfo larger = UsePool(Identity("stranger", 2, 2 * kBlockBytes), 0);
  Put(Sequence(100, larger.blocks));
  EXPECT_EQ(cache_->stats().pins_ended_for_space, 0u);
  machine_->arena->EndGrowth();
  AdvanceAndTick(kSecondMs);
  EXPECT_EQ(cache_->stats().pins_ended_for_space, kSlotsPerSlab);
}

// Each update of an engine's weights is a model of its own.
NamespaceIdentity Epoch(const NamespaceIdentity& model, uint32_t number) {
  NamespaceIdentity identity = model;
  identity.model.bytes[1] = static_cast<uint8_t>(number);
  identity.model.bytes[2] = static_cast<uint8_t>(number >> 8);
  return identity;
}

TEST_F(CacheNamespacesTest, AnEngineGoesThroughTenThousandEpochs) {
  constexpr uint32_t kEpochs = 10'000;
  StartWithRoom({.pool_blocks = 16, .host_slots = 16, .disk_slots = 32}, 2);
  const NamespaceIdentity model = Identity("tenant", 2);
  for (uint32_t i = 0; i < kEpochs; ++i) {
    // The pools of epochs that are over make way.
    while (!cache_->AttachPool(Epoch(model, i), 2 * kBlockBytes)) Settle();
    cache_->UsePool(kAlice, UsePool(Epoch(model, i), 2 * kBlockBytes).id);
    // The same tokens with other weights are another block.
    ASSERT_TRUE(Acquire(kAlice, Sequence(1, 1)).hits.empty()) << i;
    if (i % 100 == 99) Put(Sequence(1, 1));
    cache_->LeavePool(kAlice, pool_.id);
  }
  Drain();
  RestartWithRoom();
  EXPECT_LE(cache_->SizeOfReplay(1).namespaces, setup_.disk_slots) << "only those that have blocks";
  // This one has the number of an epoch that has none.
  (void)UsePool(Epoch(model, kEpochs), 2 * kBlockBytes);
  EXPECT_LT(cache_->FindNamespace(Epoch(model, kEpochs))->value, kEpochs);
  Put(Sequence(1, 1));
  Drain();
  RestartWithRoom();
  for (const uint32_t stored : {kEpochs - 1, kEpochs}) {
    (void)UsePool(Epoch(model, stored), 2 * kBlockBytes);
    const AcquireReply reply = Acquire(kAlice, Sequence(1, 1));
    ASSERT_EQ(reply.hits.size(), 1u) << stored;
    EXPECT_EQ(LastProgress(reply.load).ready, 1u) << stored;
  }
  (void)UsePool(Epoch(model, 0), 2 * kBlockBytes);
  EXPECT_TRUE(Acquire(kAlice, Sequence(1, 1)).hits.empty());
}

}  // namespace
}  // namespace kvtier
