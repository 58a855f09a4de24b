// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/hostile_client.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/digest.h"
#include "daemon/session/block_handler.h"
#include "gpu/counter_page.h"
#include "protocol/socket_io.h"
#include "tests/fakes/derived_bytes.h"

namespace kvtier {
namespace {

// Limited, so that choices of one byte still reach all known blocks.
constexpr size_t kMaxKnownBlocks = 96;
// Blocks of a region.
constexpr uint32_t kRegionRows = 12;

// Memory for the regions of all clients: its content does not matter to the daemon.
int SharedRows() {
  static const UniqueFd memory = [] {
    UniqueFd fd(::memfd_create("fuzz-region", MFD_CLOEXEC));
    const uint64_t bytes = kRegionRows * HostileModel(1).groups[0].BlockBytes();
    KVT_CHECK(fd.valid() && ::fallocate(fd.get(), 0, 0, static_cast<off_t>(bytes)) == 0);
    return fd;
  }();
  return memory.get();
}

}  // namespace

BlockHash HostileHash(uint32_t stream, uint32_t depth) {
  // Streams part after their fourth block.
  return TestHash(depth < 4 ? 0 : stream, depth);
}

HostileClient::HostileClient(HostileWorld* world, const HostileProcess& process, FuzzInput* input)
    : world_(*world), input_(*input), socket_(world->Connect(process)) {
  loads_in_layers_ = input_.Flag();
  Send(wire::Hello{.client_name = "fuzz"});
  for (uint32_t model = 0; model < HostileSetup::kModels; ++model) {
    Send(wire::RegisterModel{HostileModel(model)});
  }
  Attach();
}

void HostileClient::Attach() {
  // Mostly the first model and device, so that clients meet.
  const uint32_t model = input_.Below(4) == 3 ? 1 : 0;
  const uint32_t device = input_.Below(4) == 3 ? 1 : 0;
  // Ids of models count from 1.
  Send(wire::Attach{
      .model = wire::ModelId(model + 1),
      .device = device,
      .pool_bytes = world_.setup().pool_blocks * HostileModel(model).groups[0].BlockBytes()});
}

HostileClient::Pool HostileClient::PickRegion() {
  const uint32_t choice = input_.Below(32);
  // A pool where a region is expected, and a number that may be another client's.
  if (choice == 31) return {PickPool(), kRegionRows};
  if (regions_.empty() || choice == 30) return {PoolId(input_.Below(12)), kRegionRows};
  return regions_[regions_.size() - 1 - choice % regions_.size()];
}

PoolId HostileClient::PickPool() {
  const uint32_t choice = input_.Below(16);
  if (choice == 15) return PoolId(input_.Below(12));
  return pools_.empty() ? PoolId(1) : pools_[choice % pools_.size()].id;
}

std::vector<BlockHash> HostileClient::PickHashes() {
  const uint32_t stream = input_.Below(kHostileStreams);
  const uint32_t first = input_.Below(8) == 7 ? input_.Below(kHostileDepth) : 0;
  const uint32_t count = input_.Below(kHostileDepth - first + 1);
  std::vector<BlockHash> hashes;
  for (uint32_t i = 0; i < count; ++i) hashes.push_back(HostileHash(stream, first + i));
  return hashes;
}

BlockHandle HostileClient::PickBlock(const HostileClient* other) {
  const uint32_t choice = input_.Below(8);
  const std::vector<BlockHandle>& from = choice == 7 && other != nullptr ? other->blocks_ : blocks_;
  if (from.empty() || choice == 6) {
    return {BlockIndex(input_.Below(32)), input_.Below(6)};
  }
  BlockHandle block = from[from.size() - 1 - input_.Byte() % from.size()];
  if (choice == 5) block.generation += input_.Flag() ? 1 : -1;
  return block;
}

std::optional<PayloadChecksum> HostileClient::PickChecksum() {
  switch (input_.Below(6)) {
    case 4: {
      const std::vector<std::byte> wrong(64, std::byte{input_.Byte()});
      return ChecksumPayload(wrong);
    }
    case 5: {
      // The hash of a block that nothing was written to.
      const std::vector<std::byte> unwritten(HostileModel(0).groups[0].BlockBytes(),
                                             std::byte{0xdb});
      return ChecksumPayload(unwritten);
    }
    default:
      return std::nullopt;
  }
}

void HostileClient::Acquire() {
  const PoolId pool = PickPool();
  const std::vector<BlockHash> hashes = PickHashes();
  std::vector<BlockHash> partial_blocks;
  if (input_.Below(4) == 3) {
    partial_blocks.push_back(HostileHash(kHostileStreams, input_.Below(4)));
  }
  wire::Acquire acquire{.parts = {{.pool = pool,
                                   .new_blocks = input_.Below(world_.setup().pool_blocks + 2),
                                   .hashes = hashes,
                                   .partial_blocks = partial_blocks}}};
  // Drawn only with a partial block, so that inputs which are kept still mean what they did.
  if (!partial_blocks.empty() && input_.Flag()) {
    acquire.wish = LoadWish{.plan = input_.Below(3) == 0 ? HitPlan::kAll : HitPlan::kCut,
                            .deadline_ms = input_.Below(3),
                            .tokens = input_.Below(500),
                            .cost = {.per_token_us = static_cast<float>(input_.Below(3)),
                                     .per_pair_us = static_cast<float>(input_.Below(2)),
                                     .fixed_us = static_cast<float>(input_.Below(9))}};
  }
  if ((loads_in_layers_ || input_.Below(16) == 15) && input_.Flag()) {
    acquire.order = wire::LoadOrder::kLayers;
  }
  Send(acquire);
}

void HostileClient::CommitInOrder() {
  wire::Commit commit{.pool = PickPool()};
  const uint32_t stream = input_.Below(kHostileStreams);
  uint32_t depth = input_.Below(8) == 7 ? input_.Below(kHostileDepth) : 0;
  const auto retention = input_.Below(4) == 3 ? RetentionClass::kMemory : RetentionClass::kExtended;
  const std::optional<PayloadChecksum> checksum = PickChecksum();
  for (const BlockHandle block : new_blocks_) {
    commit.items.push_back({.block = block,
                            .hash = HostileHash(stream, depth),
                            .tokens = 16,
                            .depth = depth,
                            .retention = retention,
                            .checksum = checksum});
    if (depth > 0) commit.items.back().parent = HostileHash(stream, depth - 1);
    ++depth;
  }
  Send(commit);
}

void HostileClient::Commit(const HostileClient* other) {
  wire::Commit commit{.pool = PickPool()};
  for (uint32_t count = 1 + input_.Below(4); count > 0; --count) {
    wire::CommitItem item{.block = PickBlock(other)};
    item.depth = input_.Below(kHostileDepth);
    item.hash = HostileHash(input_.Below(kHostileStreams + 1), item.depth);
    if (input_.Flag()) item.parent = HostileHash(input_.Below(kHostileStreams), item.depth);
    item.tokens = input_.Below(18);
    item.retention = input_.Flag() ? RetentionClass::kMemory : RetentionClass::kExtended;
    item.checksum = PickChecksum();
    commit.items.push_back(item);
  }
  Send(commit);
}

void HostileClient::Release(const HostileClient* other) {
  wire::Release release{.pool = PickPool()};
  for (uint32_t count = 1 + input_.Below(6); count > 0; --count) {
    release.blocks.push_back(PickBlock(other));
  }
  Send(release);
}

void HostileClient::ReleaseStretch() {
  wire::Release release{.pool = PickPool()};
  if (blocks_.empty()) return;
  const size_t first = input_.Byte() % blocks_.size();
  const size_t count = 1 + input_.Byte() % (blocks_.size() - first);
  const auto begin = blocks_.begin() + static_cast<ptrdiff_t>(first);
  release.blocks.assign(begin, begin + static_cast<ptrdiff_t>(count));
  for (uint32_t again = input_.Below(4); again > 0; --again) {
    release.blocks.push_back(release.blocks.front());
  }
  Send(release);
}

void HostileClient::Prefetch() {
  const std::vector<BlockHash> hashes = PickHashes();
  Send(wire::Prefetch{.pool = PickPool(), .hashes = hashes});
}

void HostileClient::Tell() {
  switch (input_.Below(4)) {
    case 0:
      return Pin();
    case 1:
      return Hint();
    default:
      return Tokens();
  }
}

void HostileClient::Tokens() {
  wire::Tokens tokens{.pool = PickPool(), .blocks = {}, .ids = {}};
  for (const BlockHash& hash : PickHashes()) {
    tokens.blocks.push_back({hash, input_.OneOf({uint16_t{4}, uint16_t{16}, uint16_t{1}})});
    tokens.ids.resize(tokens.ids.size() + tokens.blocks.back().tokens, input_.Below(100));
  }
  Send(tokens);
}

void HostileClient::Pin() {
  const std::vector<BlockHash> hashes = PickHashes();
  Send(wire::Pin{.pool = PickPool(),
                 .ttl_ms = input_.OneOf({int64_t{60'000}, int64_t{0}, int64_t{1}, int64_t{-1},
                                         kMaxPinTtlMs, INT64_MAX, INT64_MIN}),
                 .hashes = hashes});
}

void HostileClient::Hint() {
  const std::vector<BlockHash> hashes = PickHashes();
  Send(wire::Hint{.pool = PickPool(),
                  .hint = input_.OneOf({SequenceHint::kClosed, SequenceHint::kOnce,
                                        SequenceHint::kReturns, SequenceHint{0}, SequenceHint{4}}),
                  .returns_in_ms = input_.OneOf({int64_t{0}, int64_t{1}, int64_t{60'000},
                                                 kMaxReturnsInMs, int64_t{-1}, INT64_MAX}),
                  .hashes = hashes});
}

void HostileClient::UseRegions() {
  for (uint32_t count = 1 + input_.Below(4); count > 0; --count) {
    const uint32_t choice = input_.Below(16);
    if (choice == 0 || (regions_.empty() && choice < 12)) {
      OpenRegion();
    } else if (choice < 8) {
      Store();
    } else if (choice < 15) {
      Load();
    } else {
      CloseRegion();
    }
  }
}

void HostileClient::CloseRegion() {
  const Pool region = PickRegion();
  const uint32_t choice = input_.Below(4);
  if ((choice & 1) != 0) Store();
  if ((choice & 2) != 0) Load();
  Send(wire::CloseRegion{.region = region.id});
}

void HostileClient::OpenRegion() {
  const uint32_t model = input_.Below(4) == 3 ? 1 : 0;
  const uint64_t block_bytes = HostileModel(model).groups[0].BlockBytes();
  wire::OpenRegion open{.model = wire::ModelId(model + 1),
                        .device = input_.Below(8) == 7 ? 1u : 0u,
                        .blocks = kRegionRows};
  if (input_.Below(8) == 7) open.blocks = input_.Below(kRegionRows);
  open.bytes = open.blocks * block_bytes;
  if (input_.Flag()) {
    open.pieces = {{0, block_bytes, block_bytes}};
  } else {  // the first halves of all blocks, then the second ones
    const uint64_t half = block_bytes / 2;
    open.pieces = {{0, half, half}, {open.blocks * half, half, half}};
  }
  int descriptor = SharedRows();
  switch (input_.Below(32)) {
    case 24:
      return UseKeptMemory();
    case 25:
      open.memory = input_.OneOf({wire::RegionMemory::kVmm, wire::RegionMemory::kCudaIpc});
      break;
    case 26:
      descriptor = -1;
      break;
    case 27:
      descriptor = socket_.get();
      break;
    case 28:
      open.bytes = UINT64_MAX;
      break;
    case 29:
      open.pieces[0].bytes = input_.OneOf({uint64_t{1}, uint64_t{0}, kMaxModelBlockBytes});
      break;
    case 30:
      open.pieces[0].offset = input_.OneOf({uint64_t{1}, UINT64_MAX, block_bytes});
      break;
    case 31:
      open.group = 1 + input_.Byte();
      break;
    default:
      break;
  }
  std::vector<std::byte> frame;
  wire::Encode(open, ++last_request_, &frame);
  asked_[last_request_] = open.blocks;
  SendBytes(std::move(frame), descriptor);
}

// Two descriptors, or too few, or one too many; sizes that fit and such that do not.
void HostileClient::UseKeptMemory() {
  wire::KeptMemoryName name{};
  name[0] = static_cast<uint8_t>(input_.Below(4));
  const uint32_t choice = input_.Below(4);
  if (choice == 0) return Send(wire::TakeMemory{name, input_.Flag()});
  if (choice == 1) {
    wire::ReleaseMemory release{.device = input_.Below(3), .name = std::nullopt};
    if (input_.Flag()) release.name = name;
    return Send(release);
  }
  const wire::KeepMemory keep{
      .name = name,
      .device = input_.Below(3),
      .memory = input_.OneOf({wire::RegionMemory::kSharedMemory, wire::RegionMemory::kVmm}),
      .bytes = input_.OneOf({uint64_t{64}, uint64_t{1}, wire::kMaxKeptMemoryBytes}),
      .table_bytes = 64};
  std::vector<std::byte> frame;
  wire::Encode(keep, ++last_request_, &frame);
  const int descriptors[] = {SharedRows(), input_.Flag() ? SharedRows() : socket_.get()};
  (void)wire::Send(socket_.get(), frame, {descriptors, 1 + input_.Below(2)});
}

void HostileClient::Store() {
  const Pool region = PickRegion();
  wire::Store store{.region = region.id, .transfer = input_.Below(16)};
  const uint32_t stream = input_.Below(kHostileStreams);
  const uint32_t first_row = input_.Below(kRegionRows);
  uint32_t depth = input_.Below(8) == 7 ? input_.Below(kHostileDepth) : 0;
  for (uint32_t count = (1 + input_.Below(8)) % 8; count > 0; --count, ++depth) {
    wire::StoreItem item{.block = (first_row + depth) % std::max(region.blocks, 1u),
                         .hash = HostileHash(stream, depth)};
    if (input_.Below(32) == 31) item.block = input_.Byte();
    item.tokens = input_.Below(32) == 31 ? input_.Below(18) : 16;
    item.depth = depth;
    if (depth > 0) item.parent = HostileHash(stream, depth - 1);
    item.retention = input_.Below(4) == 3 ? RetentionClass::kMemory : RetentionClass::kExtended;
    store.items.push_back(item);
  }
  Send(store);
}

void HostileClient::Load() {
  const Pool region = PickRegion();
  wire::Load load{.region = region.id, .transfer = input_.Below(16)};
  if (input_.Below(4) == 3) load.order = wire::LoadOrder::kLayers;
  if (load.order == wire::LoadOrder::kLayers && input_.Below(2) == 1) {
    // Picks one of few slots, so that loads under way share some; now and then no layer is counted
    // so.
    const uint32_t slot = kCounterPageBytes / kCounterSlotBytes / 2 + input_.Below(4);
    const uint32_t layers = 1 + input_.Below(16) % 2;
    load.counter = {.offset = slot * kCounterSlotBytes, .base = input_.Byte(), .steps = layers};
    if (input_.Below(16) == 15) load.counter->offset = input_.Byte() * 4u;
  }
  const uint32_t stream = input_.Below(kHostileStreams);
  const uint32_t first_row = input_.Below(kRegionRows);
  for (uint32_t i = (1 + input_.Below(8)) % 8; i > 0; --i) {
    uint32_t row = (first_row + i) % std::max(region.blocks, 1u);
    if (input_.Below(32) == 31) row = input_.Byte();
    load.items.push_back({.block = row, .hash = HostileHash(stream, input_.Below(kHostileDepth))});
  }
  Send(load);
}

void HostileClient::Ask() {
  const std::vector<BlockHash> hashes = PickHashes();
  switch (input_.Below(4)) {
    case 0:
      return Send(wire::Lookup{.pool = PickPool(), .hashes = hashes});
    case 1:
      return Send(wire::Stats{});
    case 2:
      return Send(wire::Ping{});
    default:
      // Leaves a pool and attaches one while it is still given back. Without a choice, so that
      // inputs which are kept still mean what they did.
      Send(wire::Detach{.pool = pools_.empty() ? PoolId(1) : pools_.back().id});
      return Send(wire::Attach{.model = wire::ModelId(1)});
  }
}

void HostileClient::SendRaw() {
  std::vector<std::byte> frame(wire::kFrameHeaderBytes + input_.Below(64));
  frame[0] = static_cast<std::byte>(frame.size() - wire::kFrameHeaderBytes);
  frame[4] = static_cast<std::byte>(input_.Byte());
  frame[6] = static_cast<std::byte>(input_.Below(8) == 7 ? input_.Byte() : 0);
  frame[8] = static_cast<std::byte>(input_.Byte());
  for (std::byte& byte : std::span(frame).subspan(wire::kFrameHeaderBytes)) {
    byte = static_cast<std::byte>(input_.Byte());
  }
  SendBytes(std::move(frame));
}

void HostileClient::SendBytes(std::vector<std::byte> frame, int descriptor) {
  if (std::exchange(corrupt_next_, false)) {
    // Not its length, after which nothing is understood: the frame decoder has a fuzzer of its own.
    const size_t position = 4 + (256 * size_t{input_.Byte()} + input_.Byte()) % (frame.size() - 4);
    frame[position] ^= static_cast<std::byte>(1u << input_.Below(8));
  }
  // Requests are small: they fit into the socket's buffer, or the daemon has stopped reading.
  (void)wire::Send(socket_.get(), frame, {&descriptor, descriptor < 0 ? 0u : 1u});
}

bool HostileClient::Receive() {
  while (true) {
    // Descriptors are closed on arrival.
    const auto bytes = wire::Receive(socket_.get(), decoder_.Prepare(), nullptr);
    if (!bytes || *bytes == size_t{0}) return false;
    if (!*bytes) return true;
    decoder_.Commit(**bytes);
    while (true) {
      const auto frame = decoder_.Next();
      if (!frame || !*frame) break;
      OnFrame(**frame);
    }
  }
}

void HostileClient::OnFrame(const wire::Frame& frame) {
  switch (static_cast<wire::MessageType>(frame.type)) {
    case wire::MessageType::kAttachReply: {
      const auto reply = wire::Decode<wire::AttachReply>(frame.payload).value();
      return pools_.push_back({reply.pool, reply.blocks});
    }
    case wire::MessageType::kOpenRegionReply: {
      const auto reply = wire::Decode<wire::OpenRegionReply>(frame.payload).value();
      return regions_.push_back({reply.region, asked_[frame.request_id]});
    }
    case wire::MessageType::kAcquireReply:
      return OnAcquired(wire::Decode<wire::AcquireReply>(frame.payload).value());
    default:
      return;
  }
}

void HostileClient::OnAcquired(const wire::AcquireReply& reply) {
  for (const wire::AcquireReply::Part& part : reply.parts) {
    for (const AcquiredBlock& hit : part.hits) blocks_.push_back(hit.handle);
    blocks_.insert(blocks_.end(), part.new_blocks.begin(), part.new_blocks.end());
    if (!part.new_blocks.empty()) new_blocks_ = part.new_blocks;
  }
  if (blocks_.size() <= kMaxKnownBlocks) return;
  blocks_.erase(blocks_.begin(), blocks_.end() - static_cast<ptrdiff_t>(kMaxKnownBlocks));
}

}  // namespace kvtier
