// SPDX-License-Identifier: Apache-2.0
// Acquires, of one group of a model or of all of them.
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "client/abi/c_common.h"
#include "client/core/group_request.h"
#include "kvtier/kvtier_groups.h"

namespace kvtier::client {
namespace {

using AttachmentPtr = std::shared_ptr<const Attachment>;

Status CheckGroupCount(size_t count) {
  if (count >= 1 && count <= KVT_MAX_GROUPS) return {};
  return MakeError(ErrorCode::kInvalidArgument, "bad_group_count",
                   fmt::format("{}, 1 to {} can be named", count, int{KVT_MAX_GROUPS}));
}

// Refuses arrays that are too small before anything is sent: blocks that the daemon has granted and
// the reply cannot hold would be lost. Errors: kInvalidArgument "bad_load_order",
// "capacity_too_small"; those of CheckStruct and CheckArray.
Status CheckRequest(const kvt_acquire_request* request, const kvt_acquire_reply* reply) {
  KVT_RETURN_IF_ERROR(CheckStruct(request, "request"));
  if (request->load_order > KVT_LOAD_LAYERS) {
    return MakeError(ErrorCode::kInvalidArgument, "bad_load_order");
  }
  KVT_RETURN_IF_ERROR(CheckArray(request->hashes, request->hash_count, "request.hashes"));
  KVT_RETURN_IF_ERROR(
      CheckArray(request->partial_blocks, request->partial_count, "request.partial_blocks"));
  const size_t hits_max = request->hash_count + (request->partial_count > 0 ? 1 : 0);
  KVT_RETURN_IF_ERROR(CheckArray(reply->hits, hits_max, "reply.hits"));
  KVT_RETURN_IF_ERROR(CheckArray(reply->new_blocks, request->new_blocks, "reply.new_blocks"));
  if (reply->hits_capacity >= hits_max && reply->new_block_capacity >= request->new_blocks) {
    return {};
  }
  return MakeError(ErrorCode::kInvalidArgument, "capacity_too_small",
                   fmt::format("hits {} of {}, allocated {} of {}", reply->hits_capacity, hits_max,
                               reply->new_block_capacity, request->new_blocks));
}

// REQUIRES: CheckRequest has passed, and the part keeps to the request, which AcquireGroups checks.
void FillReply(const AcquiredPart& acquired, uint64_t attachment, kvt_acquire_reply* reply) {
  for (size_t i = 0; i < acquired.hits.size(); ++i) {
    const AcquiredBlock& hit = acquired.hits[i];
    reply->hits[i] = kvt_acquired_block{.block = ToBlock(hit.handle, attachment),
                                        .tokens = hit.tokens,
                                        .tier = static_cast<kvt_tier>(hit.tier),
                                        .reserved = {}};
  }
  for (size_t i = 0; i < acquired.new_blocks.size(); ++i) {
    reply->new_blocks[i] = ToBlock(acquired.new_blocks[i], attachment);
  }
  reply->hit_count = acquired.hits.size();
  reply->new_block_count = acquired.new_blocks.size();
  reply->partial_block = acquired.partial_block.value_or(KVT_NO_PARTIAL_BLOCK);
  reply->load = {acquired.load.value, attachment};
  reply->first_hit = acquired.first_hit;
  reply->miss = static_cast<kvt_miss>(acquired.miss);
}

// The reason goes to all groups, because none of them got anything.
void SetMiss(kvt_acquire_reply* replies, size_t count, kvt_miss miss) {
  for (size_t i = 0; i < count; ++i) replies[i].miss = miss;
}

// One group and several take the same path, in one round trip. Replies are empty after every error;
// their miss tells a daemon that is away from a request that was refused. The order of loads is the
// first request's.
Status Acquire(kvt_pool* const* pools, const kvt_acquire_request* requests, size_t count,
               kvt_acquire_reply* replies) {
  KVT_RETURN_IF_ERROR(CheckGroupCount(count));
  KVT_RETURN_IF_ERROR(CheckPointer(pools, "pools"));
  KVT_RETURN_IF_ERROR(CheckPointer(requests, "request"));
  KVT_RETURN_IF_ERROR(CheckPointer(replies, "reply"));
  for (size_t i = 0; i < count; ++i) {
    KVT_RETURN_IF_ERROR(CheckPointer(pools[i], "pool"));
    KVT_RETURN_IF_ERROR(CheckStruct(&replies[i], "reply"));
    FillReply({}, 0, &replies[i]);
    KVT_RETURN_IF_ERROR(CheckRequest(&requests[i], &replies[i]));
  }
  SetMiss(replies, count, KVT_MISS_UNAVAILABLE);
  std::vector<AttachmentPtr> attachments;
  std::vector<GroupRequest> groups;
  for (size_t i = 0; i < count; ++i) {
    KVT_ASSIGN_OR_RETURN(attachments.emplace_back(), pools[i]->pool->Attached());
    groups.push_back({attachments[i].get(), ToHashes(requests[i].hashes, requests[i].hash_count),
                      ToHashes(requests[i].partial_blocks, requests[i].partial_count),
                      requests[i].new_blocks});
  }
  const Result<std::vector<AcquiredPart>> acquired =
      AcquireGroups(groups, static_cast<wire::LoadOrder>(requests[0].load_order),
                    pools[0]->pool->connection().RequestDeadline());
  if (!acquired) {
    if (acquired.error().code != ErrorCode::kUnavailable) SetMiss(replies, count, KVT_MISS_NONE);
    return tl::unexpected(acquired.error());
  }
  for (size_t i = 0; i < count; ++i) {
    FillReply((*acquired)[i], attachments[i]->id(), &replies[i]);
  }
  return {};
}

}  // namespace

extern "C" {

KVT_API kvt_status kvt_acquire(kvt_pool* pool, const kvt_acquire_request* request,
                               kvt_acquire_reply* reply) {
  return Guard([&] { return Acquire(&pool, request, 1, reply); });
}

KVT_API kvt_status kvt_acquire_groups(kvt_pool* const* pools, const kvt_acquire_request* requests,
                                      size_t count, kvt_acquire_reply* replies) {
  return Guard([&] { return Acquire(pools, requests, count, replies); });
}

}  // extern "C"

}  // namespace kvtier::client
