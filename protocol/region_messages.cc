// SPDX-License-Identifier: Apache-2.0
#include "protocol/region_messages.h"

#include <fmt/format.h>

#include <string>

#include "protocol/message_codec.h"

namespace kvtier::wire {
namespace {

// The largest message of each kind fits a frame.
constexpr size_t kPieceBytes = 3 * sizeof(uint64_t);
static_assert(kFrameHeaderBytes + 130 + kMaxRegionPieces * kPieceBytes <= kMaxFrameBytes);
constexpr size_t kMaxStoreItemBytes = 4 + 32 + 1 + 2 + 4 + 1 + 32;
static_assert(kFrameHeaderBytes + 26 + kMaxStoresPerCall * kMaxStoreItemBytes <= kMaxFrameBytes);
static_assert(kFrameHeaderBytes + 30 + kMaxBlocksPerCall * (4 + 32) <= kMaxFrameBytes);
static_assert(kFrameHeaderBytes + 24 + kMaxBlocksPerCall * (4 + 1) <= kMaxFrameBytes);

// Whether each of `blocks` blocks has its piece within `bytes`, beside the pieces of the others.
// Written so that no value of a hostile client overflows, nor the sum of all pieces' bytes.
bool IsWithin(const RegionPiece& piece, uint32_t blocks, uint64_t bytes) {
  if (piece.bytes == 0 || piece.bytes > kMaxModelBlockBytes) return false;
  if (piece.bytes > bytes || piece.offset > bytes - piece.bytes) return false;
  if (blocks <= 1) return blocks == 1;
  const uint64_t most_to_last = bytes - piece.bytes - piece.offset;
  return piece.block_stride >= piece.bytes && piece.block_stride <= most_to_last / (blocks - 1);
}

// Why it is not.
std::string Describe(const OpenRegion& m, size_t number) {
  __extension__ using Wide = unsigned __int128;
  const RegionPiece& piece = m.pieces[number];
  if (piece.bytes == 0 || piece.bytes > kMaxModelBlockBytes) {
    return fmt::format("piece {} has {} bytes, 1 to {} allowed", number, piece.bytes,
                       kMaxModelBlockBytes);
  }
  if (m.blocks > 1 && piece.block_stride < piece.bytes) {
    return fmt::format("piece {}: blocks of {} bytes overlap with a stride of {}", number,
                       piece.bytes, piece.block_stride);
  }
  const Wide end = Wide{piece.offset} + Wide{m.blocks - 1} * piece.block_stride + piece.bytes;
  return fmt::format("piece {} of {} blocks ends at byte {}, the memory at {}", number, m.blocks,
                     end, m.bytes);
}

void CheckLayout(auto& io, const OpenRegion& m) {
  constexpr const char* kReason = "bad_region_layout";
  io.Check(m.blocks > 0, kReason, m.blocks);
  io.Check(!m.pieces.empty(), kReason, m.pieces.size());
  for (size_t i = 0; i < m.pieces.size(); ++i) {
    io.Check(IsWithin(m.pieces[i], m.blocks, m.bytes), kReason, [&] { return Describe(m, i); });
  }
}

// The first fields of STORE and LOAD.
void TransferFields(auto& io, auto& m) {
  io.Number(m.region);
  io.Number(m.transfer);
}

}  // namespace

void Fields(auto& io, Like<OpenRegion> auto& m) {
  io.Number(m.model);
  io.Number(m.group);
  io.Number(m.device);
  io.OneOf(m.memory, RegionMemory::kSharedMemory, RegionMemory::kCudaIpc);
  if (m.memory == RegionMemory::kCudaIpc) io.Bytes(m.ipc_handle);
  io.Number(m.bytes);
  io.Count(m.blocks, kMaxRegionBlocks, "too_many_blocks");
  io.Presence(m.kept);
  if (m.kept) io.Bytes(*m.kept);
  io.List(m.pieces, kMaxRegionPieces, "too_many_pieces", [](auto& item_io, auto& piece) {
    item_io.Number(piece.offset);
    item_io.Number(piece.block_stride);
    item_io.Number(piece.bytes);
  });
  CheckLayout(io, m);
}
KVT_DEFINE_MESSAGE(OpenRegion);

void Fields(auto& io, Like<OpenRegionReply> auto& m) {
  io.Number(m.region);
  io.Number(m.block_bytes);
}
KVT_DEFINE_MESSAGE(OpenRegionReply);

void Fields(auto& io, Like<CloseRegion> auto& m) { io.Number(m.region); }
KVT_DEFINE_MESSAGE(CloseRegion);

void Fields(auto& /*io*/, Like<CloseRegionReply> auto& /*m*/) {}
KVT_DEFINE_MESSAGE(CloseRegionReply);

void Fields(auto& io, Like<Store> auto& m) {
  TransferFields(io, m);
  io.Presence(m.compare);
  if (m.compare) io.OneOf(*m.compare, KvDtype::kFloat32, KvDtype::kInt8);
  io.List(m.items, kMaxStoresPerCall, "too_many_blocks", [](auto& item_io, auto& item) {
    item_io.Number(item.block);
    item_io.Bytes(item.hash.bytes);
    item_io.Presence(item.parent);
    item_io.Number(item.tokens);
    item_io.Number(item.depth);
    item_io.OneOf(item.retention, RetentionClass::kMemory, RetentionClass::kExtended);
    if (item.parent) item_io.Bytes(item.parent->bytes);
  });
  io.Check(!m.items.empty(), "empty_request", 0);
}
KVT_DEFINE_MESSAGE(Store);

void Fields(auto& io, Like<Load> auto& m) {
  TransferFields(io, m);
  io.OneOf(m.order, LoadOrder::kBlocks, LoadOrder::kLayers);
  io.Presence(m.counter);
  if (m.counter) CounterFields(io, *m.counter);
  io.Check(!m.counter || m.order == LoadOrder::kLayers, "bad_counter", 0);
  io.List(m.items, kMaxBlocksPerCall, "too_many_blocks", [](auto& item_io, auto& item) {
    item_io.Number(item.block);
    item_io.Bytes(item.hash.bytes);
  });
  io.Check(!m.items.empty(), "empty_request", 0);
}
KVT_DEFINE_MESSAGE(Load);

void Fields(auto& io, Like<TransferDone> auto& m) {
  TransferFields(io, m);
  io.Number(m.copied);
  io.Number(m.skipped);
  io.List(m.failed, kMaxBlocksPerCall, "too_many_blocks", [](auto& item_io, auto& item) {
    item_io.Number(item.position);
    item_io.OpenEnum(item.reason);
  });
  for (size_t i = 1; i < m.failed.size(); ++i) {
    io.Check(m.failed[i].position > m.failed[i - 1].position, "bad_position", m.failed[i].position);
  }
}
KVT_DEFINE_MESSAGE(TransferDone);

}  // namespace kvtier::wire
