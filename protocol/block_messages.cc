// SPDX-License-Identifier: Apache-2.0
#include "protocol/block_messages.h"

#include "protocol/frame.h"
#include "protocol/message_codec.h"

namespace kvtier::wire {
namespace {

constexpr const char* kTooManyParts = "too_many_groups";

// The prefix, and a partial block behind it.
constexpr uint32_t kMaxHits = kMaxHashesPerCall + 1;

// The largest replies and requests fit a frame.
constexpr size_t kMaxCommitItemBytes = 8 + 32 + 1 + 2 + 4 + 1 + 32 + 16;
static_assert(kFrameHeaderBytes + 8 + kMaxCommitsPerCall * kMaxCommitItemBytes <= kMaxFrameBytes);
constexpr size_t kMaxItemErrorBytes = 4 + 1 + 2 + 2 + kMaxReasonBytes;
static_assert(kFrameHeaderBytes + 4 + kMaxBlocksPerCall * kMaxItemErrorBytes <= kMaxFrameBytes);

static_assert(kFrameHeaderBytes + 12 + kMaxTokenBlocksPerCall * (32 + 2) +
                  kMaxTokenIdsPerCall * sizeof(uint32_t) <=
              kMaxFrameBytes);

constexpr uint8_t kPresenceBits =
    kPresentInPool | kPresentInHost | kPersistedOnDisk | kInColdStore | kUnverifiedOnDisk;

constexpr auto kHandleFields = [](auto& io, auto& handle) { io.Handle(handle); };

void ErrorFields(auto& io, auto& item) {
  io.OneOf(item.code, ErrorCode::kInvalidArgument, ErrorCode::kInternal);
  io.CutText(item.reason, kMaxReasonBytes);
}

void CostFields(auto& io, auto& us) {
  io.Number(us);
  io.Check(us >= 0 && us <= ComputeCost::kMaxUs, "bad_cost", us);
}

void WishFields(auto& io, auto& wish) {
  io.OneOf(wish.plan, HitPlan::kAll, HitPlan::kCut);
  io.Number(wish.deadline_ms);
  io.Number(wish.tokens);
  CostFields(io, wish.cost.per_token_us);
  CostFields(io, wish.cost.per_pair_us);
  CostFields(io, wish.cost.fixed_us);
}

}  // namespace

void Fields(auto& io, Like<Acquire> auto& m) {
  io.OneOf(m.order, LoadOrder::kBlocks, LoadOrder::kLayers);
  io.Presence(m.wish);
  if (m.wish) WishFields(io, *m.wish);
  io.List(m.parts, kMaxModelGroups, kTooManyParts, [](auto& part_io, auto& part) {
    part_io.Number(part.pool);
    part_io.Count(part.new_blocks, kMaxBlocksPerCall, "too_many_blocks");
    part_io.Hashes(part.hashes, kMaxHashesPerCall, "too_many_hashes");
    part_io.Hashes(part.partial_blocks, kMaxPartialBlocksPerCall, "too_many_partial_blocks");
  });
}
KVT_DEFINE_MESSAGE(Acquire);

void AcquiredFields(auto& io, auto& part) {
  io.Number(part.load);
  io.Presence(part.counter, part.partial_block, part.forecast);
  if (part.counter) CounterFields(io, *part.counter);
  if (part.partial_block) {
    io.Number(*part.partial_block);
    io.Check(*part.partial_block < kMaxPartialBlocksPerCall, "bad_partial_block",
             *part.partial_block);
  }
  if (part.forecast) {
    io.Number(part.forecast->load_us);
    io.Number(part.forecast->ready_us);
  }
  io.OpenEnum(part.miss);
  io.Number(part.first_hit);
  io.List(part.hits, kMaxHits, "too_many_hashes", [](auto& item_io, auto& hit) {
    item_io.Handle(hit.handle);
    item_io.Number(hit.tokens);
    item_io.OneOf(hit.tier, Tier::kPool, Tier::kDisk);
  });
  io.List(part.new_blocks, kMaxBlocksPerCall, "too_many_blocks", kHandleFields);
}

void Fields(auto& io, Like<AcquireReply> auto& m) {
  io.List(m.parts, kMaxModelGroups, kTooManyParts,
          [](auto& part_io, auto& part) { AcquiredFields(part_io, part); });
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

void Fields(auto& io, Like<Resume> auto& m) {
  io.Number(m.pool);
  io.Number(m.session);
  io.Bytes(m.secret.bytes);
  io.Bool(m.more);
  io.List(m.claims, kMaxClaimsPerResume, "too_many_blocks", [](auto& item_io, auto& claim) {
    item_io.Handle(claim.block);
    item_io.Number(claim.references);
    item_io.Check(claim.references > 0, "bad_references", claim.references);
  });
}
KVT_DEFINE_MESSAGE(Resume);

void Fields(auto& io, Like<ResumeReply> auto& m) {
  io.List(m.outcomes, kMaxClaimsPerResume, "too_many_blocks", [](auto& item_io, auto& outcome) {
    item_io.OneOf(outcome, ResumeOutcome::kLost, ResumeOutcome::kReferenced);
  });
}
KVT_DEFINE_MESSAGE(ResumeReply);

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

void Fields(auto& io, Like<Hint> auto& m) {
  io.Number(m.pool);
  io.OneOf(m.hint, SequenceHint::kClosed, SequenceHint::kReturns);
  io.Number(m.returns_in_ms);
  io.Check(m.hint == SequenceHint::kReturns ? m.returns_in_ms >= 0 : m.returns_in_ms == 0,
           "bad_returns_in", m.returns_in_ms);
  io.Hashes(m.hashes, kMaxHashesPerCall, "too_many_hashes");
}
KVT_DEFINE_MESSAGE(Hint);

void Fields(auto& io, Like<HintReply> auto& m) { io.Number(m.count); }
KVT_DEFINE_MESSAGE(HintReply);

void Fields(auto& io, Like<Tokens> auto& m) {
  io.Number(m.pool);
  io.List(m.blocks, kMaxTokenBlocksPerCall, "too_many_blocks", [](auto& item_io, auto& block) {
    item_io.Bytes(block.hash.bytes);
    item_io.Number(block.tokens);
  });
  uint64_t tokens = 0;
  for (const Tokens::Block& block : m.blocks) {
    io.Check(block.tokens > 0, "bad_token_count", 0);
    tokens += block.tokens;
  }
  io.Numbers(m.ids, kMaxTokenIdsPerCall, "too_many_tokens");
  io.Check(tokens == m.ids.size(), "bad_token_count", m.ids.size());
}
KVT_DEFINE_MESSAGE(Tokens);

void Fields(auto& io, Like<TokensReply> auto& m) {
  io.Bool(m.wanted);
  io.Number(m.taken);
}
KVT_DEFINE_MESSAGE(TokensReply);

}  // namespace kvtier::wire
