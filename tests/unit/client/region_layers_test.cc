// SPDX-License-Identifier: Apache-2.0
// Layers of a region's loads: what their counters say, on a daemon that copies nothing. Pages of a
// region's memory. Requests that the daemon does not take in at once.
#include <gmock/gmock.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <future>
#include <set>
#include <string>
#include <vector>

#include "tests/unit/client/client_fixture.h"

namespace kvtier::client {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr uint32_t kLayers = 4;
constexpr uint64_t kBlockBytes = 4096;
constexpr uint32_t kBlocks = 8;
constexpr PoolId kRegion{5};

class RegionLayersTest : public ClientFixture {
 protected:
  void SetUp() override { Begin(); }
  void Begin(const FakeDaemonOptions& daemon = {}, const kvt_connect_options& client = Options(),
             uint32_t blocks = kBlocks) {
    region_.reset();
    StartDaemon(daemon);
    Attach(client);
    kvt_model_record record = Record();
    record.groups[0].layers = kLayers;
    const auto model = connection_->RegisterModel(record);
    ASSERT_TRUE(model);
    memory_ = UniqueFd(::memfd_create("region", MFD_CLOEXEC));
    kvt_region_options options;
    kvt_region_options_init(&options);
    options.fd = memory_.get();
    options.bytes = blocks * kBlockBytes;
    ASSERT_EQ(::ftruncate(memory_.get(), static_cast<off_t>(options.bytes)), 0);
    options.blocks = blocks;
    auto region = connection_->OpenRegion(model->model, options);
    ASSERT_TRUE(region) << region.error().ToString();
    region_.emplace(*std::move(region));
    // A load is not answered: the test says how it goes.
    daemon_->Intercept([this](const wire::Frame& frame) -> std::optional<FakeDaemon::Bytes> {
      if (frame.type != static_cast<uint16_t>(wire::MessageType::kLoad)) return std::nullopt;
      sent_.push_back(*wire::Decode<wire::Load>(frame.payload));
      return FakeDaemon::Bytes();
    });
  }
  void TearDown() override {
    region_.reset();
    ClientFixture::TearDown();
  }

  [[nodiscard]] uint64_t Load(kvt_load_order order = KVT_LOAD_LAYERS) {
    const std::vector<kvt_load_block> blocks = {{Hash(1), 0}, {Hash(2), 1}};
    const auto transfer = region_->Load(blocks, order);
    EXPECT_TRUE(transfer) << transfer.error().ToString();
    EXPECT_TRUE(connection_->Ping());
    return transfer ? *transfer : 0;
  }
  // Counts layers of the load that was sent last.
  void Count(uint32_t layers) { daemon_->Count(*sent_.back().counter, layers); }
  [[nodiscard]] uint32_t Loaded(uint64_t transfer) {
    const auto layers = region_->LayersLoaded(transfer);
    EXPECT_TRUE(layers) << layers.error().ToString();
    return layers ? *layers : UINT32_MAX;
  }
  void Done(uint64_t transfer, uint32_t copied = 2,
            std::vector<wire::TransferDone::Failed> failed = {}) {
    daemon_->Done({kRegion, transfer, copied, 0, std::move(failed)});
  }

