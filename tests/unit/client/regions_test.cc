// SPDX-License-Identifier: Apache-2.0
// Regions over the public interface, on a daemon that copies nothing: the test says how transfers
// end.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "tests/unit/client/client_fixture.h"

namespace kvtier::client {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Bytes = FakeDaemon::Bytes;

constexpr uint64_t kBlockBytes = 2 * kBlockTokens * 4 * sizeof(float);
constexpr uint32_t kBlocks = 8;
constexpr PoolId kRegion{5};

MATCHER_P2(IsFailure, position, reason, "") {
  return arg.position == static_cast<uint32_t>(position) && arg.reason == reason;
}

class RegionTest : public ClientFixture {
 protected:
  void SetUp() override {
    ClientFixture::SetUp();
    Connect();
  }
  void TearDown() override {
    region_.reset();
    ClientFixture::TearDown();
  }

  void Connect(const kvt_connect_options& options = Options()) {
    Attach(options);
    const auto model = connection_->RegisterModel(Record());
    ASSERT_TRUE(model);
    model_ = model->model;
  }
  void Open(uint32_t blocks = kBlocks) {
    auto region = connection_->OpenRegion(model_, SharedMemory(blocks));
    ASSERT_TRUE(region) << region.error().ToString();
    region_.emplace(*std::move(region));
  }
  // A region of as many blocks, all zeros. The descriptor lives as long as the test.
  [[nodiscard]] kvt_region_options SharedMemory(uint32_t blocks = kBlocks) {
    memory_ = UniqueFd(::memfd_create("region", MFD_CLOEXEC));
    EXPECT_EQ(::ftruncate(memory_.get(), static_cast<off_t>(blocks * kBlockBytes)), 0);
    kvt_region_options options;
    kvt_region_options_init(&options);
    options.fd = memory_.get();
    options.bytes = blocks * kBlockBytes;
    options.blocks = blocks;
    return options;
  }

  // The messages that the daemon is sent from now on; none of these is answered, unless with
  // `answer`.
  template <typename Message>
  std::shared_ptr<std::vector<Message>> Record(const std::optional<Error>& answer = std::nullopt) {
    auto messages = std::make_shared<std::vector<Message>>();
    daemon_->Intercept([messages, answer](const wire::Frame& frame) -> std::optional<Bytes> {
      if (frame.type != static_cast<uint16_t>(Message::kType)) return std::nullopt;
      messages->push_back(*wire::Decode<Message>(frame.payload));
      return answer ? FrameOf(wire::ErrorReply{*answer}, frame.request_id) : Bytes();
    });
    return messages;
  }
  using ClientFixture::Record;
  [[nodiscard]] static Error Refusal() { return {ErrorCode::kUnsupported, "not_here", ""}; }

  [[nodiscard]] static kvt_store_block Stored(uint32_t block, uint8_t hash) {
    kvt_store_block stored{};
    stored.hash = Hash(hash);
    stored.block = block;
    stored.tokens = kBlockTokens;
    stored.retention = KVT_RETENTION_EXTENDED;
    return stored;
  }
  [[nodiscard]] uint64_t Store(const std::vector<kvt_store_block>& blocks) {
    const auto transfer = region_->Store(blocks);
    EXPECT_TRUE(transfer) << transfer.error().ToString();
    return transfer ? *transfer : 0;
  }
  [[nodiscard]] uint64_t Load(uint32_t blocks) {
    std::vector<kvt_load_block> loaded;
    for (uint32_t i = 0; i < blocks; ++i) loaded.push_back({Hash(static_cast<uint8_t>(i)), i});
    const auto transfer = region_->Load(loaded);
    EXPECT_TRUE(transfer) << transfer.error().ToString();
    return transfer ? *transfer : 0;
  }
  // All that the daemon has sent so far, taken in.
  [[nodiscard]] std::vector<kvt_transfer_end> Ended() {
    EXPECT_TRUE(connection_->Ping());
    return region_->Poll();
  }
  [[nodiscard]] static std::vector<uint64_t> NumbersOf(const std::vector<kvt_transfer_end>& ends) {
    std::vector<uint64_t> numbers;
    for (const kvt_transfer_end& end : ends) numbers.push_back(end.transfer);
    return numbers;
  }

