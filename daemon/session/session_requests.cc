// SPDX-License-Identifier: Apache-2.0
// A session's work for each request.
//
// Three kinds are told apart here: requests that are answered within the call, requests that are
// worked on in steps because they name many items, and requests that an event of the cache answers.
// Checks of the whole request come first, so that a request is refused as a whole or its items are
// answered for one by one.

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "daemon/session/session.h"

namespace kvtier {
namespace {

constexpr const char* kTooManyHashes = "too_many_hashes";
constexpr const char* kTooManyBlocks = "too_many_blocks";
constexpr const char* kPoolBytesReturning = "pool_bytes_returning";

// How often, and for how long, an attach is tried while pools without clients are closed for it: a
// second less than clients wait for a reply.
constexpr int64_t kAttachAgainMs = 5;
constexpr int64_t kAttachPatienceMs = 4000;
// Attaches of one session that may wait so.
constexpr uint32_t kMaxAttachesWaiting = 16;
// Models that a session holds without a pool of theirs. A client may register model after model in
// one session, one for each change of its weights, for ever.
constexpr size_t kMaxRegisteredHeld = 16;

// Requests that spend as they go, because they may name more items than one turn at the loop
// allows.
constexpr bool WorkedInSteps(wire::MessageType message) {
  return message == wire::MessageType::kCommit || message == wire::MessageType::kRelease ||
         message == wire::MessageType::kLookup || message == wire::MessageType::kPrefetch ||
         message == wire::MessageType::kStore || message == wire::MessageType::kLoad;
}

// Whether the request is answered by an event of its own, where its trace ends as well.
constexpr bool AnsweredLater(wire::MessageType message) {
  return WorkedInSteps(message) || message == wire::MessageType::kAttach ||
         message == wire::MessageType::kAcquire || message == wire::MessageType::kAttend ||
         message == wire::MessageType::kCloseRegion || message == wire::MessageType::kOpenRegion ||
         message == wire::MessageType::kWorkspace;
}

}  // namespace

template <typename Message>
void Session::Handle(const wire::Frame& frame,
                     Status (Session::*handler)(const Call&, const Message&)) {
  const Call call{frame.request_id, (frame.flags & wire::kFlagWantReply) != 0};
  const Result<Message> message = wire::Decode<Message>(frame.payload);
  if (!message) return Refuse(call, message.error());
  const RequestTrace::Asked asked = RequestTrace::AskedBy(*message);
  // A request that is worked on in steps spends in each of them.
  if (!WorkedInSteps(Message::kType)) connection_.Spend(asked.blocks + asked.new_blocks);
  trace_.Begin(Message::kType, call.request_id, asked);
  const Status handled = (this->*handler)(call, *message);
  if (!handled) Refuse(call, handled.error());
  if (!handled || !AnsweredLater(Message::kType)) {
    trace_.End(Message::kType, call.request_id, !handled);
  }
}

void Session::Dispatch(const wire::Frame& frame) {
  using Type = wire::MessageType;
  switch (static_cast<Type>(frame.type)) {
    case Type::kRegisterModel:
      return Handle(frame, &Session::OnRegisterModel);
    case Type::kDevices:
      return Handle(frame, &Session::OnDevices);
    case Type::kAttach:
      return Handle(frame, &Session::OnAttach);
    case Type::kDetach:
      return Handle(frame, &Session::OnDetach);
    case Type::kAcquire:
      return Handle(frame, &Session::OnAcquire);
    case Type::kCommit:
      return Handle(frame, &Session::OnCommit);
    case Type::kRelease:
      return Handle(frame, &Session::OnRelease);
    case Type::kPrefetch:
      return Handle(frame, &Session::OnPrefetch);
    case Type::kLookup:
      return Handle(frame, &Session::OnLookup);
    case Type::kPin:
      return Handle(frame, &Session::OnPin);
    case Type::kHint:
      return Handle(frame, &Session::OnHint);
    case Type::kStats:
      return Handle(frame, &Session::OnStats);
    case Type::kPing:
      return Handle(frame, &Session::OnPing);
    case Type::kWorkspace:
      return Handle(frame, &Session::OnWorkspace);
    case Type::kWorkspaceClose:
      return Handle(frame, &Session::OnWorkspaceClose);
    case Type::kAttend:
      return Handle(frame, &Session::OnAttend);
    case Type::kOpenRegion:
      return Handle(frame, &Session::OnOpenRegion);
    case Type::kCloseRegion:
      return Handle(frame, &Session::OnCloseRegion);
    case Type::kStore:
      return Handle(frame, &Session::OnStore);
    case Type::kLoad:
      return Handle(frame, &Session::OnLoad);
    case Type::kKeepMemory:
      return Handle(frame, &Session::OnKeepMemory);
    case Type::kTakeMemory:
      return Handle(frame, &Session::OnTakeMemory);
    case Type::kReleaseMemory:
      return Handle(frame, &Session::OnReleaseMemory);
    case Type::kResume:
      return Handle(frame, &Session::OnResume);
    case Type::kTokens:
      return Handle(frame, &Session::OnTokens);
    case Type::kHello:
      return Refuse({frame.request_id, false},
                    {ErrorCode::kWrongState, "hello_again", "the session is open already"});
    default:
      return Refuse({frame.request_id, false},
                    {ErrorCode::kUnsupported, "unknown_message",
                     fmt::format("message type {} is not one for this socket", frame.type)});
  }
}

// Pool ids are small numbers that a client can guess. Only those that this session has attached are
// found, so that a client reaches no other tenant's pool.
Error Session::EmptyRequest() {
  return {ErrorCode::kInvalidArgument, "empty_request", "the message names no block"};
}

Result<const Session::AttachedPool*> Session::FindPoolOrRegion(PoolId pool) const {
  const auto found = pools_.find(pool);
  if (found != pools_.end()) return &found->second;
  return MakeError(ErrorCode::kNotFound, "pool_not_attached",
                   fmt::format("this session has not attached pool {}", pool.value));
}

Result<const Session::AttachedPool*> Session::FindPool(PoolId pool) const {
  KVT_ASSIGN_OR_RETURN(const AttachedPool* const found, FindPoolOrRegion(pool));
  if (found->region_blocks == 0) return found;
  return MakeError(ErrorCode::kInvalidArgument, "pool_is_region",
                   fmt::format("{} is a region, whose blocks its engine manages", pool.value));
}

Status Session::CheckCount(size_t count, const char* reason) const {
  if (count <= services_.config->server.max_hashes_per_call) return {};
  return MakeError(ErrorCode::kLimitExceeded, reason,
                   fmt::format("{} in one call, {} are allowed", count,
                               services_.config->server.max_hashes_per_call));
}

Status Session::CheckHashes(std::span<const BlockHash> hashes) const {
  if (hashes.empty()) return tl::unexpected(EmptyRequest());
  return CheckCount(hashes.size(), kTooManyHashes);
}

Status Session::OnRegisterModel(const Call& call, const wire::RegisterModel& request) {
  KVT_ASSIGN_OR_RETURN(const ModelRegistry::Registration registered,
                       services_.models->Register(tenant_, request.record));
  const ModelHold& model = registered.model;
  std::erase(registered_, model);
  registered_.push_back(model);
  if (registered_.size() > kMaxRegisteredHeld) registered_.pop_front();
  if (registered.is_new && request.record.revision.empty()) {
    services_.log->Warning("model.no_revision",
                           "\"{}\" of tenant {} names no revision: other weights under this name "
                           "would be given its blocks",
                           request.record.name, tenant_);
  }
  Reply(call, wire::RegisterModelReply{.model = model->id, .groups = model->groups});
  return {};
}

// The list is made once at the start: devices neither come nor go while the daemon runs.
Status Session::OnDevices(const Call& call, const wire::Devices&) {
  Reply(call, *services_.wire_devices);
  return {};
}

Status Session::After(const std::function<void(std::function<void(Status)>)>& when,
                      wire::MessageType type, const Call& call, std::function<Status()> work) {
  struct Wait {
    std::optional<Status> within_call;
    bool over = false;  // the call
  };
  const auto wait = std::make_shared<Wait>();
  when(gate_.WhileOpen([this, wait, type, call, work = std::move(work)](const Status& came) {
    if (!wait->over) {
      wait->within_call = came ? work() : came;
      return;
    }
    connection_.Resume();
    if (ended_) return;
    const Status done = came ? work() : came;
    if (done) return;
    trace_.End(type, call.request_id, /*failed=*/true);
    Refuse(call, done.error());
  }));
  if (wait->within_call) return *wait->within_call;
  wait->over = true;
  connection_.Pause();
  return {};
}

Status Session::OnAttach(const Call& call, const wire::Attach& request) {
  return After(
      [this, &request](std::function<void(Status)> open) {
        services_.cache->WhenDeviceOpen(DeviceIndex(request.device), std::move(open));
      },
      wire::MessageType::kAttach, call,
      [this, call, request] { return TryAttach(call, request, std::nullopt); });
}

// Once the cache has begun to close pools, each call goes on with it.
Status Session::AttachLater(const Call& call, const wire::Attach& request, const Error& error,
                            std::optional<int64_t> until_ms) {
  const int64_t now_ms = services_.clock->MonotonicMs();
  if (error.reason != kPoolBytesReturning || (until_ms && now_ms >= *until_ms) ||
      attaches_waiting_.size() == kMaxAttachesWaiting) {
    return tl::unexpected(error);
  }
  const int64_t until = until_ms.value_or(now_ms + kAttachPatienceMs);
  const auto timer = attaches_waiting_.emplace(attaches_waiting_.end(), services_.loop);
  timer->Start(kAttachAgainMs, [this, timer, call, request, until] {
    // The callback was moved out of the timer, so that it may end it.
    attaches_waiting_.erase(timer);
    if (ended_) return;
    const Status again = TryAttach(call, request, until);
    if (again) return;
    trace_.End(wire::MessageType::kAttach, call.request_id, /*failed=*/true);
    Refuse(call, again.error());
  });
  return {};
}

Status Session::TryAttach(const Call& call, const wire::Attach& request,
                          std::optional<int64_t> until_ms) {
  KVT_ASSIGN_OR_RETURN(const ModelHold model, services_.models->Find(tenant_, request.model));
  if (request.group >= model->groups.size()) {
    return MakeError(ErrorCode::kNotFound, "unknown_group",
                     fmt::format("group {} of {}", request.group, model->groups.size()));
  }
  // The device number is the client's; AttachPool refuses one that does not exist.
  const DeviceIndex device(request.device);
  const auto identity_of = [&](const wire::RegisterModelReply::Group& group) {
    return NamespaceIdentity{tenant_, group.fingerprint, group.block_bytes};
  };
  // A pool that is left to the daemon leaves as much to each group that has none yet.
  const auto without_pool =
      std::ranges::count_if(model->groups, [&](const wire::RegisterModelReply::Group& group) {
        return !services_.cache->HasPool(identity_of(group), device);
      });
  const Result<PoolInfo> attached =
      services_.cache->AttachPool(identity_of(model->groups[request.group]), request.pool_bytes,
                                  device, static_cast<uint32_t>(std::max<int64_t>(1, without_pool)),
                                  static_cast<uint32_t>(model->groups.size()));
  if (!attached) return AttachLater(call, request, attached.error(), until_ms);
  const PoolInfo& pool = *attached;
  services_.models->NoteNamespace(pool.namespace_id, *model);
  // The pool is used from here on, so that no other attach takes its memory before the reply.
  services_.cache->UsePool(id_, pool.id, Identity());
  if (services_.attention != nullptr) services_.attention->Prepare(request.device);
  if (until_ms) {
    services_.log->Info("pool.reclaimed",
                        "pools that no client used made way for \"{}\" of tenant {}",
                        model->record.name, tenant_);
  }
  // The pool's memory may have to be zeroed first, so that a client never sees what an earlier
  // owner left there. The reply waits for that, and so the descriptor is not given out before.
  services_.cache->WhenPoolReady(
      pool.id, gate_.WhileOpen([this, call, pool,
                                attached = AttachedPool{.model = model,
                                                        .group = request.group,
                                                        .device = request.device,
                                                        .namespace_id = pool.namespace_id}] {
        OnAttached(call, pool, attached);
      }));
  return {};
}

void Session::OnAttached(const Call& call, const PoolInfo& pool, const AttachedPool& attached) {
  trace_.End(wire::MessageType::kAttach, call.request_id, /*failed=*/false);
  if (ended_) return;
  AttachedPool& known = pools_.try_emplace(pool.id, attached).first->second;
  if (known.attaches++ == 0) known.attachment = std::make_shared<Gate>();
  connection_.SendWithDescriptors(
      call.request_id,
      wire::AttachReply{.pool = pool.id,
                        .generation = pool.generation,
                        .pool_bytes = pool.bytes,
                        .block_bytes = pool.block_bytes,
                        .blocks = pool.blocks,
                        .device_kind = services_.wire_devices->devices[attached.device].kind},
      {pool.fd});
}

// No ATTACH of the pool is waiting: its memory is ready since the first was answered, and any other
// is answered within its call from then on.
Status Session::OnDetach(const Call&, const wire::Detach& request) {
  KVT_RETURN_IF_ERROR(FindPool(request.pool));
  const auto attached = pools_.find(request.pool);
  if (--attached->second.attaches > 0) return {};
  connection_.Spend(attached->second.held);
  // First, so that operations that the cache cancels find the pool detached.
  pools_.erase(attached);
  services_.cache->LeavePool(id_, request.pool);
  return {};
}

// An item that is refused leaves its block as it was, so that the client may repeat it or release
// the block. The other items of its request are worked on all the same.
Status Session::CommitOne(PoolId pool, const AttachedPool& attached, const wire::CommitItem& item,
                          bool* duplicate) {
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
                       services_.cache->Commit(id_, pool,
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

template <typename SomeSteps>
void Session::WorkInSteps(SomeSteps first, bool (Session::*some)(SomeSteps*)) {
  if (!(this->*some)(&first)) return;
  // The frame is only valid during the call, so that what remains is copied. This happens only to
  // requests that are too long for one turn.
  const auto steps = std::make_shared<SomeSteps>(std::move(first));
  steps->kept.assign(steps->items.begin(), steps->items.end());
  steps->items = steps->kept;
  connection_.WorkInSteps([this, steps, some] { return (this->*some)(steps.get()); });
}

Status Session::OnCommit(const Call& call, const wire::Commit& request) {
  KVT_RETURN_IF_ERROR(FindPool(request.pool));
  if (request.items.empty()) return tl::unexpected(EmptyRequest());
  KVT_RETURN_IF_ERROR(CheckCount(request.items.size(), kTooManyBlocks));
  WorkInSteps(CommitSteps{.call = call, .pool = request.pool, .items = request.items},
              &Session::CommitSome);
  return {};
}

// No other request of the session is handed out between steps, a DETACH neither, so that at() finds
// the pool. The reply lists only what did not go as asked; with nothing to list and no reply
// wanted, nothing is sent.
bool Session::CommitSome(CommitSteps* steps) {
  const AttachedPool& attached = pools_.at(steps->pool);
  for (const wire::CommitItem& item : NextItems(steps->items, steps->done)) {
    bool duplicate = false;
    const uint32_t position = steps->done++;
    const Status committed = CommitOne(steps->pool, attached, item, &duplicate);
    if (!committed) {
      services_.counters->CountRefusal(committed.error());
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
  if (!steps->reply.items.empty() || steps->call.want_reply) Reply(steps->call, steps->reply);
  trace_.End(wire::Commit::kType, steps->call.request_id, /*failed=*/false);
  return false;
}

Status Session::OnRelease(const Call& call, const wire::Release& request) {
  KVT_RETURN_IF_ERROR(FindPool(request.pool));
  if (request.blocks.empty()) return tl::unexpected(EmptyRequest());
  KVT_RETURN_IF_ERROR(CheckCount(request.blocks.size(), kTooManyBlocks));
  WorkInSteps(ReleaseSteps{.call = call, .pool = request.pool, .items = request.blocks},
              &Session::ReleaseSome);
  return {};
}

bool Session::ReleaseSome(ReleaseSteps* steps) {
  const std::span<const BlockHandle> part = NextItems(steps->items, steps->done);
  const auto failures = services_.cache->Release(id_, steps->pool, part);
  for (const Cache::ReleaseError& failed : failures) {
    services_.counters->CountRefusal(failed.error);
    steps->reply.errors.push_back({.position = steps->done + failed.position,
                                   .code = failed.error.code,
                                   .reason = failed.error.reason});
  }
  // Each handle that was accepted gave back exactly one reference that an acquire had counted.
  pools_.at(steps->pool).held -= part.size() - failures.size();
  steps->done += static_cast<uint32_t>(part.size());
  if (steps->done < steps->items.size()) return true;
  if (!steps->reply.errors.empty() || steps->call.want_reply) Reply(steps->call, steps->reply);
  trace_.End(wire::Release::kType, steps->call.request_id, /*failed=*/false);
  return false;
}

Status Session::OnPrefetch(const Call& call, const wire::Prefetch& request) {
  KVT_ASSIGN_OR_RETURN(const AttachedPool* const pool, FindPoolOrRegion(request.pool));
  KVT_RETURN_IF_ERROR(CheckHashes(request.hashes));
  if (pool->region_blocks > 0) {
    PrefetchToHost(call, request);
    return {};
  }
  WorkInSteps(PrefetchSteps{.call = call, .pool = request.pool, .items = request.hashes},
              &Session::PrefetchSome);
  return {};
}

// Goes on as long as everything is found.
bool Session::PrefetchSome(PrefetchSteps* steps) {
  const std::span<const BlockHash> part = NextItems(steps->items, steps->done);
  const uint32_t found =
      services_.cache->Prefetch(steps->pool, part, {id_, steps->call.request_id});
  steps->done += found;
  if (found == part.size() && steps->done < steps->items.size()) return true;
  steps->reply.count = steps->done;
  Reply(steps->call, steps->reply);
  trace_.End(wire::Prefetch::kType, steps->call.request_id, /*failed=*/false);
  return false;
}

Status Session::OnPin(const Call& call, const wire::Pin& request) {
  KVT_RETURN_IF_ERROR(FindPoolOrRegion(request.pool));
  KVT_RETURN_IF_ERROR(CheckHashes(request.hashes));
  // A pin holds space that other tenants could use; its end must be foreseeable.
  if (request.ttl_ms > kMaxPinTtlMs) {
    return MakeError(ErrorCode::kInvalidArgument, "bad_ttl",
                     fmt::format("{} ms; {} are allowed", request.ttl_ms, kMaxPinTtlMs));
  }
  KVT_ASSIGN_OR_RETURN(const uint32_t pinned,
                       services_.cache->Pin(request.pool, request.hashes, request.ttl_ms));
  Reply(call, wire::PinReply{pinned});
  return {};
}

Status Session::OnHint(const Call& call, const wire::Hint& request) {
  KVT_RETURN_IF_ERROR(FindPoolOrRegion(request.pool));
  KVT_RETURN_IF_ERROR(CheckHashes(request.hashes));
  if (request.returns_in_ms > kMaxReturnsInMs) {
    return MakeError(ErrorCode::kInvalidArgument, "bad_returns_in",
                     fmt::format("{} ms; {} are allowed", request.returns_in_ms, kMaxReturnsInMs));
  }
  KVT_ASSIGN_OR_RETURN(const uint32_t taken,
                       services_.cache->Hint(id_, request.pool, request.hashes, request.hint,
                                             request.returns_in_ms));
  Reply(call, wire::HintReply{taken});
  return {};
}

// Ignores token ids in pools that do not keep them. Blocks of windows and states are cached without
// the blocks before them, so that events could not say where in a prompt ids stand.
Status Session::OnTokens(const Call& call, const wire::Tokens& request) {
  KVT_ASSIGN_OR_RETURN(const AttachedPool* const pool, FindPoolOrRegion(request.pool));
  wire::TokensReply reply{.wanted = pool->kv_group().hit_rule == HitRule::kAll &&
                                    services_.cache->KeepsTokenIds(request.pool)};
  std::span<const uint32_t> rest = request.ids;
  for (const wire::Tokens::Block& block : request.blocks) {
    if (!reply.wanted) break;
    const auto ids = rest.first(block.tokens);
    rest = rest.subspan(block.tokens);
    if (block.tokens > pool->kv_group().block_tokens) continue;
    reply.taken += services_.cache->GiveTokenIds(request.pool, block.hash, ids) ? 1 : 0;
  }
  if (call.want_reply) Reply(call, reply);
  return {};
}

Status Session::OnStats(const Call& call, const wire::Stats&) {
  const CacheStats::Asked& blocks = services_.cache->stats().blocks;
  wire::StatsReply reply;
  reply.blocks_asked = blocks.asked;
  reply.blocks_pool = blocks.hit[static_cast<size_t>(Tier::kPool)];
  reply.blocks_host = blocks.hit[static_cast<size_t>(Tier::kHost)];
  reply.blocks_disk = blocks.hit[static_cast<size_t>(Tier::kDisk)];
  reply.blocks_miss = blocks.miss;
  // A client learns the sizes of pools that it has attached, and of no other tenant's. The counts
  // of hits above are those of the whole daemon.
  for (const PoolGauges& pool : services_.cache->Gauges().pools) {
    if (!pools_.contains(pool.id)) continue;
    reply.pool_blocks_total += pool.blocks;
    reply.pool_blocks_free += pool.free;
    reply.pool_blocks_private += pool.private_blocks;
    reply.pool_blocks_cached += pool.cached;
  }
  reply.session_references = HeldBlocks();
  Reply(call, reply);
  return {};
}

Status Session::OnPing(const Call& call, const wire::Ping&) {
  Reply(call, wire::Pong{});
  return {};
}

}  // namespace kvtier
