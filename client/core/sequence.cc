// SPDX-License-Identifier: Apache-2.0
#include "client/core/sequence.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "client/core/transfers.h"

namespace kvtier::client {
namespace {

constexpr const char* kPoolFull = "pool_full";

Error LostBlocks(std::string context) {
  return {ErrorCode::kStaleHandle, "connection_lost", std::move(context)};
}

// For a sequence, a lost connection is not a miss but the loss of its blocks.
Error LostIfUnavailable(Error error) {
  if (error.code != ErrorCode::kUnavailable) return error;
  return LostBlocks(error.ToString());
}

// The hits that are what they were asked as: a prefix of reply.hits.
size_t CountGenuineHits(const PrefixPlan& plan, const AcquiredPart& reply, uint32_t block_tokens) {
  for (size_t i = 0; i < reply.hits.size(); ++i) {
    const bool is_partial = reply.partial_block && i + 1 == reply.hits.size();
    const uint16_t expected = is_partial ? plan.partial_tokens[*reply.partial_block]
                                         : static_cast<uint16_t>(block_tokens);
    if (reply.hits[i].tokens != expected) return i;
  }
  return reply.hits.size();
}

Status CopyBlock(const Attachment& attachment, const BlockCopier& copier, BlockHandle target,
                 BlockHandle source) {
  const uint64_t bytes = attachment.block_bytes();
  const uint64_t target_offset = target.index.value * bytes;
  const uint64_t source_offset = source.index.value * bytes;
  if (copier) {
    if (copier(target_offset, source_offset, bytes)) return {};
    return MakeError(ErrorCode::kIoError, "copy_failed", "the caller's copy function failed");
  }
  PoolMapping& mapping = *attachment.mapping();
  if (std::byte* const base = mapping.base(); base != nullptr) {
    std::memcpy(base + target_offset, base + source_offset, bytes);
    return {};
  }
  KVT_ASSIGN_OR_RETURN(const auto device, mapping.OnDevice());
  return device->Copy(target_offset, source_offset, bytes);
}

// The daemon allocates no more in one call.
uint32_t MaxNewBlocks(const Attachment& attachment) {
  return std::max<uint32_t>(1, attachment.link()->session->limits().max_blocks);
}

// Blocks from `first` on, before `end`, with so many tokens each.
struct BlockSpan {
  size_t first = 0;
  size_t end = 0;
  uint16_t tokens = 0;
};

// Tells the daemon the ids of the blocks. They are no part of the sequence: errors are ignored.
void TellTokens(const Attachment& attachment, const SequenceTokens& tokens,
                const BlockSpan& blocks) {
  if (blocks.first == blocks.end) return;
  std::vector<BlockHash> hashes;
  for (size_t block = blocks.first; block < blocks.end; ++block) {
    hashes.push_back(tokens.HashOf(block, blocks.tokens));
  }
  const std::vector<uint16_t> counts(hashes.size(), blocks.tokens);
  const auto ids = tokens.ids().subspan(blocks.first * size_t{attachment.block_tokens()},
                                        hashes.size() * blocks.tokens);
  (void)attachment.TellTokenIds(hashes, counts, ids);
}

}  // namespace

Sequence::Sequence(std::shared_ptr<const Attachment> attachment, SequenceOptions options,
                   SequenceTokens tokens)
    : attachment_(std::move(attachment)),
      options_(std::move(options)),
      tokens_(std::move(tokens)),
      resumes_(attachment_->link()->resumes) {}

Sequence::~Sequence() {
  std::vector<BlockHandle> held = std::move(blocks_);
  if (copy_source_) held.push_back(*copy_source_);
  ReleaseBlocks(std::move(held));
}

Result<std::unique_ptr<Sequence>> Sequence::Open(std::shared_ptr<const Attachment> attachment,
                                                 SequenceOptions options,
                                                 std::span<const uint32_t> tokens) {
  if (!attachment->record().IsPlain()) {
    return MakeError(ErrorCode::kUnsupported, "sequence_of_groups",
                     "sequences are of models whose one group is found by all of its blocks");
  }
  KVT_ASSIGN_OR_RETURN(const HashRecipe recipe, ParseHashRecipe(attachment->record().hash_recipe));
  KVT_RETURN_IF_ERROR(options.identity.CheckFor(recipe));
  if (!options.identity.prompt_embeds.empty()) {
    return MakeError(ErrorCode::kInvalidArgument, "bad_prompt_embeds",
                     "a sequence grows by tokens: hash its blocks with kvt_hash_blocks");
  }
  // With a LoRA, say, the ids alone would speak of another block.
  const bool by_tokens_alone = !options.identity.HasKeys();
  BlockHasher hasher(attachment->block_tokens(), recipe, std::exchange(options.identity, {}));
  SequenceTokens of_sequence(std::move(hasher), attachment->block_tokens());
  of_sequence.Append(tokens);
  std::unique_ptr<Sequence> sequence(
      new Sequence(std::move(attachment), std::move(options), std::move(of_sequence)));
  KVT_RETURN_IF_ERROR(sequence->AcquirePrefix());
  if (by_tokens_alone) {
    const Result<bool> wanted = sequence->attachment_->WantsTokenIds(sequence->RequestDeadline());
    sequence->tells_tokens_ = wanted && *wanted;
  }
  return sequence;
}

Status Sequence::AcquirePrefix() {
  KVT_RETURN_IF_ERROR(AcquireMore());
  if (!found_all_) {
    KVT_RETURN_IF_ERROR(GrowTo(BlocksOf(tokens_.size() + options_.reserve_tokens, block_tokens())));
  }
  if (load_.value != 0) return {};
  return Settle();
}

// A call names a limited number of blocks. Where all of them are found, another call asks for those
// behind: at once, or when the found ones have been loaded.
Status Sequence::AcquireMore() {
  do {
    PrefixPlan plan = PrefixPlan::Make(
        tokens_.hasher(), tokens_.ids(), options_.leave_tokens, options_.reserve_tokens,
        attachment_->link()->session->limits().max_hashes, cached_blocks_);
    const size_t most = cached_blocks_ + plan.full_blocks + 1 + plan.new_blocks;
    if (most > attachment_->blocks() && plan.MayCopy(block_tokens())) {
      plan.LeaveOutPartial(block_tokens());
    }
    Result<AcquiredPart> reply = Ask(plan);
    if (!reply && reply.error().reason == kPoolFull && plan.MayCopy(block_tokens())) {
      plan.LeaveOutPartial(block_tokens());
      reply = Ask(plan);
    }
    if (!reply) return tl::unexpected(std::move(reply).error());
    const size_t expected = cached_blocks_ + plan.full_blocks;
    AdoptHits(plan, *reply);
    found_all_ = !plan.is_last && cached_blocks_ == expected;
  } while (found_all_ && load_.value == 0);
  return {};
}

Result<AcquiredPart> Sequence::Ask(const PrefixPlan& plan) const {
  LoadWish wish;
  if (cached_blocks_ == 0) {
    wish = options_.wish;
    wish.tokens = static_cast<uint32_t>(std::min<uint64_t>(tokens_.size(), UINT32_MAX));
  }
  return attachment_->Acquire(
      std::span(tokens_.hasher().hashes()).subspan(cached_blocks_, plan.full_blocks),
      plan.partial_blocks, std::min(plan.new_blocks, MaxNewBlocks(*attachment_)), RequestDeadline(),
      wire::LoadOrder::kBlocks, wish);
}

void Sequence::AdoptHits(const PrefixPlan& plan, const AcquiredPart& reply) {
  const size_t hits = CountGenuineHits(plan, reply, block_tokens());
  const size_t before = cached_tiers_.size();  // of an earlier call
  if (before == 0) forecast_ = reply.forecast.value_or(LoadForecast{});
  const bool has_partial = reply.partial_block && hits == reply.hits.size();
  uint64_t covered = (before + hits - (has_partial ? 1 : 0)) * uint64_t{block_tokens()};
  if (has_partial) covered += plan.partial_tokens[*reply.partial_block];
  cached_end_ = std::min(covered, plan.usable_tokens);
  cached_blocks_ = cached_end_ / block_tokens();
  shared_blocks_ = cached_blocks_;
  computed_tokens_ = cached_end_;
  const bool copies = cached_end_ % block_tokens() != 0;

  std::vector<BlockHandle> unused;
  for (size_t i = 0; i < reply.hits.size(); ++i) {
    const AcquiredBlock& hit = reply.hits[i];
    const size_t block = before + i;
    if (block < cached_blocks_) {
      blocks_.push_back(hit.handle);
    } else if (block == cached_blocks_ && copies) {
      copy_source_ = hit.handle;
    } else {
      unused.push_back(hit.handle);
      continue;
    }
    cached_tiers_.push_back(hit.tier);
  }
  blocks_.insert(blocks_.end(), reply.new_blocks.begin(), reply.new_blocks.end());
  ReleaseBlocks(std::move(unused));
  load_ = reply.load;
  load_hold_ = attachment_->HoldOf(load_);
  load_first_ = static_cast<uint32_t>(before);
  load_hits_ = static_cast<uint32_t>(cached_tiers_.size() - before);
  miss_ = reply.miss;
}

Status Sequence::Wait(Deadline deadline) {
  while (!ready_ && load_.value != 0) {
    const LoadGoal goal{.hits = load_hits_};
    const Result<LoadState> state = attachment_->Wait(load_, goal, deadline);
    if (!state && state.error().code == ErrorCode::kUnavailable) {
      // A load does not survive its daemon, but the sequence may.
      KVT_RETURN_IF_ERROR(Check());
      continue;
    }
    if (!state) return tl::unexpected(state.error());
    KVT_RETURN_IF_ERROR(goal.Check(*state));
    const LoadProgress& progress = state->progress;
    if (progress.ready < load_hits_) {
      miss_ = progress.miss;
      LoseHitsFrom(load_first_ + progress.ready);
      found_all_ = false;
    }
    load_ = LoadId{};
    load_hold_.reset();
    if (std::exchange(found_all_, false)) {
      const Status more = AcquireMore();
      if (!more) return tl::unexpected(LostIfUnavailable(more.error()));
    }
  }
  if (ready_) return Check();
  const Status settled = Settle();
  return settled ? settled : tl::unexpected(LostIfUnavailable(settled.error()));
}

void Sequence::LoseHitsFrom(uint32_t ready) {
  std::vector<BlockHandle> lost;
  if (copy_source_) lost.push_back(*std::exchange(copy_source_, std::nullopt));
  if (ready < cached_blocks_) {
    const auto first = blocks_.begin() + ready;
    const auto end = blocks_.begin() + static_cast<ptrdiff_t>(cached_blocks_);
    lost.insert(lost.begin(), first, end);
    blocks_.erase(first, end);
    cached_blocks_ = ready;
  }
  cached_tiers_.resize(ready);
  cached_end_ = cached_blocks_ * uint64_t{block_tokens()};
  shared_blocks_ = cached_blocks_;
  computed_tokens_ = cached_end_;
  ReleaseBlocks(std::move(lost));
}

Status Sequence::Settle() {
  KVT_RETURN_IF_ERROR(GrowTo(BlocksOf(tokens_.size() + options_.reserve_tokens, block_tokens())));
  if (copy_source_) {
    KVT_RETURN_IF_ERROR(
        CopyBlock(*attachment_, options_.copier, blocks_[cached_blocks_], *copy_source_));
    // The bytes of a source that is not held any more may have been another block's when they were
    // copied. It is the last hit.
    const Status held = attachment_->CheckHeld({&*copy_source_, 1});
    if (held) {
      ReleaseBlocks({*std::exchange(copy_source_, std::nullopt)});
    } else if (held.error().code == ErrorCode::kUnavailable) {
      return held;
    } else {
      miss_ = kMissUnavailable;
      LoseHitsFrom(static_cast<uint32_t>(cached_tiers_.size() - 1));
    }
  }
  ready_ = true;
  return {};
}

// More than the pool has is not asked for: in parts, it would drive out all that is cached.
Status Sequence::GrowTo(size_t count, BlockHandle* spare) {
  if (count > attachment_->blocks()) return MakeError(ErrorCode::kResourceExhausted, kPoolFull);
  const size_t present = blocks_.size();
  const size_t wanted = std::max(count, present) + (spare == nullptr ? 0 : 1);
  while (blocks_.size() < wanted) {
    const size_t asked = std::min<size_t>(wanted - blocks_.size(), MaxNewBlocks(*attachment_));
    const Result<AcquiredPart> reply =
        attachment_->Acquire({}, {}, static_cast<uint32_t>(asked), RequestDeadline());
    if (!reply) {
      ShrinkTo(present);
      return tl::unexpected(reply.error());
    }
    blocks_.insert(blocks_.end(), reply->new_blocks.begin(), reply->new_blocks.end());
  }
  if (spare != nullptr) {
    *spare = blocks_.back();
    blocks_.pop_back();
  }
  return {};
}

void Sequence::ShrinkTo(size_t count) {
  const auto first = blocks_.begin() + static_cast<ptrdiff_t>(count);
  ReleaseBlocks({first, blocks_.end()});
  blocks_.erase(first, blocks_.end());
}

Status Sequence::Append(std::span<const uint32_t> tokens) {
  KVT_RETURN_IF_ERROR(CheckReady());
  if (tokens.empty()) return {};
  const size_t present = blocks_.size();
  // A partial block that was committed is immutable: its copy takes the new tokens.
  BlockHandle copy;
  const Status grown = GrowTo(BlocksOf(tokens_.size() + tokens.size(), block_tokens()),
                              partial_committed_ ? &copy : nullptr);
  if (!grown) return tl::unexpected(LostIfUnavailable(grown.error()));
  if (partial_committed_) {
    Status copied = CopyBlock(*attachment_, options_.copier, copy, blocks_[shared_blocks_ - 1]);
    // The copied bytes are the block's only if it was held all the while.
    if (copied) copied = Check();
    if (!copied) {
      ReleaseBlocks({copy});
      ShrinkTo(present);
      return copied;
    }
    ReleaseBlocks({std::exchange(blocks_[--shared_blocks_], copy)});
    partial_committed_ = false;
  }
  tokens_.Append(tokens);
  return {};
}

Status Sequence::MarkComputed(uint64_t tokens) {
  KVT_RETURN_IF_ERROR(CheckReady());
  if (tokens > tokens_.size()) {
    return MakeError(ErrorCode::kInvalidArgument, "too_many_tokens",
                     fmt::format("{} of {}", tokens, tokens_.size()));
  }
  if (tokens <= computed_tokens_) return {};
  const size_t full_blocks = tokens / block_tokens();
  if (full_blocks > shared_blocks_) {
    KVT_RETURN_IF_ERROR(CommitBlocks(shared_blocks_, full_blocks, std::nullopt));
  }
  computed_tokens_ = tokens;
  return {};
}

Status Sequence::Finish() {
  KVT_RETURN_IF_ERROR(CheckReady());
  const uint64_t partial_tokens = computed_tokens_ % block_tokens();
  if (partial_tokens == 0 || partial_committed_) return {};
  const uint64_t first = computed_tokens_ - partial_tokens;
  if (tokens_.size() > computed_tokens_) {
    return MakeError(ErrorCode::kWrongState, "tokens_not_computed",
                     fmt::format("{} of {} are computed; a committed block cannot be written",
                                 computed_tokens_, tokens_.size()));
  }
  KVT_RETURN_IF_ERROR(CommitBlocks(first / block_tokens(), first / block_tokens() + 1,
                                   static_cast<uint16_t>(partial_tokens)));
  partial_committed_ = true;
  return {};
}

Status Sequence::CommitBlocks(size_t first, size_t end, std::optional<uint16_t> partial_tokens) {
  const uint16_t tokens = partial_tokens.value_or(static_cast<uint16_t>(block_tokens()));
  std::vector<wire::CommitItem> items;
  items.reserve(end - first);
  for (size_t block = first; block < end; ++block) {
    items.push_back(tokens_.ItemOf(block, blocks_[block], tokens, options_.retention));
  }
  if (tells_tokens_) TellTokens(*attachment_, tokens_, {first, end, tokens});
  const Status sent = attachment_->Commit(std::move(items), nullptr, RequestDeadline());
  if (!sent) return tl::unexpected(LostIfUnavailable(sent.error()));
  shared_blocks_ = end;
  return {};
}

Result<std::unique_ptr<Sequence>> Sequence::Fork() {
  KVT_RETURN_IF_ERROR(CheckReady());
  SequenceOptions options = options_;
  options.reserve_tokens = 0;
  std::unique_ptr<Sequence> fork(new Sequence(attachment_, std::move(options), tokens_));
  fork->tells_tokens_ = tells_tokens_;
  if (const Status shared = fork->ShareBlocksOf(*this); !shared) {
    return tl::unexpected(LostIfUnavailable(shared.error()));
  }
  // The copied bytes are this sequence's only if its blocks were held all the while.
  KVT_RETURN_IF_ERROR(Check());
  return fork;
}

Status Sequence::ShareBlocksOf(const Sequence& parent) {
  const size_t full = parent.shared_blocks_ - (parent.partial_committed_ ? 1 : 0);
  const size_t asked = std::min<size_t>(full, attachment_->link()->session->limits().max_hashes);
  PrefixPlan plan{.usable_tokens = parent.computed_tokens_, .full_blocks = asked};
  if (parent.partial_committed_ && asked == full) {
    plan.partial_tokens = {static_cast<uint16_t>(parent.computed_tokens_ % block_tokens())};
    plan.partial_blocks = {parent.tokens_.HashOf(full, plan.partial_tokens[0])};
  }
  const size_t needed = BlocksOf(tokens_.size(), block_tokens());
  const uint32_t allocated =
      std::min(static_cast<uint32_t>(needed - full), MaxNewBlocks(*attachment_));
  KVT_ASSIGN_OR_RETURN(const AcquiredPart reply,
                       attachment_->Acquire(std::span(tokens_.hasher().hashes()).first(asked),
                                            plan.partial_blocks, allocated, RequestDeadline()));
  AdoptHits(plan, reply);
  // The parent's blocks stand, so whatever cannot be shared is copied.
  if (load_.value != 0) {
    KVT_RETURN_IF_ERROR(Wait(RequestDeadline()));
  } else {
    KVT_RETURN_IF_ERROR(Settle());
  }
  return CopyBlocksOf(parent, cached_blocks_);
}

Status Sequence::CopyBlocksOf(const Sequence& parent, size_t first) {
  if (cached_end_ < parent.computed_tokens_) {
    for (size_t block = first; block < BlocksOf(parent.computed_tokens_, block_tokens()); ++block) {
      KVT_RETURN_IF_ERROR(
          CopyBlock(*attachment_, options_.copier, blocks_[block], parent.blocks_[block]));
      cached_tiers_.resize(block + 1, Tier::kPool);
    }
  }
  cached_end_ = computed_tokens_ = parent.computed_tokens_;
  cached_blocks_ = shared_blocks_;
  return {};
}

// The last blocks first, where one call cannot name all: whether a block is this sequence's alone
// depends on those that follow it.
Result<uint32_t> Sequence::Hint(SequenceHint hint, int64_t returns_in_ms) {
  KVT_RETURN_IF_ERROR(Check());
  const size_t full = shared_blocks_ - (partial_committed_ ? 1 : 0);
  std::vector<BlockHash> hashes(tokens_.hasher().hashes().begin(),
                                tokens_.hasher().hashes().begin() + static_cast<ptrdiff_t>(full));
  if (partial_committed_) {
    hashes.push_back(
        tokens_.HashOf(full, static_cast<uint16_t>(computed_tokens_ % block_tokens())));
  }
  const size_t most = std::max<size_t>(attachment_->link()->session->limits().max_hashes, 1);
  uint32_t taken = 0;
  for (size_t end = hashes.size(); end > 0;) {
    const size_t begin = end - std::min(end, most);
    const auto part = std::span(hashes).subspan(begin, end - begin);
    const Result<uint32_t> answer = attachment_->Hint(part, hint, returns_in_ms, RequestDeadline());
    if (!answer) return tl::unexpected(LostIfUnavailable(answer.error()));
    taken += *answer;
    end = begin;
  }
  return taken;
}

std::array<uint64_t, kTierCount> Sequence::TokensByTier() const {
  std::array<uint64_t, kTierCount> tokens{};
  for (size_t hit = 0; hit < cached_tiers_.size(); ++hit) {
    const uint64_t first = hit * block_tokens();
    tokens[static_cast<size_t>(cached_tiers_[hit])] +=
        std::min<uint64_t>(block_tokens(), cached_end_ - first);
  }
  return tokens;
}

Status Sequence::Check() {
  const Result<LinkPtr> link = attachment_->Live();
  if (link && !lost_) return (*link)->resumes == resumes_ ? Status() : Resume(**link);
  return tl::unexpected(LostBlocks("the daemon no longer protects this sequence's blocks"));
}

// A load's own mark says whether it has ended: it may have begun over this link, in the call that
// resumed the attachment.
Status Sequence::Resume(const Link& link) {
  if (!ready_ && (load_.value == 0 || !link.Untagged(load_))) EndLoadEarly();
  const auto is_lost = [this](BlockHandle block) { return IsLost(block); };
  if (std::ranges::any_of(blocks_, is_lost)) {
    lost_ = true;
    return tl::unexpected(LostBlocks("a block was lost when the daemon was started anew"));
  }
  KVT_RETURN_IF_ERROR(CommitAgain());
  // The next daemon has none of blocks that memory alone brought over.
  if (tells_tokens_) {
    const size_t full = shared_blocks_ - (partial_committed_ ? 1 : 0);
    TellTokens(*attachment_, tokens_, {0, full, static_cast<uint16_t>(block_tokens())});
  }
  resumes_ = link.resumes;
  return {};
}

void Sequence::EndLoadEarly() {
  load_ = LoadId{};
  load_hold_.reset();
  found_all_ = false;
  const auto end = blocks_.begin() + static_cast<ptrdiff_t>(cached_blocks_);
  const auto lost =
      std::find_if(blocks_.begin(), end, [this](auto block) { return IsLost(block); });
  if (lost == end && (!copy_source_ || !IsLost(*copy_source_))) return;
  miss_ = kMissUnavailable;
  LoseHitsFrom(static_cast<uint32_t>(lost - blocks_.begin()));
}

Status Sequence::CommitAgain() {
  for (size_t i = 0; i < shared_blocks_; ++i) {
    if (attachment_->OutcomeSince(resumes_, blocks_[i]) != ResumeOutcome::kPrivate) continue;
    const bool partial = partial_committed_ && i + 1 == shared_blocks_;
    const auto tokens =
        static_cast<uint16_t>(partial ? computed_tokens_ % block_tokens() : block_tokens());
    const Status sent = attachment_->Commit(
        {tokens_.ItemOf(i, blocks_[i], tokens, options_.retention)}, nullptr, RequestDeadline());
    if (!sent) return tl::unexpected(LostIfUnavailable(sent.error()));
  }
  return {};
}

Status Sequence::CheckReady() {
  if (ready_) return Check();
  return MakeError(ErrorCode::kWrongState, "not_ready", "the cached prefix must be waited for");
}

void Sequence::ReleaseBlocks(std::vector<BlockHandle> blocks) const {
  if (attachment_->link()->resumes != resumes_) {
    std::erase_if(blocks, [this](BlockHandle block) { return IsLost(block); });
  }
  if (blocks.empty()) return;
  // On failure the connection is gone, and the references with it.
  (void)attachment_->Release(std::move(blocks), nullptr, RequestDeadline());
}

}  // namespace kvtier::client
