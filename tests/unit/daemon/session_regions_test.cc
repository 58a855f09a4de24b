// SPDX-License-Identifier: Apache-2.0
// Regions over the socket: memory that a client lends, transfers to and from it, and what a client
// may do wrong.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <future>
#include <string>
#include <utility>
#include <vector>

#include "daemon/session/region_handler.h"
#include "tests/unit/daemon/server_under_test.h"
#include "tests/unit/daemon/verbs.h"
#include "tests/unit/daemon/wire_client.h"

namespace kvtier {
namespace {

using ::testing::ElementsAre;

constexpr uint64_t kBlockBytes = 4096;
constexpr uint32_t kBlocks = 8;
// Layers of the model whose loads are counted; its blocks are as large as those of the other.
constexpr uint32_t kLayers = 4;

// Memory that an engine lends.
class Memory {
 public:
  Memory() : fd_(::memfd_create("region", MFD_CLOEXEC)) { Resize(kBlocks * kBlockBytes); }

  [[nodiscard]] int fd() const { return fd_.get(); }
  void Resize(uint64_t bytes) {
    EXPECT_EQ(::ftruncate(fd_.get(), static_cast<off_t>(bytes)), 0);
    // A load makes no pages.
    EXPECT_EQ(bytes == 0 ? 0 : ::fallocate(fd_.get(), 0, 0, static_cast<off_t>(bytes)), 0);
  }
  void Fill(uint32_t block, char content) {
    const std::string bytes(kBlockBytes, content);
    EXPECT_EQ(::pwrite(fd_.get(), bytes.data(), bytes.size(), OffsetOf(block)), kBytes);
  }
  [[nodiscard]] bool Holds(uint32_t block, char content) const {
    std::string bytes(kBlockBytes, '\0');
    EXPECT_EQ(::pread(fd_.get(), bytes.data(), bytes.size(), OffsetOf(block)), kBytes);
    return bytes == std::string(kBlockBytes, content);
  }

 private:
  static constexpr ssize_t kBytes = kBlockBytes;
  static off_t OffsetOf(uint32_t block) { return static_cast<off_t>(block * kBlockBytes); }

  const UniqueFd fd_;
};

class SessionRegions : public testing::Test {
 protected:
  SessionRegions() {
    client_.Send(wire::Hello{.client_name = "test"});
    counters_ = std::move(client_.Receive()->descriptor);
    model_ = client_.Call<wire::RegisterModelReply>(wire::RegisterModel{TestModel()}).model;
  }

  [[nodiscard]] wire::OpenRegion OpenMessage() const {
    return {.model = model_,
            .bytes = kBlocks * kBlockBytes,
            .blocks = kBlocks,
            .pieces = {{0, kBlockBytes, kBlockBytes}}};
  }
  PoolId Open() {
    client_.SendWithDescriptor(OpenMessage(), memory_.fd());
    return client_.Expect<wire::OpenRegionReply>().region;
  }
  PoolId OpenInLayers() {
    ModelRecord record = TestModel();
    record.groups[0].layers = kLayers;
    record.groups[0].k_head_dim /= kLayers;
    record.groups[0].v_head_dim /= kLayers;
    model_ = client_.Call<wire::RegisterModelReply>(wire::RegisterModel{record}).model;
    return Open();
  }
  std::string ErrorOfOpening(const wire::OpenRegion& open, int descriptor) {
    return client_.ExpectError(client_.SendWithDescriptor(open, descriptor));
  }
  static wire::Store StoreMessage(PoolId region, uint64_t transfer, uint32_t blocks) {
    wire::Store store{.region = region, .transfer = transfer};
    const std::vector<BlockHash> hashes = Hashes(0, blocks);
    for (uint32_t i = 0; i < blocks; ++i) {
      store.items.push_back({.block = i, .hash = hashes[i], .tokens = 16, .depth = i});
    }
    return store;
  }
  static wire::Load LoadMessage(PoolId region, uint64_t transfer, uint32_t first_block,
                                uint32_t blocks) {
    wire::Load load{.region = region, .transfer = transfer};
    const std::vector<BlockHash> hashes = Hashes(0, blocks);
    for (uint32_t i = 0; i < blocks; ++i) load.items.push_back({first_block + i, hashes[i]});
    return load;
  }
  // As the client's GPU does.
  // The next message must be the end of a transfer.
  wire::TransferDone ExpectDone() {
    const auto received = client_.Receive();
    if (!received || !received->Is(wire::MessageType::kTransferDone)) {
      ADD_FAILURE() << "no transfer ends";
      return {};
    }
    EXPECT_EQ(received->request_id, 0u);
    return wire::Decode<wire::TransferDone>(received->payload).value();
  }