  UniqueFd memory_;
  std::optional<kvt::Region> region_;
  std::vector<wire::Load> sent_;
};

TEST_F(RegionLayersTest, LayersAreSeenAsTheyAreCounted) {
  const uint64_t transfer = Load();
  ASSERT_TRUE(sent_.back().counter);
  EXPECT_EQ(sent_.back().counter->steps, kLayers);
  EXPECT_EQ(Loaded(transfer), 0u);
  for (uint32_t layers = 1; layers <= kLayers; ++layers) {
    Count(layers);
    EXPECT_EQ(Loaded(transfer), layers);
    EXPECT_TRUE(region_->WaitLayers(transfer, layers));
  }
  EXPECT_EQ(region_->WaitLayers(transfer, kLayers + 1).error().code, KVT_INVALID_ARGUMENT);
  EXPECT_TRUE(region_->Poll().empty()) << "only the end says that the blocks are free";
}

TEST_F(RegionLayersTest, ALoadThatHasEndedHasAllLayers) {
  const uint64_t transfer = Load();
  Done(transfer);
  ASSERT_TRUE(region_->Wait(transfer));
  EXPECT_EQ(Loaded(transfer), kLayers);
  EXPECT_TRUE(region_->WaitLayers(transfer, kLayers, 0));
}

TEST_F(RegionLayersTest, ALoadThatTheDaemonDoesNotCountIsSeenToEndByLookingAlone) {
  const uint64_t transfer = Load();
  Done(transfer);
  while (Loaded(transfer) < kLayers) {
  }
}

TEST_F(RegionLayersTest, CountersOfLoadsAreTheirOwnAndUsedAgain) {
  std::set<uint32_t> offsets;
  const uint64_t first = Load();
  const wire::LoadCounter counter = *sent_.back().counter;
  daemon_->Count(counter, 3);
  Done(first);
  ASSERT_TRUE(region_->Wait(first));
  uint64_t last = 0;
  for (int i = 0; i < 100; ++i) {
    last = Load();
    ASSERT_TRUE(sent_.back().counter);
    offsets.insert(sent_.back().counter->offset);
    EXPECT_EQ(Loaded(last), 0u);
    if (sent_.back().counter->offset == counter.offset) break;
    Done(last);
    ASSERT_TRUE(region_->Wait(last));
  }
  EXPECT_GT(offsets.size(), 8u) << "what was given back last is taken last";
  // Late counts of the daemon for the earlier load say nothing of the later one.
  ASSERT_EQ(sent_.back().counter->offset, counter.offset);
  for (uint32_t done = 0; done <= kLayers + 1; ++done) {
    daemon_->Count(counter, done);
    EXPECT_EQ(Loaded(last), 0u);
  }
  EXPECT_EQ(Loaded(first), kLayers);
}

TEST_F(RegionLayersTest, ACounterThatSaysNothingMoreLeavesTheWordToTheEnd) {
  const uint64_t transfer = Load();
  Count(2);
  EXPECT_EQ(Loaded(transfer), 2u);
  Count(kLayers + 1);
  EXPECT_EQ(Loaded(transfer), 2u);
  EXPECT_TRUE(region_->WaitLayers(transfer, 2));
  EXPECT_EQ(region_->WaitLayers(transfer, 3, 20).error().code, KVT_TIMEOUT);
  Done(transfer, 1, {{1, MissReason::kChecksumMismatch}});
  const auto waited = region_->WaitLayers(transfer, 3);
  ASSERT_FALSE(waited);
  EXPECT_EQ(waited.error().code, KVT_CANCELLED);
  EXPECT_EQ(waited.error().reason, "load_incomplete");
  uint32_t layers = 0;
  EXPECT_EQ(kvt_region_layers_loaded(region_->get(), transfer, &layers), KVT_CANCELLED);
  EXPECT_EQ(layers, 2u);
  EXPECT_TRUE(region_->WaitLayers(transfer, 2)) << "these had come";
  EXPECT_EQ(region_->Wait(transfer)->failed, 1u);
}

TEST_F(RegionLayersTest, AWaitSeesTheCounterWithoutAnEvent) {
  const uint64_t transfer = Load();
  auto waited =
      std::async(std::launch::async, [&] { return region_->WaitLayers(transfer, 3, 60'000); });
  for (uint32_t layers = 1; layers <= 3; ++layers) Count(layers);
  EXPECT_TRUE(waited.get());
  EXPECT_EQ(region_->WaitLayers(transfer, 4, 5).error().code, KVT_TIMEOUT);
}

TEST_F(RegionLayersTest, ARefusedLoadEndsTheWait) {
  daemon_->Intercept([](const wire::Frame& frame) -> std::optional<FakeDaemon::Bytes> {
    if (frame.type != static_cast<uint16_t>(wire::MessageType::kLoad)) return std::nullopt;
    FakeDaemon::Bytes refusal;
    wire::Encode(wire::ErrorReply{{ErrorCode::kWrongState, "block_busy", {}}}, frame.request_id,
                 &refusal);
    return refusal;
  });
  const uint64_t transfer = Load();
  EXPECT_EQ(region_->WaitLayers(transfer, 1).error().reason, "block_busy");
  EXPECT_EQ(region_->LayersLoaded(transfer).error().reason, "block_busy");
}

TEST_F(RegionLayersTest, WhoLooksAtMemoryAloneNoticesTheEndOfTheDaemon) {
  EXPECT_TRUE(CanBeWithin(std::chrono::seconds(1), [&]() -> std::chrono::nanoseconds {
    Begin();
    const uint64_t transfer = Load();
    Count(1);
    EXPECT_EQ(Loaded(transfer), 1u);
    daemon_->DropClient();
    const auto dropped = SteadyClock::now();
    // As an engine does that waits for a layer.
    auto layers = region_->LayersLoaded(transfer);
    while (layers && *layers < 2) layers = region_->LayersLoaded(transfer);
    EXPECT_EQ(layers ? KVT_OK : layers.error().code, KVT_UNAVAILABLE);
    EXPECT_EQ(region_->WaitLayers(transfer, 2).error().code, KVT_UNAVAILABLE);
    return SteadyClock::now() - dropped;
  }));
}

TEST_F(RegionLayersTest, WithoutAFreeCounterTheEndTells) {
  std::vector<uint64_t> counted;
  while (true) {
    counted.push_back(Load());
    if (!sent_.back().counter) break;
    ASSERT_LT(counted.size(), 1000u);
  }
  EXPECT_EQ(Loaded(counted.back()), 0u);
  EXPECT_EQ(region_->WaitLayers(counted.back(), 1, 5).error().code, KVT_TIMEOUT);
  Done(counted.back());
  EXPECT_TRUE(region_->WaitLayers(counted.back(), kLayers));
  // Its number is all that tells one load from another.
  Done(counted.front());
  EXPECT_TRUE(region_->WaitLayers(counted.front(), kLayers));
  (void)Load();
  EXPECT_TRUE(sent_.back().counter) << "the first load's";
}

TEST_F(RegionLayersTest, OnlyLoadsInLayersAreCounted) {
  const uint64_t transfer = Load(KVT_LOAD_BLOCKS);
  EXPECT_FALSE(sent_.back().counter);
  EXPECT_EQ(region_->LayersLoaded(transfer).error().code, KVT_NOT_FOUND);
  EXPECT_EQ(region_->WaitLayers(transfer, 1).error().code, KVT_NOT_FOUND);
  EXPECT_EQ(region_->LayersLoaded(transfer + 100).error().reason, "unknown_transfer");
  EXPECT_EQ(kvt_region_layers_loaded(region_->get(), transfer, nullptr), KVT_INVALID_ARGUMENT);
}

TEST_F(RegionLayersTest, NoPagesAreMadeBehindTheMemorysEnd) {
  const auto model = connection_->RegisterModel(Record());
  ASSERT_TRUE(model);
  const UniqueFd memory(::memfd_create("short", MFD_CLOEXEC));
  kvt_region_options options;
  kvt_region_options_init(&options);
  options.fd = memory.get();
  options.bytes = uint64_t{64} << 20;
  options.blocks = 1;
  (void)connection_->OpenRegion(model->model, options);
  struct stat status {};
  ASSERT_EQ(::fstat(memory.get(), &status), 0);
  EXPECT_EQ(status.st_blocks, 0);
}

TEST_F(RegionLayersTest, ClosingWhatNothingTouchesWaitsNoLongerThanOtherRequests) {
  Begin({}, ImpatientOptions());
  Done(Load());
  daemon_->HoldBack(wire::MessageType::kCloseRegion);
  region_.reset();
  daemon_->Send(FrameOf(wire::CloseRegionReply{}, daemon_->WaitForHeldBack()));
  EXPECT_TRUE(connection_->Ping());
}

TEST_F(RegionLayersTest, APrefetchWithoutPatienceIsSentHoweverLongItIs) {
  constexpr int kPrefetches = 50;
  const std::vector<kvt_hash> hashes(wire::kMaxHashesPerCall, Hash(1));
  for (int sent = 0; sent < kPrefetches;) {
    const kvt_status status =
        kvt_region_prefetch(region_->get(), hashes.data(), hashes.size(), 0, nullptr);
    ASSERT_THAT(status, ::testing::AnyOf(KVT_OK, KVT_TIMEOUT)) << kvt_last_error()->context;
    // Only a few wait to be sent at a time.
    if (status == KVT_OK || kvt_last_error()->reason != std::string("not_sent")) ++sent;
  }
  daemon_->WaitForRequests(wire::MessageType::kPrefetch, kPrefetches);
  EXPECT_TRUE(connection_->IsConnected());
}

TEST_F(RegionLayersTest, ARequestThatIsSentHalfwayWaitsNoLongerThanItsDeadline) {
  std::promise<void> gate;
  daemon_->Intercept([opened = gate.get_future().share()](
                         const wire::Frame& frame) -> std::optional<FakeDaemon::Bytes> {
    if (frame.type == static_cast<uint16_t>(wire::MessageType::kPrefetch)) opened.wait();
    return std::nullopt;
  });
  const std::vector<kvt_hash> hashes(wire::kMaxHashesPerCall, Hash(1));
  int sent = -1;
  std::string reason = "request_timeout";
  for (; reason == "request_timeout"; ++sent) {
    ASSERT_EQ(kvt_region_prefetch(region_->get(), hashes.data(), hashes.size(), 0, nullptr),
              KVT_TIMEOUT);
    reason = kvt_last_error()->reason;
  }
  EXPECT_EQ(reason, "not_sent") << "so much waits to be sent, and no more";
  gate.set_value();
  EXPECT_TRUE(region_->Lookup(hashes));
  EXPECT_EQ(daemon_->Requests(wire::MessageType::kPrefetch), sent);
}

TEST_F(RegionLayersTest, WhatIsGivenBackToADaemonThatPausesIsSentWhileTheClientIdles) {
  // It pauses with the last message but one, so that the last, which is long, holds up all others.
  constexpr uint32_t kMany = 2 * wire::kTransfersPauseAt;
  Begin({}, ImpatientOptions(), kMany);
  auto acquired = pool_->Acquire({}, {}, 1);
  ASSERT_TRUE(acquired);
  const std::vector<kvt_block> given = acquired->new_blocks.Take();
  std::promise<void> pauses, gate;
  daemon_->Intercept([&, taken_in = size_t{0}, opened = gate.get_future().share()](
                         const wire::Frame& frame) mutable -> std::optional<FakeDaemon::Bytes> {
    if (frame.type == static_cast<uint16_t>(wire::MessageType::kRelease)) {
      return FakeDaemon::Bytes();
    }
    if (frame.type != static_cast<uint16_t>(wire::MessageType::kStore)) return std::nullopt;
    const size_t items = wire::Decode<wire::Store>(frame.payload)->items.size();
    taken_in += items;
    if (taken_in < kMany && taken_in + items >= kMany) {
      pauses.set_value();
      opened.wait();
    }
    return FakeDaemon::Bytes();
  });
  std::vector<kvt_store_block> blocks(kMany);
  for (uint32_t i = 0; i < kMany; ++i) {
    blocks[i].hash = Hash(1);
    blocks[i].tokens = 1;
    blocks[i].block = i;
  }
  auto stored = std::async(std::launch::async, [&] { return region_->Store(blocks).has_value(); });
  pauses.get_future().wait();
  int releases = 0;
  SteadyClock::time_point begun;
  do {  // until one is held up
    begun = SteadyClock::now();
    EXPECT_TRUE(pool_->Release(given));
    ++releases;
  } while (SteadyClock::now() - begun < std::chrono::seconds(1));
  gate.set_value();
  EXPECT_TRUE(stored.get());
  daemon_->WaitForRequests(wire::MessageType::kRelease, releases);
}

TEST_F(RegionLayersTest, ALoadOfWhichTheDaemonHasAPartIsBegun) {
  constexpr uint32_t kMany = 10'000;
  Begin({.max_blocks = 1});
  // It dies at the first of as many messages, before the last is sent.
  daemon_->Intercept([daemon = daemon_.get()](const wire::Frame& frame) {
    if (frame.type == static_cast<uint16_t>(wire::MessageType::kLoad)) daemon->DieAndAdoptLocked();
    return std::optional<FakeDaemon::Bytes>();
  });
  const std::vector<kvt_load_block> blocks(kMany, kvt_load_block{Hash(1), 0});
  const auto transfer = region_->Load(blocks, KVT_LOAD_LAYERS);
  ASSERT_TRUE(transfer) << transfer.error().ToString();
  const auto end = region_->Wait(*transfer);
  ASSERT_TRUE(end);
  EXPECT_EQ(end->code, KVT_UNAVAILABLE);
  EXPECT_EQ(end->failed, kMany);
  EXPECT_EQ(region_->WaitLayers(*transfer, 1).error().code, KVT_UNAVAILABLE);
}

}  // namespace
}  // namespace kvtier::client
