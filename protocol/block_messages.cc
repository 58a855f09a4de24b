// SPDX-License-Identifier: Apache-2.0
#include "protocol/block_messages.h"

#include <tuple>

#include "protocol/frame.h"
#include "protocol/frame_writer.h"
#include "protocol/payload_reader.h"

namespace kvtier::wire {
namespace {

constexpr uint32_t kNoPartialBlock = UINT32_MAX;
constexpr size_t kHandleBytes = 8;
constexpr size_t kHitBytes = kHandleBytes + sizeof(uint16_t) + sizeof(uint8_t);
constexpr uint32_t kMaxHits = kMaxHashesPerCall + 1;  // and a tail

constexpr uint8_t kHasParent = 1 << 0;
constexpr uint8_t kHasChecksum = 1 << 1;
// Handle, hash, bits, tokens, depth, retention.
constexpr size_t kCommitItemMinBytes = kHandleBytes + sizeof(BlockHash) + 1 + 2 + 4 + 1;
constexpr size_t kCommitItemMaxBytes =
    kCommitItemMinBytes + sizeof(BlockHash) + sizeof(PayloadChecksum);
static_assert(kFrameHeaderBytes + 8 + kMaxCommitsPerCall * kCommitItemMaxBytes <= kMaxFrameBytes);

// Position, code, reason.
constexpr size_t kItemErrorMinBytes = 4 + 2 + 2;
constexpr size_t kItemErrorMaxBytes = kItemErrorMinBytes + 1 + kMaxReasonBytes;
static_assert(kFrameHeaderBytes + 4 + kMaxBlocksPerCall * kItemErrorMaxBytes <= kMaxFrameBytes);

Tier ReadTier(PayloadReader* reader) { return reader->ReadEnum(Tier::kPool, Tier::kDisk); }

bool ReadBool(PayloadReader* reader) { return reader->ReadBits(1) != 0; }

void WriteAcquire(const Acquire& acquire, FrameWriter* writer) {
  writer->Reserve(16 + acquire.hashes.size_bytes() + acquire.partial_blocks.size_bytes());
  writer->Write(acquire.pool.value);
  writer->WriteCount(acquire.new_blocks, kMaxBlocksPerCall);
  writer->WriteHashes(acquire.hashes, kMaxHashesPerCall);
  writer->WriteHashes(acquire.partial_blocks, kMaxPartialBlocksPerCall);
}

Acquire ReadAcquire(PayloadReader* reader) {
  Acquire acquire;
  acquire.pool = PoolId{reader->Read<uint32_t>()};
  acquire.new_blocks = reader->ReadCount(kMaxBlocksPerCall, 0, "too_many_blocks");
  acquire.hashes = reader->ReadHashes(kMaxHashesPerCall, "too_many_hashes");
  acquire.partial_blocks = reader->ReadHashes(kMaxPartialBlocksPerCall, "too_many_partial_blocks");
  return acquire;
}

void WriteAcquireReply(const AcquireReply& reply, FrameWriter* writer) {
  writer->Reserve(21 + reply.hits.size() * kHitBytes + reply.new_blocks.size() * kHandleBytes);
  writer->Write(reply.load.value);
  writer->Write(reply.miss_reason);
  writer->Write(reply.partial_block.value_or(kNoPartialBlock));
  writer->WriteCount(reply.hits.size(), kMaxHits);
  writer->WriteCount(reply.new_blocks.size(), kMaxBlocksPerCall);
  writer->WriteRows(reply.hits.size(), [&reply](size_t i) {
    const AcquireHit& hit = reply.hits[i];
    return std::tuple(hit.handle.index.value, hit.handle.generation, hit.tokens,
                      static_cast<uint8_t>(hit.tier));
  });
  writer->WriteHandles(reply.new_blocks);
}

AcquireReply ReadAcquireReply(PayloadReader* reader) {
  AcquireReply reply;
  reply.load = LoadId{reader->Read<uint64_t>()};
  reply.miss_reason = reader->Read<uint8_t>();
  const auto partial_block = reader->Read<uint32_t>();
  if (partial_block != kNoPartialBlock) reply.partial_block = partial_block;
  if (reply.partial_block >= kMaxPartialBlocksPerCall) {
    reader->Fail(ErrorCode::kInvalidArgument, "bad_partial_block", partial_block);
  }
  reply.hits.resize(reader->ReadCount(kMaxHits, kHitBytes, "too_many_hashes"));
  reply.new_blocks.resize(reader->ReadCount(kMaxBlocksPerCall, kHandleBytes, "too_many_blocks"));
  for (AcquireHit& hit : reply.hits) {
    hit.handle = reader->ReadHandle();
    hit.tokens = reader->Read<uint16_t>();
    hit.tier = ReadTier(reader);
  }
  for (BlockHandle& handle : reply.new_blocks) handle = reader->ReadHandle();
  return reply;
}

}  // namespace

void Acquire::Encode(uint64_t request_id, std::vector<std::byte>* out) const {
  FrameWriter writer(kType, 0, request_id, out);
  WriteAcquire(*this, &writer);
}

Result<Acquire> Acquire::Decode(std::span<const std::byte> payload) {
  PayloadReader reader(kType, payload);
  const Acquire acquire = ReadAcquire(&reader);
  KVT_RETURN_IF_ERROR(reader.Finish());
  return acquire;
}

void AcquireReply::Encode(uint64_t request_id, std::vector<std::byte>* out) const {
  FrameWriter writer(kType, 0, request_id, out);
  WriteAcquireReply(*this, &writer);
}

Result<AcquireReply> AcquireReply::Decode(std::span<const std::byte> payload) {
  PayloadReader reader(kType, payload);
  AcquireReply reply = ReadAcquireReply(&reader);
  KVT_RETURN_IF_ERROR(reader.Finish());
  return reply;
}

void AcquireCounted::Encode(uint64_t request_id, std::vector<std::byte>* out) const {
  FrameWriter writer(kType, 0, request_id, out);
  writer.Write(static_cast<uint8_t>(order));
  WriteAcquire(acquire, &writer);
}

Result<AcquireCounted> AcquireCounted::Decode(std::span<const std::byte> payload) {
  PayloadReader reader(kType, payload);
  AcquireCounted counted;
  counted.order = reader.ReadEnum(LoadOrder::kBlocks, LoadOrder::kLayers);
  counted.acquire = ReadAcquire(&reader);
  KVT_RETURN_IF_ERROR(reader.Finish());
  return counted;
}

void AcquireCountedReply::Encode(uint64_t request_id, std::vector<std::byte>* out) const {
  FrameWriter writer(kType, 0, request_id, out);
  const LoadCounter written = counter.value_or(LoadCounter{});
  writer.Write(written.offset);
  writer.Write(written.base);
  writer.Write(written.steps);
  WriteAcquireReply(acquired, &writer);
}

Result<AcquireCountedReply> AcquireCountedReply::Decode(std::span<const std::byte> payload) {
  PayloadReader reader(kType, payload);
  AcquireCountedReply reply;
  const LoadCounter counter{reader.Read<uint32_t>(), reader.Read<uint32_t>(),
                            reader.Read<uint32_t>()};
  if (counter.offset % sizeof(uint32_t) != 0) {
    reader.Fail(ErrorCode::kInvalidArgument, "bad_counter", counter.offset);
  }
  if (counter.steps > 0) {
    reply.counter = counter;
  } else if (counter != LoadCounter{}) {
    reader.Fail(ErrorCode::kInvalidArgument, "bad_counter", counter.steps);
  }
  reply.acquired = ReadAcquireReply(&reader);
  KVT_RETURN_IF_ERROR(reader.Finish());
  return reply;
}

void LoadProgress::Encode(uint64_t request_id, std::vector<std::byte>* out) const {
  FrameWriter writer(kType, 0, request_id, out);
  writer.Write(load.value);
  writer.Write(ready);
  writer.Write(static_cast<uint8_t>(finished));
  writer.Write(miss_reason);
}

Result<LoadProgress> LoadProgress::Decode(std::span<const std::byte> payload) {
  PayloadReader reader(kType, payload);
  LoadProgress progress;
  progress.load = LoadId{reader.Read<uint64_t>()};
  progress.ready = reader.Read<uint32_t>();
  progress.finished = ReadBool(&reader);
  progress.miss_reason = reader.Read<uint8_t>();
  KVT_RETURN_IF_ERROR(reader.Finish());
  return progress;
}

void Commit::Encode(uint64_t request_id, bool want_reply, std::vector<std::byte>* out) const {
  FrameWriter writer(kType, want_reply ? kFlagWantReply : 0, request_id, out);
  writer.Reserve(8 + items.size() * kCommitItemMaxBytes);
  writer.Write(pool.value);
  writer.WriteCount(items.size(), kMaxCommitsPerCall);
  for (const CommitItem& item : items) {
    writer.WriteHandles({&item.block, 1});
    writer.WriteDigest(item.hash);
    const int bits = (item.parent ? kHasParent : 0) | (item.checksum ? kHasChecksum : 0);
    writer.Write(static_cast<uint8_t>(bits));
    writer.Write(item.tokens);
    writer.Write(item.depth);
    writer.Write(static_cast<uint8_t>(item.retention));
    if (item.parent) writer.WriteDigest(*item.parent);
    if (item.checksum) writer.WriteDigest(*item.checksum);
  }
}

Result<Commit> Commit::Decode(std::span<const std::byte> payload) {
  PayloadReader reader(kType, payload);
  Commit commit;
  commit.pool = PoolId{reader.Read<uint32_t>()};
  commit.items.resize(reader.ReadCount(kMaxCommitsPerCall, kCommitItemMinBytes, "too_many_blocks"));
  for (CommitItem& item : commit.items) {
    item.block = reader.ReadHandle();
    item.hash = reader.ReadDigest<32>();
    const uint8_t bits = reader.ReadBits(kHasParent | kHasChecksum);
    item.tokens = reader.Read<uint16_t>();
    item.depth = reader.Read<uint32_t>();
    item.retention = reader.ReadEnum(RetentionClass::kMemory, RetentionClass::kExtended);
    if ((bits & kHasParent) != 0) item.parent = reader.ReadDigest<32>();
    if ((bits & kHasChecksum) != 0) item.checksum = reader.ReadDigest<16>();
  }
  KVT_RETURN_IF_ERROR(reader.Finish());
  return commit;
}

void CommitReply::Encode(uint64_t request_id, std::vector<std::byte>* out) const {
  FrameWriter writer(kType, 0, request_id, out);
  writer.WriteCount(items.size(), kMaxCommitsPerCall);
  for (const Item& item : items) {
    const bool failed = item.outcome == CommitOutcome::kFailed;
    writer.Write(item.position);
    writer.Write(static_cast<uint8_t>(item.outcome));
    writer.Write(failed ? static_cast<uint16_t>(item.code) : uint16_t{0});
    writer.WriteCutText(failed ? item.reason : std::string(), kMaxReasonBytes);
  }
}

Result<CommitReply> CommitReply::Decode(std::span<const std::byte> payload) {
  PayloadReader reader(kType, payload);
  CommitReply reply;
  reply.items.resize(
      reader.ReadCount(kMaxCommitsPerCall, kItemErrorMinBytes + 1, "too_many_blocks"));
  for (Item& item : reply.items) {
    item.position = reader.Read<uint32_t>();
    item.outcome = reader.ReadEnum(CommitOutcome::kDuplicate, CommitOutcome::kFailed);
    if (item.outcome == CommitOutcome::kFailed) {
      item.code = reader.ReadErrorCode();
      item.reason = reader.ReadRawText(kMaxReasonBytes);
    } else if (reader.Read<uint32_t>() != 0) {
      reader.Fail(ErrorCode::kInvalidArgument, "unknown_bits", item.position);
    }
  }
  KVT_RETURN_IF_ERROR(reader.Finish());
  return reply;
}

void Release::Encode(uint64_t request_id, bool want_reply, std::vector<std::byte>* out) const {
  FrameWriter writer(kType, want_reply ? kFlagWantReply : 0, request_id, out);
  writer.Reserve(8 + blocks.size() * kHandleBytes);
  writer.Write(pool.value);
  writer.WriteCount(blocks.size(), kMaxBlocksPerCall);
  writer.WriteHandles(blocks);
}

Result<Release> Release::Decode(std::span<const std::byte> payload) {
  PayloadReader reader(kType, payload);
  Release release;
  release.pool = PoolId{reader.Read<uint32_t>()};
  release.blocks.resize(reader.ReadCount(kMaxBlocksPerCall, kHandleBytes, "too_many_blocks"));
  for (BlockHandle& handle : release.blocks) handle = reader.ReadHandle();
  KVT_RETURN_IF_ERROR(reader.Finish());
  return release;
}

void ReleaseReply::Encode(uint64_t request_id, std::vector<std::byte>* out) const {
  FrameWriter writer(kType, 0, request_id, out);
  writer.WriteCount(errors.size(), kMaxBlocksPerCall);
  for (const Item& item : errors) {
    writer.Write(item.position);
    writer.Write(static_cast<uint16_t>(item.code));
    writer.WriteCutText(item.reason, kMaxReasonBytes);
  }
}

Result<ReleaseReply> ReleaseReply::Decode(std::span<const std::byte> payload) {
  PayloadReader reader(kType, payload);
  ReleaseReply reply;
  reply.errors.resize(reader.ReadCount(kMaxBlocksPerCall, kItemErrorMinBytes, "too_many_blocks"));
  for (Item& item : reply.errors) {
    item.position = reader.Read<uint32_t>();
    item.code = reader.ReadErrorCode();
    item.reason = reader.ReadRawText(kMaxReasonBytes);
  }
  KVT_RETURN_IF_ERROR(reader.Finish());
  return reply;
}

}  // namespace kvtier::wire
