// SPDX-License-Identifier: Apache-2.0
#include "client/core/group_request.h"

#include <fmt/format.h>

#include <string>

#include "client/core/attachment.h"

namespace kvtier::client {
namespace {

// A request's frame without its parts, and a part without its hashes, rounded up.
constexpr uint64_t kFixedRequestBytes = 64;

tl::unexpected<Error> BadReply(std::string context) {
  return MakeError(ErrorCode::kCorrupt, "acquire_reply_invalid", std::move(context));
}

Status CheckRequest(std::span<const GroupRequest> groups) {
  if (groups.empty()) return MakeError(ErrorCode::kInvalidArgument, "no_group");
  const DaemonSession* const session = groups.front().attachment->session().get();
  const wire::HelloReply& limits = session->limits();
  uint64_t hashes = 0, bytes = kFixedRequestBytes;
  for (const GroupRequest& group : groups) {
    if (group.attachment->session().get() != session) {
      return MakeError(ErrorCode::kStaleHandle, "other_session",
                       "the pools are not attached over one connection");
    }
    if (group.partial_blocks.size() > wire::kMaxPartialBlocksPerCall) {
      return MakeError(ErrorCode::kLimitExceeded, "too_many_partial_blocks",
                       fmt::format("{}, at most {}", group.partial_blocks.size(),
                                   wire::kMaxPartialBlocksPerCall));
    }
    hashes += group.hashes.size();
    bytes += kFixedRequestBytes +
             (group.hashes.size() + group.partial_blocks.size()) * sizeof(BlockHash);
  }
  if (hashes > limits.max_hashes) {
    return MakeError(ErrorCode::kLimitExceeded, "too_many_hashes",
                     fmt::format("{} in one call, at most {}", hashes, limits.max_hashes));
  }
  if (bytes <= limits.max_frame_bytes) return {};
  return MakeError(ErrorCode::kLimitExceeded, "frame_too_long",
                   fmt::format("{} bytes, at most {}", bytes, limits.max_frame_bytes));
}

// Whether the hits are hashes that were asked for, without a gap.
Status CheckHits(const GroupRequest& group, const AcquiredPart& part) {
  const uint64_t asked = group.hashes.size();
  const uint64_t full_hits = part.hits.size() - (part.partial_block ? 1 : 0);
  if (part.partial_block) {
    if (*part.partial_block >= group.partial_blocks.size() || part.hits.empty() ||
        full_hits != asked) {
      return BadReply("a partial block that was not asked for");
    }
  }
  if (part.first_hit > asked || full_hits > asked - part.first_hit) {
    return BadReply("more hits than hashes");
  }
  if (part.new_blocks.size() != group.new_blocks) {
    return BadReply("a wrong number of private blocks");
  }
  return {};
}

// The engine indexes memory with what comes back.
Status CheckPart(const GroupRequest& group, const AcquiredPart& part, wire::LoadOrder order) {
  KVT_RETURN_IF_ERROR(CheckHits(group, part));
  const Attachment& attachment = *group.attachment;
  bool below_pool = false;
  for (const AcquiredBlock& hit : part.hits) {
    if (hit.handle.index.value >= attachment.blocks()) return BadReply("a block outside the pool");
    if (hit.tokens == 0 || hit.tokens > attachment.block_tokens()) {
      return BadReply("a block with too many tokens");
    }
    below_pool |= hit.tier != Tier::kPool;
  }
  if (below_pool && part.load.value == 0) return BadReply("a block to be loaded without a load");
  for (const BlockHandle& allocated : part.new_blocks) {
    if (allocated.index.value >= attachment.blocks()) return BadReply("a block outside the pool");
  }
  const std::optional<wire::LoadCounter>& counter = part.counter;
  const bool counts_hits = order == wire::LoadOrder::kBlocks;
  if (counter && (part.load.value == 0 || !attachment.session()->counters()->Holds(*counter) ||
                  (counts_hits && counter->steps != part.hits.size()))) {
    return BadReply("a counter that counts nothing");
  }
  return {};
}

// Checks what came and registers the loads.
Status TakeAcquired(std::span<const GroupRequest> groups, wire::LoadOrder order,
                    const wire::AcquireReply& reply) {
  if (reply.parts.size() != groups.size()) return BadReply("a wrong number of groups");
  for (size_t i = 0; i < groups.size(); ++i) {
    const AcquiredPart& part = reply.parts[i];
    KVT_RETURN_IF_ERROR(CheckPart(groups[i], part, order));
    if (part.load.value == 0) continue;
    KVT_RETURN_IF_ERROR(groups[i].attachment->session()->loads().Add(
        part.load, {.hits = static_cast<uint32_t>(part.hits.size()),
                    .in_layers = order == wire::LoadOrder::kLayers,
                    .counter = part.counter}));
  }
  return {};
}

}  // namespace

Result<std::vector<AcquiredPart>> AcquireGroups(std::span<const GroupRequest> groups,
                                                wire::LoadOrder order, Deadline deadline) {
  KVT_RETURN_IF_ERROR(CheckRequest(groups));
  wire::Acquire request{.order = order, .parts = {}};
  std::vector<PoolId> pools;
  bool asks = false;
  for (const GroupRequest& group : groups) {
    request.parts.push_back(
        {group.attachment->pool_id(), group.new_blocks, group.hashes, group.partial_blocks});
    pools.push_back(group.attachment->pool_id());
    asks |= !group.hashes.empty() || !group.partial_blocks.empty() || group.new_blocks > 0;
  }
  // Asking for nothing is answered here.
  if (!asks) return std::vector<AcquiredPart>(groups.size());
  DaemonSession& session = *groups.front().attachment->session();
  const Channel::Hooks<wire::AcquireReply> hooks{
      .on_reply =
          [&](const wire::AcquireReply& reply) { return TakeAcquired(groups, order, reply); },
      .on_cancelled = [&](uint64_t request_id) { session.CancelAcquire(request_id, pools); }};
  KVT_ASSIGN_OR_RETURN(wire::AcquireReply reply,
                       session.channel().Call<wire::AcquireReply>(request, deadline, hooks));
  return std::move(reply.parts);
}

Result<wire::LookupReply> LookUpGroups(std::span<const GroupRequest> groups,
                                       const LookupOptions& options, Deadline deadline) {
  KVT_RETURN_IF_ERROR(CheckRequest(groups));
  wire::Lookup request{
      .all_ranks = options.all_ranks, .every_prefix = options.every_prefix, .parts = {}};
  bool asks = false;
  for (const GroupRequest& group : groups) {
    request.parts.push_back({group.attachment->pool_id(), group.hashes});
    asks |= !group.hashes.empty();
  }
  if (!asks) return wire::LookupReply{
        .prefixes = {}, .parts = std::vector<wire::LookupReply::Part>(groups.size())};
  const auto check = [&](const wire::LookupReply& reply) -> Status {
    bool fits = reply.parts.size() == groups.size();
    for (size_t i = 0; fits && i < groups.size(); ++i) {
      fits = reply.parts[i].presence.size() == groups[i].hashes.size();
    }
    if (fits) return {};
    return MakeError(ErrorCode::kCorrupt, "lookup_reply_invalid", "a wrong number of answers");
  };
  return groups.front().attachment->session()->channel().Call<wire::LookupReply>(
      request, deadline, {.on_reply = check});
}

}  // namespace kvtier::client
