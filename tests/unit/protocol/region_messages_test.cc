// SPDX-License-Identifier: Apache-2.0
#include "protocol/region_messages.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "protocol/frame.h"
#include "tests/unit/protocol/payload.h"

namespace kvtier::wire {
namespace {

// Ten blocks of 64 bytes in two pieces: the first halves lie together, then the second ones.
OpenRegion TwoHalves() {
  OpenRegion open;
  open.model = ModelId{1};
  open.bytes = 640;
  open.blocks = 10;
  open.pieces = {{0, 32, 32}, {320, 32, 32}};
  return open;
}

TEST(OpenRegion, CarriesItsFields) {
  OpenRegion open = TwoHalves();
  open.group = 2;
  open.device = 3;
  open.memory = RegionMemory::kVmm;
  const auto decoded = Decode<OpenRegion>(PayloadOf(open));
  ASSERT_TRUE(decoded);
  EXPECT_EQ(decoded->model, ModelId{1});
  EXPECT_EQ(decoded->group, 2u);
  EXPECT_EQ(decoded->device, 3u);
  EXPECT_EQ(decoded->memory, RegionMemory::kVmm);
  EXPECT_EQ(decoded->bytes, 640u);
  EXPECT_EQ(decoded->blocks, 10u);
  EXPECT_EQ(decoded->pieces, open.pieces);
}

TEST(OpenRegion, AHandleTravelsOnlyWhereMemoryHasOne) {
  OpenRegion open = TwoHalves();
  open.ipc_handle.fill(0xee);
  const std::vector<std::byte> without = PayloadOf(open);
  EXPECT_EQ(Decode<OpenRegion>(without)->ipc_handle, (std::array<uint8_t, 64>{}));
  open.memory = RegionMemory::kCudaIpc;
  const std::vector<std::byte> with = PayloadOf(open);
  EXPECT_EQ(with.size(), without.size() + 64);
  EXPECT_EQ(Decode<OpenRegion>(with)->ipc_handle, open.ipc_handle);
}

TEST(OpenRegion, NamesTheKeptMemoryThatItLiesIn) {
  OpenRegion open = TwoHalves();
  EXPECT_EQ(Decode<OpenRegion>(PayloadOf(open))->kept, std::nullopt);
  open.kept.emplace().fill(7);
  EXPECT_EQ(Decode<OpenRegion>(PayloadOf(open))->kept, open.kept);
}

TEST(OpenRegion, MemoryOfAnUnknownKindIsRefused) {
  OpenRegion open = TwoHalves();
  open.memory = static_cast<RegionMemory>(3);
  EXPECT_EQ(ReasonFor(open), "bad_enum");
}

TEST(OpenRegion, EveryBlockLiesWithinTheMemory) {
  EXPECT_EQ(ReasonFor(TwoHalves()), "");
  const auto reason_for = [](uint64_t offset, uint64_t stride, uint64_t bytes, uint32_t blocks) {
    OpenRegion open = TwoHalves();
    open.blocks = blocks;
    open.pieces[1] = {offset, stride, bytes};
    return ReasonFor(open);
  };
  constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();
  EXPECT_EQ(reason_for(321, 32, 32, 10), "bad_region_layout");  // one byte too far
  EXPECT_EQ(reason_for(320, 33, 32, 10), "bad_region_layout");
  EXPECT_EQ(reason_for(320, 32, 33, 10), "bad_region_layout");
  EXPECT_EQ(reason_for(320, 32, 32, 11), "bad_region_layout");
  EXPECT_EQ(reason_for(kMax, 32, 32, 10), "bad_region_layout");
  EXPECT_EQ(reason_for(kMax - 31, 32, 32, 1), "bad_region_layout");
  EXPECT_EQ(reason_for(0, kMax, 32, 2), "bad_region_layout");
  EXPECT_EQ(reason_for(0, kMax / 9 + 1, 32, 10), "bad_region_layout");
  EXPECT_EQ(reason_for(0, 32, kMax, 10), "bad_region_layout");
}

TEST(OpenRegion, ARefusalNamesThePieceItsEndAndTheBound) {
  const auto context_for = [](const RegionPiece& piece) {
    OpenRegion open = TwoHalves();
    open.pieces[1] = piece;
    return Decode<OpenRegion>(PayloadOf(open)).error().context;
  };
  EXPECT_EQ(context_for({321, 32, 32}),
            "OPEN_REGION: piece 1 of 10 blocks ends at byte 641, the memory at 640");
  EXPECT_EQ(context_for({std::numeric_limits<uint64_t>::max(), 32, 32}),
            "OPEN_REGION: piece 1 of 10 blocks ends at byte 18446744073709551935, the memory at "
            "640");
  EXPECT_EQ(context_for({320, 31, 32}),
            "OPEN_REGION: piece 1: blocks of 32 bytes overlap with a stride of 31");
  EXPECT_EQ(context_for({320, 32, 0}), "OPEN_REGION: piece 1 has 0 bytes, 1 to " +
                                           std::to_string(kMaxModelBlockBytes) + " allowed");
}

TEST(OpenRegion, PiecesOfTwoBlocksDoNotOverlap) {
  OpenRegion open = TwoHalves();
  open.pieces[0].block_stride = 31;
  EXPECT_EQ(ReasonFor(open), "bad_region_layout");
  // One block has no neighbour to overlap.
  open.blocks = 1;
  open.pieces[0].block_stride = 0;
  EXPECT_EQ(ReasonFor(open), "");
}

TEST(OpenRegion, BytesOfAllPiecesCanBeAdded) {
  OpenRegion open = TwoHalves();
  open.blocks = 1;
  open.bytes = std::numeric_limits<uint64_t>::max();
  open.pieces = {{0, 0, kMaxModelBlockBytes}};
  EXPECT_EQ(ReasonFor(open), "");
  open.pieces = {{0, 0, kMaxModelBlockBytes + 1}};
  EXPECT_EQ(ReasonFor(open), "bad_region_layout");
}

TEST(OpenRegion, NothingIsNoRegion) {
  OpenRegion open = TwoHalves();
  open.pieces.clear();
  EXPECT_EQ(ReasonFor(open), "bad_region_layout");
  open = TwoHalves();
  open.blocks = 0;
  EXPECT_EQ(ReasonFor(open), "bad_region_layout");
  open = TwoHalves();
  open.pieces[0].bytes = 0;
  EXPECT_EQ(ReasonFor(open), "bad_region_layout");
}

TEST(OpenRegion, CountsAreBounded) {
  OpenRegion open = TwoHalves();
  open.bytes = uint64_t{kMaxRegionBlocks} * 64;
  open.blocks = kMaxRegionBlocks;
  open.pieces.assign(kMaxRegionPieces, {0, 64, 64});
  const std::vector<std::byte> payload = PayloadOf(open);
  EXPECT_LE(payload.size() + kFrameHeaderBytes, kMaxFrameBytes);
  EXPECT_TRUE(Decode<OpenRegion>(payload));

  ByteWriter claim;
  for (const uint32_t field : {1u, 0u, 0u}) claim.Write(field);
  claim.Write(uint8_t{0});
  claim.Write(uint64_t{640});
  ByteWriter blocks = claim;
  blocks.Write(kMaxRegionBlocks + 1);
  EXPECT_EQ(Decode<OpenRegion>(blocks.data()).error().reason, "too_many_blocks");
  claim.Write(uint32_t{1});
  claim.Write(uint8_t{0});  // in no kept memory
  ByteWriter pieces = claim;
  pieces.Write(kMaxRegionPieces + 1);
  EXPECT_EQ(Decode<OpenRegion>(pieces.data()).error().reason, "too_many_pieces");
  claim.Write(kMaxRegionPieces);
  EXPECT_EQ(Decode<OpenRegion>(claim.data()).error().reason, "truncated_message");
}

TEST(Store, ParentsTravelOnlyIfPresent) {
  const Store store{PoolId{3},
                    9,
                    {{4, HashOf(1), {}, 16, 0, RetentionClass::kExtended},
                     {2, HashOf(2), HashOf(1), 5, 1, RetentionClass::kMemory}}};
  const std::vector<std::byte> payload = PayloadOf(store);
  EXPECT_EQ(payload.size(), 17u + 2 * 44 + 32);
  const auto decoded = Decode<Store>(payload);
  ASSERT_TRUE(decoded);
  EXPECT_EQ(decoded->region, PoolId{3});
  EXPECT_EQ(decoded->transfer, 9u);
  EXPECT_EQ(decoded->items, store.items);
}

TEST(Store, LargestCallFitsAFrame) {
  const StoreItem item{1, HashOf(2), HashOf(3), 16, 5, RetentionClass::kExtended};
  const std::vector<std::byte> payload =
      PayloadOf(Store{PoolId{1}, 1, std::vector(kMaxStoresPerCall, item)});
  EXPECT_LE(payload.size() + kFrameHeaderBytes, kMaxFrameBytes);
  EXPECT_TRUE(Decode<Store>(payload));
}

TEST(Store, UnknownBitsAndRetentionAreRefused) {
  std::vector<std::byte> payload =
      PayloadOf(Store{PoolId{1}, 1, {{1, HashOf(2), HashOf(3), 16, 5, RetentionClass::kMemory}}});
  payload[17 + 36] |= std::byte{2};
  EXPECT_EQ(Decode<Store>(payload).error().reason, "unknown_bits");
  payload[17 + 36] = std::byte{1};
  payload[17 + 43] = std::byte{2};
  EXPECT_EQ(Decode<Store>(payload).error().reason, "bad_enum");
}

TEST(Store, MayHaveItsBlocksComparedAsNumbersOfAType) {
  Store store{PoolId{1}, 1, {{1, HashOf(2), {}, 16, 0, RetentionClass::kMemory}}};
  const size_t plain_bytes = PayloadOf(store).size();
  for (auto dtype = static_cast<uint8_t>(KvDtype::kFloat32);
       dtype <= static_cast<uint8_t>(KvDtype::kInt8); ++dtype) {
    store.compare = static_cast<KvDtype>(dtype);
    const auto decoded = Decode<Store>(PayloadOf(store));
    ASSERT_TRUE(decoded);
    EXPECT_EQ(decoded->compare, store.compare);
    EXPECT_EQ(decoded->items, store.items);
  }
  EXPECT_EQ(PayloadOf(store).size(), plain_bytes + 1);
  store.compare.reset();
  EXPECT_EQ(Decode<Store>(PayloadOf(store))->compare, std::nullopt);
  for (const uint8_t unknown : {uint8_t{0}, uint8_t{7}, uint8_t{255}}) {
    store.compare = static_cast<KvDtype>(unknown);
    EXPECT_EQ(ReasonFor(store), "bad_enum");
  }
}

TEST(Load, LargestCallFitsAFrame) {
  Load load{PoolId{1}, 1, LoadOrder::kLayers, {}};
  for (uint32_t i = 0; i < kMaxBlocksPerCall; ++i) load.items.push_back({i, HashOf(i)});
  load.counter = {.offset = 64, .base = 7, .steps = 2};
  const std::vector<std::byte> payload = PayloadOf(load);
  EXPECT_LE(payload.size() + kFrameHeaderBytes, kMaxFrameBytes);
  const auto decoded = Decode<Load>(payload);
  ASSERT_TRUE(decoded);
  EXPECT_EQ(decoded->order, LoadOrder::kLayers);
  EXPECT_EQ(decoded->items, load.items);
  EXPECT_EQ(decoded->counter, load.counter);
}

TEST(Load, ACounterCountsLayersAtAPlaceOfAWord) {
  Load load{PoolId{1}, 1, LoadOrder::kLayers, {{0, HashOf(1)}}, LoadCounter{64, 7, 2}};
  EXPECT_TRUE(Decode<Load>(PayloadOf(load)));
  load.counter->offset = 66;
  EXPECT_EQ(ReasonFor(load), "bad_counter");
  load.counter = LoadCounter{64, 7, 0};
  EXPECT_EQ(ReasonFor(load), "bad_counter");
  load.counter = LoadCounter{64, 7, 2};
  load.order = LoadOrder::kBlocks;
  EXPECT_EQ(ReasonFor(load), "bad_counter");
  load.counter.reset();
  EXPECT_TRUE(Decode<Load>(PayloadOf(load)));
}

TEST(Transfers, NothingIsNoTransfer) {
  EXPECT_EQ(ReasonFor(Store{PoolId{1}, 1, {}}), "empty_request");
  EXPECT_EQ(ReasonFor(Load{PoolId{1}, 1, LoadOrder::kBlocks, {}}), "empty_request");
}

// A header that claims so many items, without any of them.
std::string ReasonForClaim(bool store, uint32_t count) {
  ByteWriter payload;
  payload.Write(uint32_t{1});
  payload.Write(uint64_t{1});
  payload.Write(uint8_t{0});
  if (!store) payload.Write(uint8_t{0});
  payload.Write(count);
  return store ? Decode<Store>(payload.data()).error().reason
               : Decode<Load>(payload.data()).error().reason;
}

TEST(Transfers, ClaimedItemsAreBoundedAndComparedWithWhatIsThere) {
  EXPECT_EQ(ReasonForClaim(true, kMaxStoresPerCall + 1), "too_many_blocks");
  EXPECT_EQ(ReasonForClaim(true, kMaxStoresPerCall), "truncated_message");
  EXPECT_EQ(ReasonForClaim(false, kMaxBlocksPerCall + 1), "too_many_blocks");
  EXPECT_EQ(ReasonForClaim(false, kMaxBlocksPerCall), "truncated_message");
}

TEST(TransferDone, TellsEachFailureByItsPosition) {
  const TransferDone done{
      PoolId{3},
      9,
      5,
      2,
      {{0, MissReason::kUnknown}, {7, static_cast<MissReason>(200)}}};  // of a later minor version
  const auto decoded = Decode<TransferDone>(PayloadOf(done));
  ASSERT_TRUE(decoded);
  EXPECT_EQ(decoded->region, PoolId{3});
  EXPECT_EQ(decoded->transfer, 9u);
  EXPECT_EQ(decoded->copied, 5u);
  EXPECT_EQ(decoded->skipped, 2u);
  EXPECT_EQ(decoded->failed, done.failed);
}

TEST(TransferDone, PositionsAscend) {
  const auto reason_for = [](uint32_t first, uint32_t second) {
    return ReasonFor(TransferDone{
        PoolId{3}, 9, 0, 0, {{first, MissReason::kUnknown}, {second, MissReason::kUnknown}}});
  };
  EXPECT_EQ(reason_for(1, 2), "");
  EXPECT_EQ(reason_for(2, 2), "bad_position");
  EXPECT_EQ(reason_for(2, 1), "bad_position");
}

TEST(TransferDone, EveryBlockMayFail) {
  TransferDone done;
  for (uint32_t i = 0; i < kMaxBlocksPerCall; ++i) {
    done.failed.push_back({i, MissReason::kReadError});
  }
  const std::vector<std::byte> payload = PayloadOf(done);
  EXPECT_LE(payload.size() + kFrameHeaderBytes, kMaxFrameBytes);
  EXPECT_TRUE(Decode<TransferDone>(payload));
}

}  // namespace
}  // namespace kvtier::wire