  ServerUnderTest daemon_;
  Memory memory_;
  WireClient client_{daemon_.socket()};
  UniqueFd counters_;
  wire::ModelId model_;
};

TEST_F(SessionRegions, BlocksAreStoredFromAndLoadedToTheClientsMemory) {
  const PoolId region = Open();
  memory_.Fill(0, 'a');
  memory_.Fill(1, 'b');
  client_.Send(StoreMessage(region, 7, 2));
  const wire::TransferDone stored = ExpectDone();
  EXPECT_EQ(stored.region, region);
  EXPECT_EQ(stored.transfer, 7u);
  EXPECT_EQ(stored.copied, 2u);
  client_.Send(LoadMessage(region, 8, 5, 3));
  const wire::TransferDone loaded = ExpectDone();
  EXPECT_EQ(loaded.copied, 2u);
  EXPECT_THAT(loaded.failed, ElementsAre(wire::TransferDone::Failed{2, MissReason::kUnknown}));
  EXPECT_TRUE(memory_.Holds(5, 'a'));
  EXPECT_TRUE(memory_.Holds(6, 'b'));
}

TEST_F(SessionRegions, TheDeviceOfHostMemoryIsNotLookedAt) {
  wire::OpenRegion open = OpenMessage();
  open.device = UINT32_MAX;
  client_.SendWithDescriptor(open, memory_.fd());
  const PoolId region = client_.Expect<wire::OpenRegionReply>().region;
  client_.Send(StoreMessage(region, 7, 2));
  EXPECT_EQ(ExpectDone().copied, 2u);
  client_.Send(LoadMessage(region, 8, 2, 2));
  EXPECT_EQ(ExpectDone().copied, 2u);
}

TEST_F(SessionRegions, TheLayersOfALoadAreCountedWhereTheClientSays) {
  const PoolId region = OpenInLayers();
  memory_.Fill(0, 'a');
  client_.Send(StoreMessage(region, 1, 2));
  (void)ExpectDone();
  constexpr uint32_t kOffset = kCounterPageBytes / 2 + kCounterSlotBytes;
  constexpr uint32_t kBase = 0xffffffff;
  wire::Load load = LoadMessage(region, 2, 4, 2);
  load.order = wire::LoadOrder::kLayers;
  load.counter = {.offset = kOffset, .base = kBase, .steps = kLayers};
  client_.Send(load);
  EXPECT_EQ(ExpectDone().copied, 2u);
  uint32_t word = 0;
  ASSERT_EQ(::pread(counters_.get(), &word, sizeof(word), kOffset),
            static_cast<ssize_t>(sizeof(word)));
  EXPECT_EQ(word - kBase, kLayers);
  EXPECT_TRUE(memory_.Holds(4, 'a'));
  // With a block that is not there nothing more is counted.
  load = LoadMessage(region, 3, 5, 3);
  load.order = wire::LoadOrder::kLayers;
  load.counter = {.offset = kOffset, .base = 40, .steps = kLayers};
  client_.Send(load);
  EXPECT_EQ(ExpectDone().failed.size(), 1u);
  ASSERT_EQ(::pread(counters_.get(), &word, sizeof(word), kOffset),
            static_cast<ssize_t>(sizeof(word)));
  EXPECT_GT(word - 40, kLayers);
}

TEST_F(SessionRegions, ACounterOutsideTheClientsHalfIsRefused) {
  wire::Load load = LoadMessage(OpenInLayers(), 2, 4, 2);
  load.order = wire::LoadOrder::kLayers;
  for (const wire::LoadCounter& counter :
       {wire::LoadCounter{0, 0, kLayers},
        wire::LoadCounter{kCounterPageBytes / 2 - kCounterSlotBytes, 0, kLayers},
        wire::LoadCounter{kCounterPageBytes / 2 + 4, 0, kLayers},
        wire::LoadCounter{kCounterPageBytes, 0, kLayers}, wire::LoadCounter{0xfffffffc, 0, kLayers},
        wire::LoadCounter{kCounterPageBytes / 2, 0, kLayers + 1}}) {
    load.counter = counter;
    EXPECT_EQ(client_.ErrorOf(load), "bad_counter");
  }
  // Nothing was begun.
  load.counter.reset();
  client_.Send(load);
  EXPECT_EQ(ExpectDone().failed.size(), 2u);
}

TEST_F(SessionRegions, AnotherSessionFindsWhatARegionStored) {
  client_.Send(StoreMessage(Open(), 1, 2));
  (void)ExpectDone();
  WireClient other(daemon_.socket());
  EXPECT_EQ(Acquire(&other, other.Attach().pool, Hashes(0, 2), 0).hits.size(), 2u);
}

TEST_F(SessionRegions, ARegionIsLookedUpAndPinnedAsAPool) {
  const PoolId region = Open();
  client_.Send(StoreMessage(region, 1, 1));
  (void)ExpectDone();
  const std::vector<BlockHash> hashes = Hashes(0, 2);
  const auto found =
      client_.Call<wire::LookupReply>(wire::Lookup{.pool = region, .hashes = hashes});
  EXPECT_THAT(found.presence, ElementsAre(wire::kPresentInHost, 0));
  EXPECT_EQ(client_.Call<wire::PinReply>(wire::Pin{region, 1000, hashes}).count, 1u);
}

// The one of the two oldest blocks that was found stays when host memory is full.
TEST_F(SessionRegions, WhatALookupFoundIsStillThereToBeLoaded) {
  constexpr uint32_t kHostBlocks = 256;
  const PoolId region = Open();
  const auto store = [&](uint32_t number) {
    wire::Store one = StoreMessage(region, number + 1, 1);
    one.items[0].hash = Hashes(number, 1)[0];
    client_.Send(one);
    (void)ExpectDone();
  };
  const auto in_host = [&](uint32_t number) {
    const std::vector<BlockHash> hashes = Hashes(number, 1);
    return client_.Call<wire::LookupReply>(wire::Lookup{region, hashes}).presence.at(0) ==
           wire::kPresentInHost;
  };
  store(0);
  store(1);
  EXPECT_TRUE(in_host(0));
  for (uint32_t number = 2; number <= kHostBlocks; ++number) store(number);
  EXPECT_TRUE(in_host(0));
  EXPECT_FALSE(in_host(1));
}

TEST_F(SessionRegions, CallsThatAllocateBlocksRefuseARegion) {
  const PoolId region = Open();
  const std::vector<BlockHash> hashes = Hashes(0, 1);
  EXPECT_EQ(client_.ErrorOf(wire::Acquire{.parts = {{.pool = region, .new_blocks = 1}}}),
            "pool_is_region");
  EXPECT_EQ(client_.ErrorOf(wire::Detach{region}), "pool_is_region");
  EXPECT_EQ(client_.ErrorOf(wire::Release{region, {BlockHandle{BlockIndex(0), 1}}}),
            "pool_is_region");
  EXPECT_EQ(client_.ErrorOf(wire::Commit{region, {{.hash = hashes[0], .tokens = 16}}}),
            "pool_is_region");
}

TEST_F(SessionRegions, TransfersOfOthersRegionsAndOfPoolsAreRefused) {
  const PoolId region = Open();
  WireClient other(daemon_.socket());
  const PoolId pool = other.Attach().pool;
  EXPECT_EQ(other.ErrorOf(StoreMessage(region, 1, 1)), "pool_not_attached");
  EXPECT_EQ(other.ErrorOf(LoadMessage(pool, 1, 0, 1)), "not_a_region");
  EXPECT_EQ(other.ErrorOf(wire::CloseRegion{region}), "pool_not_attached");
}

TEST_F(SessionRegions, ALayoutThatIsNotTheGroupsIsRefused) {
  wire::OpenRegion open = OpenMessage();
  open.pieces = {{0, kBlockBytes, kBlockBytes - 1}};
  EXPECT_EQ(ErrorOfOpening(open, memory_.fd()), "region_block_bytes");
  open = OpenMessage();
  open.group = 1;
  EXPECT_EQ(ErrorOfOpening(open, memory_.fd()), "unknown_group");
}

TEST_F(SessionRegions, MemoryThatIsNotWhatItIsSaidToBeIsRefused) {
  EXPECT_EQ(client_.ErrorOf(OpenMessage()), "no_descriptor");
  memory_.Resize(kBlocks * kBlockBytes - 1);
  EXPECT_EQ(ErrorOfOpening(OpenMessage(), memory_.fd()), "bad_region_memory");
  memory_.Resize(kBlocks * kBlockBytes);
  const UniqueFd read_only(
      ::open(("/proc/self/fd/" + std::to_string(memory_.fd())).c_str(), O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(ErrorOfOpening(OpenMessage(), read_only.get()), "bad_region_memory");
  const UniqueFd device(::open("/dev/zero", O_RDWR | O_CLOEXEC));
  EXPECT_EQ(ErrorOfOpening(OpenMessage(), device.get()), "bad_region_memory");
  wire::OpenRegion gpu = OpenMessage();
  gpu.memory = wire::RegionMemory::kVmm;
  EXPECT_EQ(ErrorOfOpening(gpu, memory_.fd()), "region_memory_kind");
}

// To open a device and to map its memory takes long.
TEST_F(SessionRegions, ARegionThatIsRefusedDoesNotWaitForItsDevice) {
  daemon_.OnLoop([this] { daemon_.device().HoldOpening(); });
  wire::OpenRegion open = OpenMessage();
  open.memory = wire::RegionMemory::kVmm;
  open.group = 1;
  EXPECT_EQ(ErrorOfOpening(open, memory_.fd()), "unknown_group");
  open = OpenMessage();
  open.memory = wire::RegionMemory::kVmm;
  open.model = wire::ModelId(99);
  EXPECT_EQ(ErrorOfOpening(open, memory_.fd()), "unknown_model");
  daemon_.OnLoop([this] {
    EXPECT_EQ(daemon_.device().openings_awaited(), 0u);
    daemon_.device().EndOpening({});
  });
}

TEST_F(SessionRegions, MemoryThatIsCutCostsTheCopyAlone) {
  const PoolId region = Open();
  memory_.Resize(0);
  client_.Send(StoreMessage(region, 1, 2));
  EXPECT_EQ(ExpectDone().failed.size(), 2u);
  memory_.Resize(kBlocks * kBlockBytes);
  client_.Send(StoreMessage(region, 2, 2));
  EXPECT_EQ(ExpectDone().copied, 2u);
}

TEST_F(SessionRegions, ATransferThatIsRefusedHasNotBegun) {
  const PoolId region = Open();
  wire::Store store = StoreMessage(region, 1, 2);
  store.items[1].block = kBlocks;
  EXPECT_EQ(client_.ErrorOf(store), "block_out_of_range");
  store.items[1].block = 0;
  EXPECT_EQ(client_.ErrorOf(store), "block_busy");
  store.items[1] = {.block = 1, .hash = TestHash(1), .tokens = 17};
  EXPECT_EQ(client_.ErrorOf(store), "bad_token_count");
  client_.Send(StoreMessage(region, 1, 2));
  EXPECT_EQ(ExpectDone().copied, 2u);
}

TEST_F(SessionRegions, ClosingReportsTransfersFirst) {
  const PoolId region = Open();
  client_.Send(StoreMessage(region, 1, kBlocks));
  client_.Send(wire::CloseRegion{region});
  EXPECT_EQ(ExpectDone().transfer, 1u);
  (void)client_.Expect<wire::CloseRegionReply>();
  EXPECT_EQ(client_.ErrorOf(wire::CloseRegion{region}), "pool_not_attached");
}

TEST_F(SessionRegions, BlocksOfAllRegionsOfASessionAreLimited) {
  memory_.Resize(uint64_t{wire::kMaxRegionBlocks} * kBlockBytes);
  wire::OpenRegion open = OpenMessage();
  open.blocks = wire::kMaxRegionBlocks;
  open.bytes = uint64_t{wire::kMaxRegionBlocks} * kBlockBytes;
  client_.SendWithDescriptor(open, memory_.fd());
  const PoolId region = client_.Expect<wire::OpenRegionReply>().region;
  EXPECT_EQ(ErrorOfOpening(OpenMessage(), memory_.fd()), "too_many_blocks");
  (void)client_.Call<wire::CloseRegionReply>(wire::CloseRegion{region});
  (void)Open();
}

TEST(RegionsOfTenants, OneThatOpensAllItMayLeavesRegionsToOthers) {
  ServerUnderTest daemon(
      [](Config* config) {
        config->tenants = {{.name = "red", .uids = {1001}}, {.name = "blue", .uids = {1002}}};
      },
      nullptr, ServerUnderTest::Kernel::kRefusesDescriptors, {.regions = 8});
  const Memory memory;
  const auto open = [&](WireClient* client, wire::ModelId model) {
    return client->SendWithDescriptor(wire::OpenRegion{.model = model,
                                                       .bytes = kBlocks * kBlockBytes,
                                                       .blocks = kBlocks,
                                                       .pieces = {{0, kBlockBytes, kBlockBytes}}},
                                      memory.fd());
  };
  const auto model_of = [](WireClient* client) {
    (void)client->Hello();
    return client->Call<wire::RegisterModelReply>(wire::RegisterModel{TestModel()}).model;
  };
  daemon.peers.uid = 1001;
  WireClient red(daemon.socket());
  const wire::ModelId red_model = model_of(&red);
  std::vector<PoolId> regions;
  for (int i = 0; i < 4; ++i) {
    open(&red, red_model);
    regions.push_back(red.Expect<wire::OpenRegionReply>().region);
  }
  EXPECT_EQ(red.ExpectError(open(&red, red_model)), "too_many_regions");
  daemon.peers.uid = 1002;
  {
    WireClient blue(daemon.socket());
    open(&blue, model_of(&blue));
    (void)blue.Expect<wire::OpenRegionReply>();
  }
  // A session's end gives its regions back, and so does closing one.
  daemon.WaitUntil([&] { return daemon.network().regions.taken("blue") == 0; });
  (void)red.Call<wire::CloseRegionReply>(wire::CloseRegion{regions[0]});
  daemon.WaitUntil([&] { return daemon.network().regions.taken("red") == 3; });
  open(&red, red_model);
  (void)red.Expect<wire::OpenRegionReply>();
}

TEST_F(SessionRegions, AClientThatIsCutOffSeesItWhenTheLastCopyHasLanded) {
  const PoolId region = Open();
  daemon_.OnLoop([this] { daemon_.lent_host_memory().HoldCopies(); });
  client_.Send(StoreMessage(region, 1, 2));
  daemon_.WaitUntil([this] { return daemon_.lent_host_memory().held_copies() > 0; });
  // Too long for any frame: the daemon ends the connection.
  client_.SendBytes(std::vector<std::byte>(64, std::byte{0xff}));
  const auto farewell = client_.Receive();
  ASSERT_TRUE(farewell && farewell->Is(wire::MessageType::kError));
  pollfd end{client_.socket(), POLLIN, 0};
  EXPECT_EQ(::poll(&end, 1, 100), 0) << "the client sees its session end";
  daemon_.OnLoop([this] { daemon_.lent_host_memory().LetCopiesGo(); });
  EXPECT_TRUE(client_.AtEnd());
}

// A client that hangs up has told its engine that all transfers are over.
class SessionRegionsHungUp : public SessionRegions {
 protected:
  SessionRegionsHungUp() {
    region_ = OpenInLayers();
    client_.Send(StoreMessage(region_, 1, 4));
    EXPECT_EQ(ExpectDone().copied, 4u);
  }

  // Each has two blocks.
  void SendTransfers() {
    wire::Store store = StoreMessage(region_, 2, 6);
    store.items.erase(store.items.begin(), store.items.begin() + 4);
    for (wire::StoreItem& item : store.items) item.block -= 4;
    client_.Send(store);
    client_.Send(LoadMessage(region_, 3, 4, 2));
    wire::Load in_layers = LoadMessage(region_, 4, 4, 4);
    in_layers.items.erase(in_layers.items.begin(), in_layers.items.begin() + 2);
    in_layers.order = wire::LoadOrder::kLayers;
    client_.Send(in_layers);
  }
  // Its engine uses the memory anew.
  void HangUp() {
    EXPECT_EQ(::shutdown(client_.socket(), SHUT_RDWR), 0);
    for (uint32_t block = 0; block < kBlocks; ++block) memory_.Fill(block, 'z');
  }
  void ExpectNothingDone() {
    daemon_.WaitUntil([this] {
      return daemon_.cache().Gauges().regions == 0 && daemon_.server().Sessions().empty();
    });
    for (uint32_t block = 0; block < kBlocks; ++block) EXPECT_TRUE(memory_.Holds(block, 'z'));
    client_ = WireClient(daemon_.socket());
    (void)client_.Hello();
    const PoolId region = OpenInLayers();
    const std::vector<BlockHash> hashes = Hashes(3, 3);
    EXPECT_THAT(client_.Call<wire::LookupReply>(wire::Lookup{region, hashes}).presence,
                ElementsAre(wire::kPresentInHost, 0, 0));
  }

  PoolId region_;
};

TEST_F(SessionRegionsHungUp, TransfersThatAreReadAfterwardsAreNotBegun) {
  std::promise<void> gate;
  daemon_.Post([opened = gate.get_future().share()] { opened.wait(); });
  SendTransfers();
  HangUp();
  gate.set_value();
  ExpectNothingDone();
  EXPECT_EQ(daemon_.Refusals("client_hung_up"), 3u);
}

TEST_F(SessionRegionsHungUp, CopiesThatLandAfterwardsCountForNothing) {
  daemon_.OnLoop([this] { daemon_.lent_host_memory().HoldCopies(); });
  SendTransfers();
  daemon_.WaitUntil([this] { return daemon_.lent_host_memory().held_copies() >= 3; });
  HangUp();
  daemon_.OnLoop([this] { daemon_.lent_host_memory().LetCopiesGo(); });
  ExpectNothingDone();
}

TEST_F(SessionRegions, AClientThatDiesGivesItsRegionsBack) {
  (void)Open();
  client_.Send(StoreMessage(PoolId(0), 1, kBlocks));
  client_.Close();
  daemon_.WaitUntil([this] { return daemon_.cache().Gauges().regions == 0; });
}

}  // namespace
}  // namespace kvtier
