// SPDX-License-Identifier: Apache-2.0
// Checks of the whole request come first, so that a request is refused as a whole or its items are
// answered for one by one.
#include "daemon/session/block_handler.h"

#include <fmt/format.h>

#include <utility>

#include "protocol/restorable_prefix.h"

namespace kvtier {

// An item that is refused leaves its block as it was, so that the client may repeat it or release
// the block. The other items of its request are worked on all the same.
Status BlockHandler::CommitOne(PoolId pool, const AttachedPool& attached,
                               const wire::CommitItem& item, bool* duplicate) {
  const KvGroup& group = attached.kv_group();
  if (item.tokens == 0 || item.tokens > group.block_tokens) {
    return MakeError(ErrorCode::kInvalidArgument, "bad_token_count");
  }
  // The depth orders evictions; a bound keeps the arithmetic on it within its type.
  if (item.depth > kMaxBlockPosition) {
    return MakeError(ErrorCode::kInvalidArgument, "bad_depth");
  }
  // A window or a state is of use without the blocks before it.
  const auto parent = group.hit_rule == HitRule::kAll ? item.parent : std::nullopt;
  KVT_ASSIGN_OR_RETURN(const CommitReply committed,
                       cache_.Commit(client_.session, pool,
                                     {.block = item.block,
                                      .hash = item.hash,
                                      .parent = parent,
                                      .tokens = item.tokens,
                                      .depth = EvictionDepth(group.hit_rule, item.depth),
                                      .retention = item.retention,
                                      .checksum = item.checksum}));
  *duplicate = committed.duplicate;
  return {};
}

Status BlockHandler::OnCommit(const Call& call, const wire::Commit& request) {
  KVT_RETURN_IF_ERROR(pools_.FindPool(request.pool));
  if (request.items.empty()) return tl::unexpected(EmptyRequest());
  KVT_RETURN_IF_ERROR(CheckCount(config_, request.items.size(), "too_many_blocks"));
  replies_.WorkInSteps<CommitSteps>({.call = call, .pool = request.pool, .items = request.items},
                                    [this](CommitSteps* steps) { return CommitSome(steps); });
  return {};
}

// No other request of the session is handed out between steps, a DETACH neither, so that at() finds
// the pool. The reply lists only what did not go as asked; with nothing to list and no reply
// wanted, nothing is sent.
bool BlockHandler::CommitSome(CommitSteps* steps) {
  const AttachedPool& attached = pools_.at(steps->pool);
  for (const wire::CommitItem& item : replies_.NextItems(steps->items, steps->done)) {
    bool duplicate = false;
    const uint32_t position = steps->done++;
    const Status committed = CommitOne(steps->pool, attached, item, &duplicate);
    if (!committed) {
      replies_.CountRefusal(committed.error());
      steps->reply.items.push_back({.position = position,
                                    .outcome = wire::CommitOutcome::kFailed,
                                    .code = committed.error().code,
                                    .reason = committed.error().reason});
    } else if (duplicate) {
      steps->reply.items.push_back(
          {.position = position, .outcome = wire::CommitOutcome::kDuplicate});
    }
  }
  if (steps->done < steps->items.size()) return true;
  if (!steps->reply.items.empty() || steps->call.want_reply)
    replies_.Send(steps->call, steps->reply);
  replies_.End(wire::Commit::kType, steps->call);
  return false;
}

Status BlockHandler::OnRelease(const Call& call, const wire::Release& request) {
  KVT_RETURN_IF_ERROR(pools_.FindPool(request.pool));
  if (request.blocks.empty()) return tl::unexpected(EmptyRequest());
  KVT_RETURN_IF_ERROR(CheckCount(config_, request.blocks.size(), "too_many_blocks"));
  replies_.WorkInSteps<ReleaseSteps>({.call = call, .pool = request.pool, .items = request.blocks},
                                     [this](ReleaseSteps* steps) { return ReleaseSome(steps); });
  return {};
}

bool BlockHandler::ReleaseSome(ReleaseSteps* steps) {
  const std::span<const BlockHandle> part = replies_.NextItems(steps->items, steps->done);
  const auto failures = cache_.Release(client_.session, steps->pool, part);
  for (const Cache::ReleaseError& failed : failures) {
    replies_.CountRefusal(failed.error);
    steps->reply.errors.push_back({.position = steps->done + failed.position,
                                   .code = failed.error.code,
                                   .reason = failed.error.reason});
  }
  // Each handle that was accepted gave back exactly one reference that an acquire had counted.
  pools_.at(steps->pool).held -= part.size() - failures.size();
  steps->done += static_cast<uint32_t>(part.size());
  if (steps->done < steps->items.size()) return true;
  if (!steps->reply.errors.empty() || steps->call.want_reply)
    replies_.Send(steps->call, steps->reply);
  replies_.End(wire::Release::kType, steps->call);
  return false;
}

Status BlockHandler::OnPrefetch(const Call& call, const wire::Prefetch& request) {
  KVT_ASSIGN_OR_RETURN(const AttachedPool* const pool, pools_.Find(request.pool));
  KVT_RETURN_IF_ERROR(CheckHashes(config_, request.hashes));
  if (pool->is_region()) {
    PrefetchToHost(call, request);
    return {};
  }
  replies_.WorkInSteps<PrefetchSteps>({.call = call, .pool = request.pool, .items = request.hashes},
                                      [this](PrefetchSteps* steps) { return PrefetchSome(steps); });
  return {};
}

// Goes on as long as everything is found.
bool BlockHandler::PrefetchSome(PrefetchSteps* steps) {
  const std::span<const BlockHash> part = replies_.NextItems(steps->items, steps->done);
  const uint32_t found =
      cache_.Prefetch(steps->pool, part, {client_.session, steps->call.request_id});
  steps->done += found;
  if (found == part.size() && steps->done < steps->items.size()) return true;
  steps->reply.count = steps->done;
  replies_.Send(steps->call, steps->reply);
  replies_.End(wire::Prefetch::kType, steps->call);
  return false;
}

Status BlockHandler::OnPin(const Call& call, const wire::Pin& request) {
  KVT_RETURN_IF_ERROR(pools_.Find(request.pool));
  KVT_RETURN_IF_ERROR(CheckHashes(config_, request.hashes));
  // A pin holds space that other tenants could use; its end must be foreseeable.
  if (request.ttl_ms > kMaxPinTtlMs) {
    return MakeError(ErrorCode::kInvalidArgument, "bad_ttl",
                     fmt::format("{} ms; {} are allowed", request.ttl_ms, kMaxPinTtlMs));
  }
  PinSteps steps{{.call = call, .pool = request.pool, .items = request.hashes}};
  steps.ttl_ms = request.ttl_ms;
  steps.allowed = request.ttl_ms == 0;
  replies_.WorkInSteps<PinSteps>(std::move(steps),
                                 [this](PinSteps* some) { return PinSome(some); });
  return {};
}

// Another client may pin between two steps and so use up the limit: the rest is refused then.
bool BlockHandler::PinSome(PinSteps* steps) {
  const std::span<const BlockHash> part = replies_.NextItems(steps->items, steps->done);
  steps->done += static_cast<uint32_t>(part.size());
  const Result<uint32_t> pinned =
      steps->allowed ? cache_.Pin(client_.session, steps->pool, part, steps->ttl_ms)
                     : cache_.MayPin(steps->pool, part, &steps->more).map([] { return 0u; });
  if (!pinned) {
    replies_.Fail(wire::Pin::kType, steps->call, pinned.error());
    return false;
  }
  steps->reply.count += *pinned;
  if (steps->done < steps->items.size()) return true;
  if (!std::exchange(steps->allowed, true)) {
    steps->done = 0;
    return part.size() < steps->items.size() || PinSome(steps);
  }
  replies_.Send(steps->call, steps->reply);
  replies_.End(wire::Pin::kType, steps->call);
  return false;
}

Status BlockHandler::OnHint(const Call& call, const wire::Hint& request) {
  KVT_RETURN_IF_ERROR(pools_.Find(request.pool));
  KVT_RETURN_IF_ERROR(CheckHashes(config_, request.hashes));
  if (request.returns_in_ms > kMaxReturnsInMs) {
    return MakeError(ErrorCode::kInvalidArgument, "bad_returns_in",
                     fmt::format("{} ms; {} are allowed", request.returns_in_ms, kMaxReturnsInMs));
  }
  HintSteps steps{{.call = call, .pool = request.pool, .items = request.hashes}};
  steps.hint = request.hint;
  steps.returns_in_ms = request.returns_in_ms;
  replies_.WorkInSteps<HintSteps>(std::move(steps),
                                  [this](HintSteps* some) { return HintSome(some); });
  return {};
}

bool BlockHandler::HintSome(HintSteps* steps) {
  const std::span<const BlockHash> part = replies_.LastItems(steps->items, steps->done);
  steps->done += static_cast<uint32_t>(part.size());
  const Result<uint32_t> taken = cache_.Hint(steps->pool, part, steps->hint, steps->returns_in_ms);
  if (!taken) {
    replies_.Fail(wire::Hint::kType, steps->call, taken.error());
    return false;
  }
  steps->reply.count += *taken;
  if (steps->done < steps->items.size()) return true;
  replies_.Send(steps->call, steps->reply);
  replies_.End(wire::Hint::kType, steps->call);
  return false;
}

// Ignores token ids in pools that do not keep them. Blocks of windows and states are cached without
// the blocks before them, so that events could not say where in a prompt ids stand.
Status BlockHandler::OnTokens(const Call& call, const wire::Tokens& request) {
  KVT_ASSIGN_OR_RETURN(const AttachedPool* const pool, pools_.Find(request.pool));
  wire::TokensReply reply{.wanted = pool->kv_group().hit_rule == HitRule::kAll &&
                                    cache_.KeepsTokenIds(request.pool)};
  std::span<const uint32_t> rest = request.ids;
  for (const wire::Tokens::Block& block : request.blocks) {
    if (!reply.wanted) break;
    const auto ids = rest.first(block.tokens);
    rest = rest.subspan(block.tokens);
    if (block.tokens > pool->kv_group().block_tokens) continue;
    reply.taken += cache_.GiveTokenIds(request.pool, block.hash, ids) ? 1 : 0;
  }
  if (call.want_reply) replies_.Send(call, reply);
  return {};
}

void BlockHandler::PrefetchToHost(const Call& call, const wire::Prefetch& request) {
  replies_.connection().Spend(request.hashes.size());
  const auto done = gate_.WhileOpen([this, call](uint32_t in_memory) {
    replies_.End(wire::Prefetch::kType, call);
    replies_.Send(call, wire::PrefetchReply{.count = in_memory});
  });
  cache_.PrefetchToHost(client_.session, request.pool,
                        {request.hashes.begin(), request.hashes.end()}, done);
}

}  // namespace kvtier
