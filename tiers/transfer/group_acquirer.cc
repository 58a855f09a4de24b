// SPDX-License-Identifier: Apache-2.0
#include "tiers/transfer/group_acquirer.h"

#include <algorithm>
#include <span>
#include <utility>

namespace kvtier {
namespace {

using Present = std::vector<std::vector<uint8_t>>;

// How many blocks a full hit would have had beyond the prefix that is served.
uint32_t MissedBlocks(const GroupPart& part, const BlockRange& needed) {
  const uint64_t all_tokens = part.request.hashes.size() * uint64_t{part.rule.block_tokens};
  const BlockRange wanted = NeededBlocks(part.rule, all_tokens);
  return static_cast<uint32_t>(wanted.size() - std::min(wanted.size(), needed.size()));
}

std::vector<GroupPresence> Groups(const std::vector<GroupPart>& parts, const Present& present) {
  std::vector<GroupPresence> groups;
  groups.reserve(parts.size());
  for (size_t i = 0; i < parts.size(); ++i) groups.push_back({parts[i].rule, present[i]});
  return groups;
}

// The needed blocks that the store has; `in_store` is empty if the store was not asked.
ColdHits ColdHitsOf(const GroupRule& rule, std::span<const uint8_t> in_store,
                    const BlockRange& needed) {
  ColdHits hits;
  for (uint64_t block = needed.first; block < std::min<uint64_t>(needed.end, in_store.size());
       ++block) {
    if (in_store[block] == 0) continue;
    hits.positions.push_back(static_cast<uint32_t>(block - needed.first));
    hits.depths.push_back(EvictionDepth(rule.rule, static_cast<uint32_t>(block)));
  }
  return hits;
}

// A next try may hope for so many tokens after what a part got in this one; `prefix_tokens` if it
// got all that it needs. Blocks of a kAll group are useful from the first on, so that its hits
// bound the next try directly; windows and states are no use in part. Every try that falls short
// yields a smaller number than its own prefix, so that the tries cannot repeat themselves.
uint64_t ReachableTokens(const GroupRule& rule, const BlockRange& needed, uint64_t hits,
                         uint64_t prefix_tokens) {
  if (hits == needed.size()) return prefix_tokens;
  const uint64_t usable = rule.rule == HitRule::kAll ? hits * rule.block_tokens : prefix_tokens - 1;
  return std::min(prefix_tokens, usable);
}

}  // namespace

// The first try may hope for everything that was asked for.
void GroupAcquirer::Acquire(std::vector<GroupPart> parts, Done done) {
  const uint64_t number = next_number_++;
  const Operation& operation =
      operations_.try_emplace(number, Operation{.parts = std::move(parts), .done = std::move(done)})
          .first->second;
  std::vector<ColdQuestion> questions;
  if (ask_) questions = ColdQuestions(Groups(operation.parts, LookUp(operation, kAll)));
  if (questions.empty()) return Try(number, FindPrefix(operation, kAll));
  std::vector<ColdSubject> subjects;
  for (const GroupPart& part : operation.parts) {
    subjects.push_back({part.request.pool, part.request.hashes});
  }
  AskColdStore(ask_, subjects, std::move(questions),
               gate_.WhileOpen([this, number](const ColdPresence& present) {
                 const auto asking = operations_.find(number);
                 if (asking == operations_.end()) return;
                 asking->second.cold = present;
                 asking->second.next_tokens = kAll;
                 state_.SchedulePump();
               }));
}

Present GroupAcquirer::LookUp(const Operation& operation, uint64_t most_tokens) {
  Present present;
  for (const GroupPart& part : operation.parts) {
    const std::vector<BlockHash>& hashes = part.request.hashes;
    const uint64_t reach = std::min<uint64_t>(most_tokens / part.rule.block_tokens, hashes.size());
    const NamespaceId namespace_id = state_.blocks.FindPool(part.request.pool)->namespace_id;
    std::vector<uint8_t>& of_part = present.emplace_back();
    EntryIndex before = kNoEntry;
    for (const BlockHash& hash : std::span(hashes).first(reach)) {
      MissReason miss = MissReason::kNone;
      before = finder_.Servable(before, {namespace_id, hash}, &miss);
      of_part.push_back(before == kNoEntry ? 0 : 1);
    }
  }
  return present;
}

uint64_t GroupAcquirer::FindPrefix(const Operation& operation, uint64_t most_tokens) {
  Present present = LookUp(operation, most_tokens);
  for (size_t part = 0; part < operation.cold.size(); ++part) {
    for (size_t block = 0; block < present[part].size(); ++block) {
      present[part][block] |= operation.cold[part][block];
    }
  }
  const std::vector<uint64_t> longest = RestorablePrefixes(Groups(operation.parts, present), 1);
  return longest.empty() ? 0 : longest.front();
}

// A prefix of 0 tokens needs no cached block, so that such a try asks for new blocks only. It
// therefore either succeeds or is refused, and the sequence of tries ends.
void GroupAcquirer::Try(uint64_t number, uint64_t prefix_tokens) {
  Operation& operation = operations_.at(number);
  const size_t parts = operation.parts.size();
  ++operation.tries;
  operation.prefix_tokens = prefix_tokens;
  operation.needed.clear();
  operation.replies.assign(parts, {});
  // One more than there are parts: answers within this call must not finish it.
  operation.unanswered = parts + 1;
  for (size_t i = 0; i < parts; ++i) {
    const GroupPart& part = operation.parts[i];
    const BlockRange needed = operation.needed.emplace_back(NeededBlocks(part.rule, prefix_tokens));
    AcquireRequest request = part.request;
    const auto hashes = std::span(part.request.hashes).subspan(needed.first, needed.size());
    request.hashes.assign(hashes.begin(), hashes.end());
    request.cold = ColdHitsOf(
        part.rule, operation.cold.empty() ? std::span<const uint8_t>() : operation.cold[i], needed);
    request.missed_blocks = MissedBlocks(part, needed);
    request.missed_reason = operation.miss;
    request.closes_load = false;
    serve_(std::move(request), [this, number, i, session = part.request.session,
                                pool = part.request.pool](Result<AcquireReply> acquired) {
      const auto asking = operations_.find(number);
      if (asking != operations_.end()) {
        return OnPartAcquired(asking, i, std::move(acquired));
      }
      // The session has left the pool of another part since.
      if (acquired) GiveBack(session, pool, *acquired);
    });
  }
  if (--operation.unanswered == 0) Finish(operations_.find(number));
}

void GroupAcquirer::OnPartAcquired(Operations::iterator found, size_t part,
                                   Result<AcquireReply> acquired) {
  Operation& operation = found->second;
  if (acquired) {
    operation.replies[part] = *std::move(acquired);
  } else {
    operation.refusal = std::move(acquired).error();
  }
  if (--operation.unanswered == 0) Finish(found);
}

// A refusal (the pool is full, or the session holds too many references) would meet a shorter
// prefix as well: the blocks to write are the same. The client hears of it at once.
void GroupAcquirer::Finish(Operations::iterator found) {
  Operation& operation = found->second;
  uint64_t reachable = operation.prefix_tokens;
  for (size_t i = 0; i < operation.parts.size(); ++i) {
    reachable = std::min(
        reachable, ReachableTokens(operation.parts[i].rule, operation.needed[i],
                                   operation.replies[i].hits.size(), operation.prefix_tokens));
  }
  if (!operation.refusal && reachable == operation.prefix_tokens) return Answer(found);
  for (size_t i = 0; i < operation.parts.size(); ++i) {
    const AcquireReply& reply = operation.replies[i];
    if (reply.miss != MissReason::kNone) operation.miss = reply.miss;
    GiveBack(operation.session(), operation.parts[i].request.pool, reply);
  }
  if (operation.refusal) {
    const Done done = std::move(operation.done);
    Error refusal = *std::move(operation.refusal);
    operations_.erase(found);
    return done(tl::unexpected(std::move(refusal)));
  }
  // Not here: this may be called in the midst of the acquirer's own work.
  operation.next_tokens = operation.tries < kMaxGroupAcquireTries ? reachable : 0;
  state_.SchedulePump();
}

void GroupAcquirer::Answer(Operations::iterator found) {
  Operation operation = std::move(found->second);
  operations_.erase(found);
  std::vector<GroupReply> replies;
  std::vector<LoadId> loads;
  for (size_t i = 0; i < operation.parts.size(); ++i) {
    AcquireReply& reply = operation.replies[i];
    const bool whole = operation.needed[i].end == operation.parts[i].request.hashes.size();
    reply.miss = whole ? MissReason::kNone : operation.miss;
    if (reply.load.value != 0) loads.push_back(reply.load);
    replies.push_back({operation.parts[i].request.pool,
                       static_cast<uint32_t>(operation.needed[i].first), std::move(reply)});
  }
  operation.done(std::move(replies));
  // Not before: the client must know the load that is reported on.
  for (const LoadId load : loads) loads_.Close(load);
}

void GroupAcquirer::GiveBack(SessionId session, PoolId pool_id, const AcquireReply& reply) {
  if (reply.load.value != 0) loads_.Discard(reply.load);
  if (reply.hits.empty() && reply.new_blocks.empty()) return;
  CachePool* const pool = state_.blocks.FindPool(pool_id);
  ReleasedBlocks released(&state_, pool);
  // The session may have released by a guess what it was not told of.
  for (const BlockHandle& block : reply.new_blocks) {
    (void)sessions_.Release(session, pool, block, &released);
  }
  for (const AcquiredBlock& hit : reply.hits) {
    (void)sessions_.Release(session, pool, hit.handle, &released);
  }
}

bool GroupAcquirer::Pump() {
  std::vector<uint64_t> waiting;
  for (const auto& [number, operation] : operations_) {
    if (operation.next_tokens) waiting.push_back(number);
  }
  for (const uint64_t number : waiting) {
    Operation& operation = operations_.at(number);
    Try(number, FindPrefix(operation, *std::exchange(operation.next_tokens, std::nullopt)));
  }
  return !waiting.empty();
}

// The operations are taken out before the first is answered: an answer must not meet half of them.
void GroupAcquirer::Cancel(SessionId session, std::optional<PoolId> pool) {
  std::vector<Operation> cancelled;
  for (auto next = operations_.begin(); next != operations_.end();) {
    const auto operation = next++;
    const auto in_pool = [&](const GroupPart& part) { return part.request.pool == *pool; };
    if (operation->second.session() != session) continue;
    if (pool && std::ranges::none_of(operation->second.parts, in_pool)) continue;
    cancelled.push_back(std::move(operation->second));
    operations_.erase(operation);
  }
  for (Operation& operation : cancelled) {
    for (size_t i = 0; i < operation.replies.size(); ++i) {
      const PoolId of_part = operation.parts[i].request.pool;
      AcquireReply& reply = operation.replies[i];
      // The session gives these blocks back with all that it holds there.
      if (!pool || of_part == *pool) {
        reply.hits.clear();
        reply.new_blocks.clear();
      }
      GiveBack(session, of_part, reply);
    }
    operation.done(MakeError(ErrorCode::kCancelled, pool ? "pool_detached" : "session_closed"));
  }
}

}  // namespace kvtier
