// SPDX-License-Identifier: Apache-2.0
#include "client/core/group_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "client/core/attachment.h"

namespace kvtier::client {
namespace {

// A request's frame without its parts, and a part without its hashes, rounded up.
constexpr uint64_t kFixedRequestBytes = 64;

constexpr const char* kOtherSession = "other_session";

tl::unexpected<Error> BadReply(std::string context) {
  return MakeError(ErrorCode::kCorrupt, "acquire_reply_invalid", std::move(context));
}

// The links of the groups' attachments, as they stand when a request is made.
using Links = std::vector<LinkPtr>;

Links LinksOf(std::span<const GroupRequest> groups) {
  Links links;
  for (const GroupRequest& group : groups) links.push_back(group.attachment->link());
  return links;
}

// Whether an error is that of a lost session, and all groups can be asked again over the next.
bool ResumeAll(std::span<const GroupRequest> groups, const Links& links, const Error& error) {
  const bool of_session = error.code == ErrorCode::kUnavailable || error.reason == kOtherSession;
  const auto lost = [](const LinkPtr& link) { return !link->session->channel().Poll(); };
  if (!of_session || std::ranges::none_of(links, lost)) return false;
  return std::ranges::all_of(
      groups, [](const GroupRequest& group) { return group.attachment->Live().has_value(); });
}

Status CheckRequest(std::span<const GroupRequest> groups, const Links& links) {
  if (groups.empty()) return MakeError(ErrorCode::kInvalidArgument, "no_group");
  const DaemonSession* const session = links.front()->session.get();
  const wire::HelloReply& limits = session->limits();
  uint64_t hashes = 0, bytes = kFixedRequestBytes;
  for (size_t i = 0; i < groups.size(); ++i) {
    const GroupRequest& group = groups[i];
    if (links[i]->session.get() != session) {
      return MakeError(ErrorCode::kStaleHandle, kOtherSession,
                       "the pools are not attached over one connection");
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

// Checks that the hits are hashes that were asked for, one after the other.
Status CheckHits(const GroupRequest& group, const LoadWish& wish, const AcquiredPart& part) {
  const uint64_t asked = group.hashes.size();
  if (part.forecast.has_value() != wish.any()) return BadReply("an answer to another wish");
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
Status CheckPart(const GroupRequest& group, const LoadCounters& counters, const AcquiredPart& part,
                 wire::LoadOrder order, const LoadWish& wish) {
  KVT_RETURN_IF_ERROR(CheckHits(group, wish, part));
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
  if (counter && (part.load.value == 0 || !counters.Holds(*counter) ||
                  (counts_hits && counter->steps != part.hits.size()))) {
    return BadReply("a counter that counts nothing");
  }
  return {};
}

// Checks what came and registers the loads.
Status TakeAcquired(std::span<const GroupRequest> groups, DaemonSession* session,
                    const wire::Acquire& request, const wire::AcquireReply& reply) {
  const wire::LoadOrder order = request.order;
  if (reply.parts.size() != groups.size()) return BadReply("a wrong number of groups");
  for (size_t i = 0; i < groups.size(); ++i) {
    const AcquiredPart& part = reply.parts[i];
    KVT_RETURN_IF_ERROR(
        CheckPart(groups[i], *session->counters(), part, order, request.wish.value_or(LoadWish{})));
    if (part.load.value == 0) continue;
    KVT_RETURN_IF_ERROR(
        session->loads().Add(part.load, {.hits = static_cast<uint32_t>(part.hits.size()),
                                         .in_layers = order == wire::LoadOrder::kLayers,
                                         .counter = part.counter,
                                         .held = groups[i].holds_load}));
  }
  return {};
}

// The blocks are held from here on, and loads bear the links' mark. Errors: kUnavailable
// "connection_lost" (a link was replaced meanwhile, and all that was acquired over it is lost).
Status HoldAcquired(std::span<const GroupRequest> groups, const Links& links,
                    std::vector<AcquiredPart>* parts) {
  for (size_t i = 0; i < groups.size(); ++i) {
    AcquiredPart& part = (*parts)[i];
    part.load = links[i]->Tagged(part.load);
    if (groups[i].attachment->Hold(links[i], part)) continue;
    for (size_t held = 0; held < i; ++held) {
      std::vector<BlockHandle> blocks = (*parts)[held].new_blocks;
      for (const AcquiredBlock& hit : (*parts)[held].hits) blocks.push_back(hit.handle);
      (void)groups[held].attachment->Release(std::move(blocks), nullptr, DeadlineIn(0));
    }
    return MakeError(ErrorCode::kUnavailable, "connection_lost");
  }
  return {};
}

Result<std::vector<AcquiredPart>> AcquireOver(const Links& links,
                                              std::span<const GroupRequest> groups,
                                              wire::LoadOrder order, Deadline deadline,
                                              const LoadWish& wish) {
  KVT_RETURN_IF_ERROR(CheckRequest(groups, links));
  wire::Acquire request{.order = order, .parts = {}};
  if (wish.any()) request.wish = wish;
  std::vector<PoolId> pools;
  bool asks = false;
  for (size_t i = 0; i < groups.size(); ++i) {
    const GroupRequest& group = groups[i];
    request.parts.push_back({links[i]->pool, group.new_blocks, group.hashes, group.partial_blocks});
    pools.push_back(links[i]->pool);
    asks |= !group.hashes.empty() || !group.partial_blocks.empty() || group.new_blocks > 0;
  }
  // Asking for nothing is answered here.
  if (!asks) return std::vector<AcquiredPart>(groups.size());
  DaemonSession& session = *links.front()->session;
  const Channel::Hooks<wire::AcquireReply> hooks{
      .on_reply =
          [&](const wire::AcquireReply& reply) {
            return TakeAcquired(groups, &session, request, reply);
          },
      .on_cancelled = [&](uint64_t request_id) { session.CancelAcquire(request_id, pools); }};
  KVT_ASSIGN_OR_RETURN(wire::AcquireReply reply,
                       session.channel().Call<wire::AcquireReply>(request, deadline, hooks));
  KVT_RETURN_IF_ERROR(HoldAcquired(groups, links, &reply.parts));
  return std::move(reply.parts);
}

}  // namespace

Result<std::vector<AcquiredPart>> AcquireGroups(std::span<const GroupRequest> groups,
                                                wire::LoadOrder order, Deadline deadline,
                                                const LoadWish& wish) {
  while (true) {
    const Links links = LinksOf(groups);
    Result<std::vector<AcquiredPart>> acquired = AcquireOver(links, groups, order, deadline, wish);
    if (acquired || !ResumeAll(groups, links, acquired.error())) return acquired;
  }
}

}  // namespace kvtier::client