  UniqueFd memory_;
  uint32_t model_ = 0;
  std::optional<kvt::Region> region_;
};

// --- opening and closing ---

TEST_F(RegionTest, TheMemorysDescriptorIsSentAndStaysTheCallers) {
  const kvt_region_options options = SharedMemory();
  const std::vector<std::byte> content(options.bytes, std::byte{0x5a});
  ASSERT_EQ(::pwrite(memory_.get(), content.data(), content.size(), 0),
            static_cast<ssize_t>(content.size()));
  auto region = connection_->OpenRegion(model_, options);
  ASSERT_TRUE(region) << region.error().ToString();
  EXPECT_EQ(daemon_->RegionMemory(), content);
  EXPECT_NE(::fcntl(memory_.get(), F_GETFD), -1);
  EXPECT_EQ(region->block_bytes(), kBlockBytes);
  EXPECT_TRUE(region->IsConnected());
}

TEST_F(RegionTest, ADescriptorGoesWithItsOwnRequestBehindWhatWasPutOff) {
  Connect(ImpatientOptions());
  Fill(Hashes(1, 1));
  ASSERT_TRUE(connection_->Ping()) << "the block is in the cache now";
  // The release of an acquire that is granted too late goes by itself or ahead of the next request.
  wire::AcquireReply granted;
  daemon_->WithCache([&](FakeCache* cache) {
    const std::vector<BlockHash> hashes = {WireHash(1)};
    granted.parts = {*cache->Acquire({.hashes = hashes})};
  });
  daemon_->HoldBack(wire::MessageType::kAcquire);
  EXPECT_EQ(pool_->Acquire(Hashes(1, 1)).error().code, KVT_TIMEOUT);
  const int releases = daemon_->Requests(wire::MessageType::kRelease);
  daemon_->Send(FrameOf(granted, daemon_->WaitForHeldBack()));
  Open();
  daemon_->WaitForRequests(wire::MessageType::kRelease, releases + 1);
  EXPECT_EQ(daemon_->RegionMemory().size(), kBlocks * kBlockBytes);
}

TEST_F(RegionTest, WithoutPiecesBlocksAreWholeAndFollowEachOther) {
  const auto asked = Record<wire::OpenRegion>(Refusal());
  EXPECT_EQ(connection_->OpenRegion(model_, SharedMemory()).error().reason, Refusal().reason);
  ASSERT_EQ(asked->size(), 1u);
  const wire::OpenRegion& request = asked->front();
  EXPECT_THAT(request.pieces, ElementsAre(wire::RegionPiece{0, kBlockBytes, kBlockBytes}));
  EXPECT_EQ(request.blocks, kBlocks);
  EXPECT_EQ(request.bytes, kBlocks * kBlockBytes);
  EXPECT_EQ(request.memory, wire::RegionMemory::kSharedMemory);
}

TEST_F(RegionTest, PiecesAndAHandleAreToldAsGiven) {
  const auto asked = Record<wire::OpenRegion>(Refusal());
  const kvt_region_piece pieces[] = {{0, 64, 64}, {512, 128, 64}};
  kvt_region_options region;
  kvt_region_options_init(&region);
  region.memory = KVT_REGION_CUDA_IPC;
  region.device = 2;
  region.bytes = 4096;
  region.blocks = 8;
  region.pieces = pieces;
  region.piece_count = 2;
  std::fill(std::begin(region.ipc_handle), std::end(region.ipc_handle), uint8_t{7});
  EXPECT_EQ(connection_->OpenRegion(model_, region).error().reason, Refusal().reason);
  ASSERT_EQ(asked->size(), 1u);
  EXPECT_EQ(asked->front().device, 2u);
  EXPECT_EQ(asked->front().ipc_handle[63], 7);
  EXPECT_THAT(asked->front().pieces,
              ElementsAre(wire::RegionPiece{0, 64, 64}, wire::RegionPiece{512, 128, 64}));
  EXPECT_THAT(daemon_->RegionMemory(), IsEmpty());
}

TEST_F(RegionTest, TheDaemonsRefusalIsTheCallsError) {
  const kvt_region_piece outside = {kBlockBytes, kBlockBytes, kBlockBytes};
  kvt_region_options options = SharedMemory();
  options.pieces = &outside;
  options.piece_count = 1;
  EXPECT_EQ(connection_->OpenRegion(model_, options).error().reason, "bad_region_layout");
  EXPECT_TRUE(connection_->IsConnected());
}

TEST_F(RegionTest, ARegionThatIsOpenedTooLateIsClosedWhileTheClientIdles) {
  Connect(ImpatientOptions());
  daemon_->HoldBack(wire::MessageType::kOpenRegion);
  EXPECT_EQ(connection_->OpenRegion(model_, SharedMemory()).error().code, KVT_TIMEOUT);
  daemon_->Send(FrameOf(wire::OpenRegionReply{kRegion, kBlockBytes}, daemon_->WaitForHeldBack()));
  daemon_->WaitForRequests(wire::MessageType::kCloseRegion, 1);
  EXPECT_TRUE(connection_->IsConnected());
}

TEST_F(RegionTest, ADaemonThatWasGivenUpMayStillCopyUntilItGoesOn) {
  Connect(ImpatientOptions());
  Open();
  std::promise<void> gate;
  daemon_->Intercept(
      [opened = gate.get_future().share()](const wire::Frame& frame) -> std::optional<Bytes> {
        if (frame.type == static_cast<uint16_t>(wire::MessageType::kPrefetch)) opened.wait();
        return std::nullopt;
      });
  const std::vector<kvt_hash> hashes(wire::kMaxHashesPerCall, Hash(1));
  while (region_->IsConnected())
    (void)kvt_region_prefetch(region_->get(), hashes.data(), hashes.size(), 0, nullptr);
  EXPECT_FALSE(kvt_region_daemon_ended(region_->get()));
  gate.set_value();
  while (kvt_region_daemon_ended(region_->get()) == 0) {
  }
}

// A pause is longer than the send time-out here, and more is to be sent than a socket takes.
TEST_F(RegionTest, ADaemonThatPausesForTransfersUnderWayIsNotGivenUp) {
  constexpr uint32_t kMany = 600'000;
  Connect(ImpatientOptions());
  Open(kMany);
  std::promise<void> gate;
  const auto taken_in = std::make_shared<uint64_t>(0);
  daemon_->Intercept([taken_in, opened = gate.get_future().share()](
                         const wire::Frame& frame) -> std::optional<Bytes> {
    if (frame.type == static_cast<uint16_t>(wire::MessageType::kOpenRegion)) {
      return FrameOf(wire::OpenRegionReply{PoolId{6}, kBlockBytes}, frame.request_id);
    }
    if (frame.type != static_cast<uint16_t>(wire::MessageType::kStore)) return std::nullopt;
    *taken_in += wire::Decode<wire::Store>(frame.payload)->items.size();
    if (*taken_in >= wire::kTransfersPauseAt) opened.wait();
    return Bytes();
  });
  auto opened = connection_->OpenRegion(model_, SharedMemory());
  ASSERT_TRUE(opened) << opened.error().ToString();
  auto idle = std::make_unique<kvt::Region>(*std::move(opened));
  std::vector<kvt_store_block> blocks;
  for (uint32_t i = 0; i < kMany; ++i) blocks.push_back(Stored(i, 1));
  auto stored = std::async(std::launch::async, [&] { return region_->Store(blocks).has_value(); });
  // From the pause on, each waits for as long as the daemon may take in nothing.
  while (connection_->Ping()) {
  }
  EXPECT_EQ(connection_->Ping().error().code, KVT_TIMEOUT);
  const kvt_hash hash = Hash(1);
  EXPECT_NE(kvt_region_prefetch(idle->get(), &hash, 1, 0, nullptr), KVT_UNAVAILABLE);
  idle.reset();
  pool_.reset();
  gate.set_value();
  EXPECT_TRUE(stored.get());
  EXPECT_TRUE(connection_->IsConnected());
  daemon_->WaitForRequests(wire::MessageType::kPrefetch, 1);
  daemon_->WaitForRequests(wire::MessageType::kCloseRegion, 1);
  daemon_->WaitForRequests(wire::MessageType::kDetach, 1);
}

TEST_F(RegionTest, ClosingWaitsUntilTheDaemonSaysThatNothingTouchesTheMemory) {
  Open();
  (void)Load(1);
  daemon_->HoldBack(wire::MessageType::kCloseRegion);
  std::future<void> closed = std::async(std::launch::async, [&] { region_.reset(); });
  const uint64_t request_id = daemon_->WaitForHeldBack();
  EXPECT_EQ(closed.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  daemon_->Send(FrameOf(wire::CloseRegionReply{}, request_id));
}

TEST_F(RegionTest, ClosingEndsWithTheConnection) {
  Open();
  (void)Load(1);
  daemon_->HoldBack(wire::MessageType::kCloseRegion);
  std::future<void> closed = std::async(std::launch::async, [&] { region_.reset(); });
  (void)daemon_->WaitForHeldBack();
  daemon_->DropClient();
}

TEST_F(RegionTest, BadOptionsAreRefusedWithTheirReason) {
  const auto reason_for = [&](auto change) {
    kvt_region_options options = SharedMemory();
    change(&options);
    return connection_->OpenRegion(model_, options).error().reason;
  };
  EXPECT_EQ(reason_for([](auto* o) { o->size = 8; }), "bad_struct_size");
  EXPECT_EQ(reason_for([](auto* o) { o->fd = -1; }), "no_descriptor");
  EXPECT_EQ(reason_for([](auto* o) { o->fd = 1 << 20; }), "no_descriptor");
  EXPECT_EQ(reason_for([](auto* o) { o->memory = 3; }), "bad_memory");
  EXPECT_EQ(reason_for([](auto* o) { o->group = 1; }), "unknown_group");
  EXPECT_EQ(reason_for([](auto* o) { o->piece_count = 1; }), "null_argument");
  EXPECT_EQ(reason_for([](auto* o) { o->blocks = KVT_MAX_REGION_BLOCKS + 1; }), "too_many_blocks");
  const std::vector<kvt_region_piece> pieces(KVT_MAX_REGION_PIECES + 1);
  EXPECT_EQ(reason_for([&](auto* o) {
              o->pieces = pieces.data();
              o->piece_count = pieces.size();
            }),
            "too_many_pieces");
  EXPECT_EQ(connection_->OpenRegion(99, SharedMemory()).error().reason, "unknown_model");
  EXPECT_EQ(kvt_region_open(connection_->get(), model_, nullptr, nullptr), KVT_INVALID_ARGUMENT);
  EXPECT_EQ(daemon_->Requests(wire::MessageType::kOpenRegion), 0);
  EXPECT_TRUE(connection_->IsConnected());
}

// --- transfers ---

TEST_F(RegionTest, AStoreTellsOfEachBlockAllThatACommitDoes) {
  Open();
  const auto sent = Record<wire::Store>();
  kvt_store_block second = Stored(0, 2);
  second.has_parent = 1;
  second.parent = Hash(1);
  second.depth = 1;
  second.tokens = 3;
  second.retention = KVT_RETENTION_MEMORY;
  const uint64_t transfer = Store({Stored(7, 1), second});
  ASSERT_TRUE(connection_->Ping());
  ASSERT_EQ(sent->size(), 1u);
  EXPECT_EQ(sent->front().region, kRegion);
  EXPECT_EQ(sent->front().transfer, transfer);
  EXPECT_THAT(
      sent->front().items,
      ElementsAre(wire::StoreItem{7, WireHash(1), {}, kBlockTokens, 0, RetentionClass::kExtended},
                  wire::StoreItem{0, WireHash(2), WireHash(1), 3, 1, RetentionClass::kMemory}));
}

TEST_F(RegionTest, AStoreThatIsComparedNamesTheTypeOfItsNumbers) {
  Open();
  const auto stores = Record<wire::Store>();
  const std::vector<kvt_store_block> blocks{Stored(3, 1), Stored(5, 2)};
  const auto compared = [&](int dtype) {
    uint64_t transfer = 7;
    return kvt_region_store_compared(region_->get(), blocks.data(), blocks.size(),
                                     static_cast<kvt_model_dtype>(dtype), &transfer);
  };
  EXPECT_EQ(compared(KVT_DTYPE_BFLOAT16), KVT_OK);
  EXPECT_EQ(compared(KVT_DTYPE_INT8), KVT_OK);
  (void)Store(blocks);
  EXPECT_TRUE(connection_->Ping());
  ASSERT_EQ(stores->size(), 3u);
  EXPECT_EQ(stores->at(0).compare, KvDtype::kBfloat16);
  EXPECT_EQ(stores->at(0).items.size(), 2u);
  EXPECT_EQ(stores->at(1).compare, KvDtype::kInt8);
  EXPECT_EQ(stores->at(2).compare, std::nullopt);
  for (const int unknown : {0, 7}) {
    EXPECT_EQ(compared(unknown), KVT_INVALID_ARGUMENT);
    EXPECT_STREQ(kvt_last_error()->reason, "bad_dtype");
  }
  EXPECT_TRUE(connection_->Ping());
  EXPECT_EQ(stores->size(), 3u) << "nothing was sent";
}

TEST_F(RegionTest, ALoadNamesBlocksAndTheirOrder) {
  Open();
  const auto sent = Record<wire::Load>();
  const std::vector<kvt_load_block> blocks = {{Hash(1), 6}, {Hash(9), 2}};
  const auto transfer = region_->Load(blocks, KVT_LOAD_LAYERS);
  ASSERT_TRUE(transfer);
  ASSERT_TRUE(connection_->Ping());
  ASSERT_EQ(sent->size(), 1u);
  EXPECT_EQ(sent->front().transfer, *transfer);
  EXPECT_EQ(sent->front().order, wire::LoadOrder::kLayers);
  EXPECT_THAT(sent->front().items,
              ElementsAre(wire::LoadItem{6, WireHash(1)}, wire::LoadItem{2, WireHash(9)}));
}

TEST_F(RegionTest, TransfersEndInAnyOrderAndAreReportedOnce) {
  Open();
  const uint64_t first = Store({Stored(0, 1), Stored(1, 2)});
  const uint64_t second = Load(1);
  const uint64_t third = Store({Stored(2, 3)});
  EXPECT_THAT(Ended(), IsEmpty());
  daemon_->Done({kRegion, third, 0, 1, {}});
  daemon_->Done({kRegion, first, 2, 0, {}});
  const std::vector<kvt_transfer_end> ended = Ended();
  ASSERT_THAT(NumbersOf(ended), ElementsAre(third, first));
  EXPECT_EQ(ended[0].skipped, 1u);
  EXPECT_EQ(ended[1].copied, 2u);
  EXPECT_EQ(ended[1].code, KVT_OK);
  EXPECT_STREQ(ended[1].reason, "");
  daemon_->Done({kRegion, second, 1, 0, {}});
  EXPECT_THAT(NumbersOf(Ended()), ElementsAre(second));
  EXPECT_THAT(Ended(), IsEmpty());
}

TEST_F(RegionTest, ACallReportsNoMoreThanItIsAskedFor) {
  Open();
  const uint64_t first = Load(1), second = Load(2);
  daemon_->Done({kRegion, first, 1, 0, {}});
  daemon_->Done({kRegion, second, 2, 0, {}});
  ASSERT_TRUE(connection_->Ping());
  EXPECT_THAT(region_->Poll(0), IsEmpty());
  EXPECT_THAT(NumbersOf(region_->Poll(1)), ElementsAre(first));
  EXPECT_THAT(NumbersOf(region_->Poll(1)), ElementsAre(second));
}

TEST_F(RegionTest, AWaitReportsItsTransferAndLeavesTheOthers) {
  Open();
  const uint64_t first = Load(1), second = Load(2);
  daemon_->Done({kRegion, first, 1, 0, {}});
  daemon_->Done({kRegion, second, 2, 0, {}});
  const auto end = region_->Wait(second);
  ASSERT_TRUE(end) << end.error().ToString();
  EXPECT_EQ(end->copied, 2u);
  EXPECT_EQ(region_->Wait(second).error().reason, "unknown_transfer");
  EXPECT_EQ(region_->Wait(second + 100).error().reason, "unknown_transfer");
  EXPECT_THAT(NumbersOf(Ended()), ElementsAre(first));
}

TEST_F(RegionTest, AWaitThatTimesOutLeavesTheTransferUnderWay) {
  Open();
  const uint64_t transfer = Load(1);
  EXPECT_EQ(region_->Wait(transfer, 0).error().code, KVT_TIMEOUT);
  daemon_->Done({kRegion, transfer, 1, 0, {}});
  EXPECT_TRUE(region_->Wait(transfer));
}

TEST_F(RegionTest, FailuresAreToldByPositionAndReasonOnce) {
  Open();
  const uint64_t transfer = Load(5);
  daemon_->Done(
      {kRegion,
       transfer,
       2,
       0,
       {{0, MissReason::kUnknown}, {2, MissReason::kReadError}, {4, MissReason::kExpired}}});
  const auto end = region_->Wait(transfer);
  ASSERT_TRUE(end);
  EXPECT_EQ(end->code, KVT_OK);
  EXPECT_EQ(end->failed, 3u);
  // A call with too little space for them forgets nothing.
  uint32_t position = 0;
  kvt_miss reason = 0;
  size_t count = 0;
  ASSERT_EQ(kvt_region_failures(region_->get(), transfer, &position, &reason, 1, &count), KVT_OK);
  EXPECT_EQ(count, 3u);
  EXPECT_EQ(reason, KVT_MISS_UNKNOWN);
  EXPECT_THAT(region_->Failures(*end),
              ElementsAre(IsFailure(0, KVT_MISS_UNKNOWN), IsFailure(2, KVT_MISS_READ_ERROR),
                          IsFailure(4, KVT_MISS_EXPIRED)));
  EXPECT_THAT(region_->Failures(*end), IsEmpty());
}

TEST_F(RegionTest, ATransferThatTheDaemonRefusesEndsWithItsReason) {
  Open();
  (void)Record<wire::Store>(Error{ErrorCode::kWrongState, "block_busy", "block 1"});
  const uint64_t transfer = Store({Stored(1, 1), Stored(1, 2)});
  const auto end = region_->Wait(transfer);
  ASSERT_TRUE(end);
  EXPECT_EQ(end->code, KVT_WRONG_STATE);
  EXPECT_STREQ(end->reason, "block_busy");
  EXPECT_EQ(end->failed, 2u);
  EXPECT_THAT(region_->Failures(*end),
              ElementsAre(IsFailure(0, KVT_MISS_CANCELLED), IsFailure(1, KVT_MISS_CANCELLED)));
  EXPECT_THAT(connection_->TakeErrors(), IsEmpty());
}

TEST_F(RegionTest, ManyBlocksAreSeveralMessagesAndOneTransfer) {
  constexpr uint32_t kMany = wire::kMaxStoresPerCall + 10;
  Open(kMany);
  const auto sent = Record<wire::Store>();
  std::vector<kvt_store_block> blocks;
  for (uint32_t i = 0; i < kMany; ++i) blocks.push_back(Stored(i, 1));
  const uint64_t transfer = Store(blocks);
  ASSERT_TRUE(connection_->Ping());
  ASSERT_EQ(sent->size(), 2u);
  EXPECT_EQ(sent->front().items.size(), wire::kMaxStoresPerCall);
  EXPECT_EQ(sent->back().items.back().block, kMany - 1);
  daemon_->Done({kRegion, sent->back().transfer, 9, 0, {{3, MissReason::kHostFull}}});
  EXPECT_THAT(Ended(), IsEmpty());
  daemon_->Done({kRegion, sent->front().transfer, wire::kMaxStoresPerCall - 1, 1, {}});
  const std::vector<kvt_transfer_end> ended = Ended();
  ASSERT_THAT(NumbersOf(ended), ElementsAre(transfer));
  EXPECT_EQ(ended[0].copied, kMany - 2);
  EXPECT_EQ(ended[0].skipped, 1u);
  EXPECT_THAT(region_->Failures(ended[0]),
              ElementsAre(IsFailure(wire::kMaxStoresPerCall + 3, KVT_MISS_HOST_FULL)));
}

TEST_F(RegionTest, WrongBlocksAreRefusedBeforeAnythingIsSent) {
  Open();
  const auto store_reason = [&](auto change) {
    kvt_store_block block = Stored(0, 1);
    change(&block);
    return region_->Store(std::span(&block, 1)).error().reason;
  };
  EXPECT_EQ(store_reason([](auto* b) { b->block = kBlocks; }), "block_out_of_range");
  EXPECT_EQ(store_reason([](auto* b) { b->tokens = 0; }), "bad_token_count");
  EXPECT_EQ(store_reason([](auto* b) { b->tokens = kBlockTokens + 1; }), "bad_token_count");
  EXPECT_EQ(store_reason([](auto* b) { b->retention = 2; }), "bad_retention");
  EXPECT_EQ(region_->Store({}).error().reason, "empty_request");
  EXPECT_EQ(region_->Load({}).error().reason, "empty_request");
  const kvt_load_block outside{Hash(1), kBlocks};
  EXPECT_EQ(region_->Load(std::span(&outside, 1)).error().reason, "block_out_of_range");
  const kvt_load_block block{Hash(1), 0};
  EXPECT_EQ(region_->Load(std::span(&block, 1), 2).error().reason, "bad_load_order");
  uint64_t transfer = 0;
  EXPECT_EQ(kvt_region_load(region_->get(), nullptr, 1, 0, &transfer), KVT_INVALID_ARGUMENT);
  EXPECT_EQ(kvt_region_store(nullptr, nullptr, 0, &transfer), KVT_INVALID_ARGUMENT);
  ASSERT_TRUE(connection_->Ping());
  EXPECT_EQ(daemon_->Requests(wire::MessageType::kStore), 0);
  EXPECT_EQ(daemon_->Requests(wire::MessageType::kLoad), 0);
}

TEST_F(RegionTest, LookupTellsOfEachHash) {
  Open();
  Fill(Hashes(1, 1));
  const auto presence = region_->Lookup(Hashes(1, 2));
  ASSERT_TRUE(presence) << presence.error().ToString();
  EXPECT_THAT(*presence, ElementsAre(KVT_PRESENT_POOL, 0));
  EXPECT_TRUE(region_->Lookup({})->empty());
}

// --- loss ---

TEST_F(RegionTest, TransfersEndWithTheConnectionAndTheRegionIsDead) {
  Open();
  const uint64_t ended = Load(1), under_way = Load(2);
  daemon_->Done({kRegion, ended, 1, 0, {}});
  ASSERT_TRUE(connection_->Ping());
  daemon_->DropClient();
  EXPECT_FALSE(region_->IsConnected());
  const std::vector<kvt_transfer_end> ends = region_->Poll();
  ASSERT_THAT(NumbersOf(ends), ElementsAre(ended, under_way));
  EXPECT_EQ(ends[0].code, KVT_OK);
  EXPECT_EQ(ends[1].code, KVT_UNAVAILABLE);
  EXPECT_EQ(ends[1].failed, 2u);
  EXPECT_THAT(region_->Failures(ends[1]),
              ElementsAre(IsFailure(0, KVT_MISS_UNAVAILABLE), IsFailure(1, KVT_MISS_UNAVAILABLE)));
  EXPECT_THAT(region_->Poll(), IsEmpty());

  const kvt_load_block block{Hash(1), 0};
  EXPECT_EQ(region_->Load(std::span(&block, 1)).error().code, KVT_UNAVAILABLE);
  EXPECT_EQ(region_->Lookup(Hashes(1, 1)).error().code, KVT_UNAVAILABLE);
  EXPECT_THAT(region_->Poll(), IsEmpty());
  // The connection has recovered, the region has not; another one can be opened on the memory.
  EXPECT_TRUE(connection_->Ping());
  EXPECT_EQ(region_->Load(std::span(&block, 1)).error().code, KVT_UNAVAILABLE);
  Open();
  const uint64_t again = Load(1);
  daemon_->Done({kRegion, again, 1, 0, {}});
  EXPECT_TRUE(region_->Wait(again));
}

TEST_F(RegionTest, AWaitEndsWithTheConnectionAndWithADaemonThatIsGivenUp) {
  for (size_t loads = 1; loads <= 2; ++loads) {
    Open();
    const uint64_t transfer = Load(1);
    auto waited = std::async(std::launch::async, [&] { return region_->Wait(transfer, 60'000); });
    daemon_->WaitForRequests(wire::MessageType::kLoad, loads);
    loads == 1 ? daemon_->DropClient() : region_->HangUp();
    const auto end = waited.get();
    ASSERT_TRUE(end) << end.error().ToString();
    EXPECT_EQ(end->code, KVT_UNAVAILABLE);
  }
}

struct UnfitDone {
  const char* name;
  std::function<wire::TransferDone(uint64_t transfer)> done;
};
void PrintTo(const UnfitDone& unfit, std::ostream* out) { *out << unfit.name; }

class UnfitDoneTest : public RegionTest, public ::testing::WithParamInterface<UnfitDone> {};

TEST_P(UnfitDoneTest, EndsTheConnection) {
  Open();
  const uint64_t transfer = Load(2);
  daemon_->Done(GetParam().done(transfer));
  const auto end = region_->Wait(transfer);
  ASSERT_TRUE(end);
  EXPECT_EQ(end->code, KVT_UNAVAILABLE);
  EXPECT_FALSE(region_->IsConnected());
}

INSTANTIATE_TEST_SUITE_P(
    All, UnfitDoneTest,
    ::testing::Values(
        UnfitDone{"OfARegionNeverOpened",
                  [](uint64_t transfer) {
                    return wire::TransferDone{PoolId{77}, transfer, 2, 0, {}};
                  }},
        UnfitDone{"OfATransferNeverBegun",
                  [](uint64_t transfer) {
                    return wire::TransferDone{kRegion, transfer + 1, 2, 0, {}};
                  }},
        UnfitDone{"OfTooManyBlocks",
                  [](uint64_t transfer) {
                    return wire::TransferDone{kRegion, transfer, 2, 1, {}};
                  }},
        UnfitDone{"OfABlockThatWasNotNamed",
                  [](uint64_t transfer) {
                    return wire::TransferDone{kRegion, transfer, 1, 0, {{2, MissReason::kUnknown}}};
                  }}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace kvtier::client
