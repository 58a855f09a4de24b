// SPDX-License-Identifier: Apache-2.0
#include "daemon/session/acquire_handler.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <span>
#include <utility>

#include "base/clock.h"
#include "daemon/session/cold_questions.h"

namespace kvtier {
namespace {

wire::AcquireReply::Part ToWire(AcquireReply acquired, uint32_t first_hit, bool wished) {
  wire::AcquireReply::Part part{.load = acquired.load,
                                .partial_block = acquired.partial_block,
                                .miss = acquired.miss,
                                .first_hit = first_hit,
                                .hits = std::move(acquired.hits),
                                .new_blocks = std::move(acquired.new_blocks)};
  if (wished) part.forecast = acquired.forecast;
  if (const StepCounter* const counter = acquired.counter.get()) {
    part.counter = {
        .offset = counter->offset(), .base = counter->base(), .steps = counter->steps()};
  }
  return part;
}

// A part may be there only because all groups have to be named.
bool AsksForNothing(const wire::Acquire::Part& part) {
  return part.new_blocks == 0 && part.hashes.empty() && part.partial_blocks.empty();
}

uint8_t BitsOf(const BlockPresence& block) {
  return static_cast<uint8_t>((block.pool ? wire::kPresentInPool : 0) |
                              (block.host ? wire::kPresentInHost : 0) |
                              (block.disk ? wire::kPersistedOnDisk : 0) |
                              (block.disk_unverified ? wire::kUnverifiedOnDisk : 0));
}

}  // namespace

Result<ModelHold> AcquireHandler::CheckParts(const std::vector<wire::Acquire::Part>& parts) const {
  ModelHold model;
  uint32_t groups_seen = 0;
  bool hashed = false;
  for (const wire::Acquire::Part& part : parts) {
    KVT_ASSIGN_OR_RETURN(const AttachedPool* const attached, pools_.FindPool(part.pool));
    if (model == nullptr) model = attached->model;
    if (attached->model != model) return MakeError(ErrorCode::kInvalidArgument, "other_model");
    const uint32_t bit = 1u << attached->group;
    if ((groups_seen & bit) != 0) {
      return MakeError(ErrorCode::kInvalidArgument, "group_twice",
                       fmt::format("group {}", attached->group));
    }
    groups_seen |= bit;
    hashed |= !part.hashes.empty();
  }
  if (model == nullptr) return tl::unexpected(EmptyRequest());
  // A prefix of some groups alone would be restored with the other groups' state missing.
  if (hashed && groups_seen + 1 != 1u << model->groups.size()) {
    return MakeError(
        ErrorCode::kInvalidArgument, "group_missing",
        fmt::format("{} of the model's {} groups are named", parts.size(), model->groups.size()));
  }
  return model;
}

Status AcquireHandler::CheckAcquire(const wire::Acquire& request) const {
  KVT_ASSIGN_OR_RETURN(const ModelHold model, CheckParts(request.parts));
  size_t new_blocks = 0, hashes = 0, partial_blocks = 0;
  for (const wire::Acquire::Part& part : request.parts) {
    new_blocks += part.new_blocks;
    hashes += part.hashes.size();
    partial_blocks += part.partial_blocks.size();
  }
  KVT_RETURN_IF_ERROR(CheckCount(config_.server, new_blocks, "too_many_blocks"));
  KVT_RETURN_IF_ERROR(CheckCount(config_.server, hashes, "too_many_hashes"));
  // Hashes, partial blocks and new blocks may each be asked for alone.
  if (std::ranges::all_of(request.parts, AsksForNothing)) return tl::unexpected(EmptyRequest());
  if (request.wish && request.wish->any() && !model->record.IsPlain()) {
    return MakeError(
        ErrorCode::kUnsupported, "wish_of_groups",
        "only a model whose one group is found by all of its blocks takes a wish for hits worth "
        "loading");
  }
  if (partial_blocks > 0 && !model->record.IsPlain()) {
    return MakeError(ErrorCode::kUnsupported, "partial_blocks",
                     "only a model whose one group is found by all of its blocks has them");
  }
  return {};
}

AcquireRequest AcquireHandler::ToCache(const Call& call, const wire::Acquire& request,
                                       const wire::Acquire::Part& part) const {
  const KvGroup& group = pools_.at(part.pool).kv_group();
  return {.session = client_.session,
          .pool = part.pool,
          .hashes = {part.hashes.begin(), part.hashes.end()},
          .partial_blocks = {part.partial_blocks.begin(), part.partial_blocks.end()},
          .new_blocks = part.new_blocks,
          .block_tokens = static_cast<uint16_t>(group.block_tokens),
          .layers = request.order == wire::LoadOrder::kLayers ? group.layers : 0,
          .counters = counters_,
          .wish = request.wish.value_or(LoadWish{}),
          .request_id = call.request_id};
}

Status AcquireHandler::OnAcquire(const Call& call, const wire::Acquire& request) {
  KVT_RETURN_IF_ERROR(CheckAcquire(request));
  // It would get blocks that it never hears of, and they would stay out of use until its process
  // ends.
  if (replies_.connection().deaf()) return MakeError(ErrorCode::kUnavailable, "peer_closed");
  // Counted before the cache is asked, since it may answer within the call. OnAcquired counts down
  // for every answer, and resumes the connection at the same number.
  if (++acquires_in_flight_ == kMaxAcquiresInFlight) replies_.connection().Pause();
  const wire::Acquire::Part& first = request.parts.front();
  if (!pools_.at(first.pool).model->record.IsPlain()) {
    AcquireGroups(call, request);
    return {};
  }
  const bool wished = request.wish.has_value();
  cache_.Acquire(
      ToCache(call, request, first),
      gate_.WhileOpen([this, call, pool = first.pool, wished](Result<AcquireReply> acquired) {
        if (!acquired) return OnAcquired(call, tl::unexpected(std::move(acquired).error()), wished);
        std::vector<GroupAcquire::AcquiredPart> parts;
        parts.push_back({pool, 0, *std::move(acquired)});
        OnAcquired(call, std::move(parts), wished);
      }));
  return {};
}

void AcquireHandler::AcquireGroups(const Call& call, const wire::Acquire& request) {
  std::vector<GroupAcquire::Part> parts;
  for (const wire::Acquire::Part& part : request.parts) {
    const AttachedPool& attached = pools_.at(part.pool);
    AcquireRequest of_part = ToCache(call, request, part);
    std::vector<BlockHash> hashes = std::exchange(of_part.hashes, {});
    parts.push_back({std::move(of_part), std::move(hashes), attached.namespace_id,
                     attached.kv_group().rule(), attached.attachment->MakePass()});
  }
  // The session outlives whatever the gate lets through.
  const GroupAcquire::Listener listener{
      .on_load = [this](LoadId load) { load_events_.Withhold(load); },
      .on_load_dropped = [this](LoadId load) { load_events_.Drop(load); },
      .on_done =
          [this, call, wished = request.wish.has_value()](
              Result<std::vector<GroupAcquire::AcquiredPart>> acquired) {
            OnAcquired(call, std::move(acquired), wished);
          }};
  std::make_shared<GroupAcquire>(&cache_, &loop_, &gate_, std::move(parts), listener)
      ->Start(AskerOfStore());
}

void AcquireHandler::OnAcquired(const Call& call,
                                Result<std::vector<GroupAcquire::AcquiredPart>> acquired,
                                bool wished) {
  // Counted before anything else, because an answer to an ended session counts as well.
  if (acquires_in_flight_-- == kMaxAcquiresInFlight) replies_.connection().Resume();
  if (!acquired) return replies_.Fail(wire::MessageType::kAcquire, call, acquired.error());
  wire::AcquireReply reply;
  for (GroupAcquire::AcquiredPart& part : *acquired) {
    // The cache has taken these references already. They are told to the client by the reply below,
    // and are dropped with the session if that reply never arrives. The pool is attached: a DETACH
    // would have ended the acquire.
    pools_.at(part.pool).held += part.reply.hits.size() + part.reply.new_blocks.size();
    reply.parts.push_back(ToWire(std::move(part.reply), part.first_hit, wished));
  }
  replies_.trace().EndAcquire(call.request_id, reply);
  if (replies_.ended()) return;
  // The reply comes first and the loads' events after it, so that a client never sees an event of a
  // load that it does not know.
  replies_.Send(call, reply);
  for (const wire::AcquireReply::Part& part : reply.parts) load_events_.Announce(part.load);
}

struct AcquireHandler::LookupSteps {
  Call call;
  PoolId pool;
  std::vector<BlockHash> hashes;
  wire::LookupReply reply;  // of the first of them, until the last step
};

Status AcquireHandler::OnLookup(const Call& call, const wire::Lookup& request) {
  KVT_RETURN_IF_ERROR(pools_.Find(request.pool));
  KVT_RETURN_IF_ERROR(CheckHashes(config_.server, request.hashes));
  const auto steps = std::make_shared<LookupSteps>(
      LookupSteps{call, request.pool, {request.hashes.begin(), request.hashes.end()}, {}});
  if (LookUpSome(steps)) {
    replies_.connection().WorkInSteps([this, steps] { return LookUpSome(steps); });
  }
  return {};
}

bool AcquireHandler::LookUpSome(const std::shared_ptr<LookupSteps>& steps) {
  const std::span<const BlockHash> hashes = steps->hashes;
  std::vector<uint8_t>& presence = steps->reply.presence;
  const std::span<const BlockHash> some = replies_.NextItems(hashes, presence.size());
  for (const BlockPresence& block : cache_.Lookup(steps->pool, some)) {
    presence.push_back(BitsOf(block));
  }
  if (presence.size() < hashes.size()) return true;
  AskColdStore(steps);
  return false;
}

ColdAsker AcquireHandler::AskerOfStore() const {
  return [&cache = cache_, deadline_us = 1000 * config_.cache.cold_lookup_deadline_ms,
          since_us = int64_t{0}](PoolId pool, const std::vector<BlockHash>& hashes, ColdAsk ask,
                                 std::function<void(std::vector<bool>)> done) mutable {
    if (since_us == 0) since_us = MonotonicUs();
    if (MonotonicUs() - since_us > deadline_us) return done({});
    cache.AskColdStore(pool, hashes, ask, std::move(done));
  };
}

// Such a lookup waits for others as an acquire does, and counts as one.
void AcquireHandler::AskColdStore(const std::shared_ptr<LookupSteps>& steps) {
  if (!cache_.HasColdStore()) return AnswerLookup(*steps);
  if (++acquires_in_flight_ == kMaxAcquiresInFlight) replies_.connection().Pause();
  const GroupRule rule = pools_.at(steps->pool).kv_group().rule();
  LookUpInColdStore(AskerOfStore(), {steps->pool, rule, steps->hashes}, steps->reply.presence,
                    gate_.WhileOpen([this, steps](const ColdPresence& present) {
                      for (size_t i = 0; i < present[0].size(); ++i) {
                        if (present[0][i] != 0) steps->reply.presence[i] = wire::kInColdStore;
                      }
                      if (acquires_in_flight_-- == kMaxAcquiresInFlight)
                        replies_.connection().Resume();
                      AnswerLookup(*steps);
                    }));
}

// An engine with a region loads in a moment the prefix up to the first block that is in no tier.
void AcquireHandler::AnswerLookup(const LookupSteps& steps) {
  replies_.End(wire::Lookup::kType, steps.call);
  const std::vector<uint8_t>& presence = steps.reply.presence;
  const size_t found = std::ranges::find(presence, 0) - presence.begin();
  if (found > 0) cache_.KeepForRegion(steps.pool, steps.hashes[found - 1]);
  replies_.Send(steps.call, steps.reply);
}

}  // namespace kvtier
