// SPDX-License-Identifier: Apache-2.0
#include "daemon/session/group_acquire.h"

#include <algorithm>
#include <limits>
#include <span>
#include <utility>

namespace kvtier {
namespace {

// How many blocks a full hit would have had beyond the prefix that is served.
uint32_t MissedBlocks(const GroupAcquire::Part& part, const BlockRange& needed) {
  const GroupRule& rule = part.rule;
  const uint64_t all_tokens = part.hashes.size() * uint64_t{rule.block_tokens};
  const BlockRange wanted = NeededBlocks(rule, all_tokens);
  return static_cast<uint32_t>(wanted.size() - std::min(wanted.size(), needed.size()));
}

}  // namespace

// The first try may hope for everything that was asked for.
void GroupAcquire::Start(ColdAsker asker) {
  constexpr uint64_t kAll = std::numeric_limits<uint64_t>::max();
  if (!cache_.HasColdStore()) return Try(FindPrefix(kAll));
  std::vector<ColdSubject> subjects;
  for (const Part& part : parts_) subjects.push_back({part.request.pool, part.rule, part.hashes});
  AskColdStore(std::move(asker), std::move(subjects), LookUp(kAll),
               gate_.WhileOpen([self = shared_from_this()](const ColdPresence& present) {
                 self->cold_ = present;
                 self->Try(self->FindPrefix(kAll));
               }));
}

bool GroupAcquire::Detached() const {
  return std::ranges::any_of(parts_, [](const Part& part) { return !part.attachment.open(); });
}

std::vector<std::vector<uint8_t>> GroupAcquire::LookUp(uint64_t most_tokens) const {
  std::vector<std::vector<uint8_t>> present(parts_.size());
  for (size_t i = 0; i < parts_.size(); ++i) {
    const uint64_t reach = most_tokens / parts_[i].rule.block_tokens;
    const auto hashes =
        std::span(parts_[i].hashes).first(std::min<uint64_t>(reach, parts_[i].hashes.size()));
    for (const BlockPresence& block : cache_.Lookup(parts_[i].namespace_id, hashes)) {
      present[i].push_back(block.anywhere() ? 1 : 0);
    }
  }
  return present;
}

std::vector<GroupPresence> GroupAcquire::Groups(
    const std::vector<std::vector<uint8_t>>& present) const {
  std::vector<GroupPresence> groups;
  groups.reserve(parts_.size());
  for (size_t i = 0; i < parts_.size(); ++i) groups.push_back({parts_[i].rule, present[i]});
  return groups;
}

uint64_t GroupAcquire::FindPrefix(uint64_t most_tokens) const {
  std::vector<std::vector<uint8_t>> present = LookUp(most_tokens);
  for (size_t part = 0; part < cold_.size(); ++part) {
    for (size_t block = 0; block < present[part].size(); ++block) {
      present[part][block] |= cold_[part][block];
    }
  }
  return LongestRestorable(Groups(present));
}

ColdHits GroupAcquire::ColdHitsOf(size_t part, const BlockRange& needed) const {
  ColdHits hits;
  if (cold_.empty()) return hits;
  for (uint64_t block = needed.first; block < needed.end; ++block) {
    if (cold_[part][block] == 0) continue;
    hits.positions.push_back(static_cast<uint32_t>(block - needed.first));
    hits.depths.push_back(EvictionDepth(parts_[part].rule.rule, static_cast<uint32_t>(block)));
  }
  return hits;
}

// A prefix of 0 tokens needs no cached block, so that such a try asks for new blocks only. It
// therefore either succeeds or is refused, and the sequence of tries ends.
void GroupAcquire::Try(uint64_t prefix_tokens) {
  if (Detached()) {
    return listener_.on_done(MakeError(ErrorCode::kCancelled, "pool_detached"));
  }
  ++tries_;
  prefix_tokens_ = prefix_tokens;
  needed_.clear();
  replies_.assign(parts_.size(), {});
  refusal_.reset();
  // One more than there are parts: answers within this call must not finish it.
  unanswered_ = parts_.size() + 1;
  for (size_t i = 0; i < parts_.size(); ++i) {
    const BlockRange needed = needed_.emplace_back(NeededBlocks(parts_[i].rule, prefix_tokens));
    AcquireRequest request = parts_[i].request;
    const auto hashes = std::span(parts_[i].hashes).subspan(needed.first, needed.size());
    request.hashes.assign(hashes.begin(), hashes.end());
    request.cold = ColdHitsOf(i, needed);
    request.missed_blocks = MissedBlocks(parts_[i], needed);
    request.missed_reason = miss_;
    cache_.Acquire(std::move(request),
                   gate_.WhileOpen([self = shared_from_this(), i](Result<AcquireReply> acquired) {
                     self->OnPartAcquired(i, std::move(acquired));
                   }));
  }
  if (--unanswered_ == 0) Finish();
}

// The load is announced to the listener here and not in Finish: the cache may report its progress
// from the next event on, and the session must know by then that the client has not heard of it.
void GroupAcquire::OnPartAcquired(size_t part, Result<AcquireReply> acquired) {
  if (!acquired) {
    refusal_ = std::move(acquired).error();
  } else {
    replies_[part] = *std::move(acquired);
    if (const LoadId load = replies_[part].load; load.value != 0) listener_.on_load(load);
  }
  if (--unanswered_ == 0) Finish();
}

void GroupAcquire::Finish() {
  const bool complete = !refusal_ && !Detached() && ReachableTokens() >= prefix_tokens_;
  if (!complete) {
    // The cache may have called us, and must not be called from there.
    return loop_.Post(gate_.WhileOpen([self = shared_from_this()] { self->RollBack(); }));
  }
  std::vector<AcquiredPart> acquired;
  for (size_t i = 0; i < parts_.size(); ++i) {
    AcquireReply& reply = replies_[i];
    const bool whole = needed_[i].end == parts_[i].hashes.size();
    reply.miss = whole ? MissReason::kNone : miss_;
    acquired.push_back(
        {parts_[i].request.pool, static_cast<uint32_t>(needed_[i].first), std::move(reply)});
  }
  listener_.on_done(std::move(acquired));
}

// Blocks of a kAll group are useful from the first on, so that its hits bound the next try
// directly. Every try that falls short yields a smaller number than its own prefix, so that the
// tries cannot repeat themselves.
uint64_t GroupAcquire::ReachableTokens() const {
  uint64_t tokens = prefix_tokens_;
  for (size_t i = 0; i < parts_.size(); ++i) {
    const uint64_t hits = replies_[i].hits.size();
    if (hits == needed_[i].size()) continue;
    // Windows and states are no use in part; a shorter prefix needs other blocks.
    const GroupRule& rule = parts_[i].rule;
    const uint64_t usable =
        rule.rule == HitRule::kAll ? hits * rule.block_tokens : prefix_tokens_ - 1;
    tokens = std::min(tokens, usable);
  }
  return tokens;
}

void GroupAcquire::RollBack() {
  const uint64_t reachable = refusal_ ? 0 : ReachableTokens();
  for (size_t i = 0; i < parts_.size(); ++i) {
    const AcquireReply& reply = replies_[i];
    if (reply.load.value != 0) listener_.on_load_dropped(reply.load);
    if (reply.miss != MissReason::kNone) miss_ = reply.miss;
    std::vector<BlockHandle> blocks = reply.new_blocks;
    for (const AcquiredBlock& hit : reply.hits) blocks.push_back(hit.handle);
    // The handles of a pool that was left may name blocks that a new attachment holds.
    if (blocks.empty() || !parts_[i].attachment.open()) continue;
    (void)cache_.Release(parts_[i].request.session, parts_[i].request.pool, blocks);
  }
  // A refusal (the pool is full, or the session holds too many references) would meet a shorter
  // prefix as well: the blocks to write are the same. The client hears of it at once.
  if (refusal_) return listener_.on_done(tl::unexpected(*std::move(refusal_)));
  Try(tries_ < kMaxGroupAcquireTries ? FindPrefix(reachable) : 0);
}

}  // namespace kvtier
