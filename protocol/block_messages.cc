// SPDX-License-Identifier: Apache-2.0
#include "protocol/block_messages.h"

#include "protocol/frame.h"
#include "protocol/message_codec.h"

namespace kvtier::wire {
namespace {

// The prefix, and a partial block behind it.
constexpr uint32_t kMaxHits = kMaxHashesPerCall + 1;

// The largest replies and requests fit a frame.
constexpr size_t kMaxCommitItemBytes = 8 + 32 + 1 + 2 + 4 + 1 + 32 + 16;
static_assert(kFrameHeaderBytes + 8 + kMaxCommitsPerCall * kMaxCommitItemBytes <= kMaxFrameBytes);
constexpr size_t kMaxItemErrorBytes = 4 + 1 + 2 + 2 + kMaxReasonBytes;
static_assert(kFrameHeaderBytes + 4 + kMaxBlocksPerCall * kMaxItemErrorBytes <= kMaxFrameBytes);

constexpr uint8_t kPresenceBits = kPresentInPool | kPresentInHost | kPersistedOnDisk;

constexpr auto kHandleFields = [](auto& io, auto& handle) { io.Handle(handle); };

void ErrorFields(auto& io, auto& item) {
  io.OneOf(item.code, ErrorCode::kInvalidArgument, ErrorCode::kInternal);
  io.CutText(item.reason, kMaxReasonBytes);
}

void CounterFields(auto& io, Like<LoadCounter> auto& counter) {
  io.Number(counter.offset);
  io.Number(counter.base);
  io.Number(counter.steps);
  io.Check(counter.offset % sizeof(uint32_t) == 0, "bad_counter", counter.offset);
  io.Check(counter.steps > 0, "bad_counter", counter.steps);
}

}  // namespace

void Fields(auto& io, Like<Acquire> auto& m) {
  io.Number(m.pool);
  io.Count(m.new_blocks, kMaxBlocksPerCall, "too_many_blocks");
  io.OneOf(m.order, LoadOrder::kBlocks, LoadOrder::kLayers);
  io.Hashes(m.hashes, kMaxHashesPerCall, "too_many_hashes");
  io.Hashes(m.partial_blocks, kMaxPartialBlocksPerCall, "too_many_partial_blocks");
}
KVT_DEFINE_MESSAGE(Acquire);

void Fields(auto& io, Like<AcquireReply> auto& m) {
  io.Number(m.load);
  io.Presence(m.counter, m.partial_block);
  if (m.counter) CounterFields(io, *m.counter);
  if (m.partial_block) {
    io.Number(*m.partial_block);
    io.Check(*m.partial_block < kMaxPartialBlocksPerCall, "bad_partial_block", *m.partial_block);
  }
  io.OpenEnum(m.miss);
  io.List(m.hits, kMaxHits, "too_many_hashes", [](auto& item_io, auto& hit) {
    item_io.Handle(hit.handle);
    item_io.Number(hit.tokens);
    item_io.OneOf(hit.tier, Tier::kPool, Tier::kDisk);
  });
  io.List(m.new_blocks, kMaxBlocksPerCall, "too_many_blocks", kHandleFields);
}
KVT_DEFINE_MESSAGE(AcquireReply);

void Fields(auto& io, Like<LoadProgress> auto& m) {
  io.Number(m.progress.load);
  io.Number(m.progress.ready);
  io.Bool(m.progress.finished);
  io.OpenEnum(m.progress.miss);
}
KVT_DEFINE_MESSAGE(LoadProgress);

void Fields(auto& io, Like<Commit> auto& m) {
  io.Number(m.pool);
  io.List(m.items, kMaxCommitsPerCall, "too_many_blocks", [](auto& item_io, auto& item) {
    item_io.Handle(item.block);
    item_io.Bytes(item.hash.bytes);
    item_io.Presence(item.parent, item.checksum);
    item_io.Number(item.tokens);
    item_io.Number(item.depth);
    item_io.OneOf(item.retention, RetentionClass::kMemory, RetentionClass::kExtended);
    if (item.parent) item_io.Bytes(item.parent->bytes);
    if (item.checksum) item_io.Bytes(item.checksum->bytes);
  });
}
KVT_DEFINE_MESSAGE(Commit);

void Fields(auto& io, Like<CommitReply> auto& m) {
  io.List(m.items, kMaxCommitsPerCall, "too_many_blocks", [](auto& item_io, auto& item) {
    item_io.Number(item.position);
    item_io.OneOf(item.outcome, CommitOutcome::kDuplicate, CommitOutcome::kFailed);
    if (item.outcome == CommitOutcome::kFailed) ErrorFields(item_io, item);
  });
}
KVT_DEFINE_MESSAGE(CommitReply);

void Fields(auto& io, Like<Release> auto& m) {
  io.Number(m.pool);
  io.List(m.blocks, kMaxBlocksPerCall, "too_many_blocks", kHandleFields);
}
KVT_DEFINE_MESSAGE(Release);

void Fields(auto& io, Like<ReleaseReply> auto& m) {
  io.List(m.errors, kMaxBlocksPerCall, "too_many_blocks", [](auto& item_io, auto& item) {
    item_io.Number(item.position);
    ErrorFields(item_io, item);
  });
}
KVT_DEFINE_MESSAGE(ReleaseReply);

void Fields(auto& io, Like<Prefetch> auto& m) {
  io.Number(m.pool);
  io.Hashes(m.hashes, kMaxHashesPerCall, "too_many_hashes");
}
KVT_DEFINE_MESSAGE(Prefetch);

void Fields(auto& io, Like<PrefetchReply> auto& m) { io.Number(m.count); }
KVT_DEFINE_MESSAGE(PrefetchReply);

void Fields(auto& io, Like<Lookup> auto& m) {
  io.Number(m.pool);
  io.Hashes(m.hashes, kMaxHashesPerCall, "too_many_hashes");
}
KVT_DEFINE_MESSAGE(Lookup);

void Fields(auto& io, Like<LookupReply> auto& m) {
  io.List(m.presence, kMaxHashesPerCall, "too_many_hashes",
          [](auto& item_io, auto& bits) { item_io.Bits(bits, kPresenceBits); });
}
KVT_DEFINE_MESSAGE(LookupReply);

void Fields(auto& io, Like<Pin> auto& m) {
  io.Number(m.pool);
  io.Number(m.ttl_ms);
  io.Check(m.ttl_ms >= 0, "bad_ttl", m.ttl_ms);
  io.Hashes(m.hashes, kMaxHashesPerCall, "too_many_hashes");
}
KVT_DEFINE_MESSAGE(Pin);

void Fields(auto& io, Like<PinReply> auto& m) { io.Number(m.count); }
KVT_DEFINE_MESSAGE(PinReply);

}  // namespace kvtier::wire
