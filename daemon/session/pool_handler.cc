// SPDX-License-Identifier: Apache-2.0
#include "daemon/session/pool_handler.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <utility>

#include "daemon/attention/attention_service.h"
#include "daemon/session/former_clients.h"
#include "gpu/device.h"

namespace kvtier {
namespace {

constexpr const char* kPoolBytesReturning = "pool_bytes_returning";

// Attaches of one session that may wait for pools without clients to be closed.
constexpr uint32_t kMaxAttachesWaiting = 16;
// Models that a session holds without a pool of theirs. A client may register model after model in
// one session, one for each change of its weights, for ever.
constexpr size_t kMaxRegisteredHeld = 16;
// An attach or a detach costs as many items besides its frame, because all parts of the cache look
// for blocks of the session, and a reply's descriptor takes a system call of its own.
constexpr uint32_t kAttachPrice = 64;
// One that gets no pool costs so many more, because the cache looks at all pools for one to close.
constexpr uint32_t kRefusedAttachPrice = kTurnPrice;

// Whether the record tells the weights of one name apart: by their commit or by their digest.
bool NamesWeights(const ModelRecord& record) {
  return !record.revision.empty() || std::ranges::any_of(record.extra, [](const auto& fact) {
    return fact.first == "weights";
  });
}

}  // namespace

Status PoolHandler::OnRegisterModel(const Call& call, const wire::RegisterModel& request) {
  replies_.connection().Spend(kModelHashPrice);
  KVT_ASSIGN_OR_RETURN(const ModelRegistry::Registration registered,
                       env_.models->Register(client_.tenant, request.record));
  const ModelHold& model = registered.model;
  if (registered.is_new) replies_.connection().Spend(kModelHashPrice * model->groups.size());
  std::erase(registered_, model);
  registered_.push_back(model);
  if (registered_.size() > kMaxRegisteredHeld) registered_.pop_front();
  if (registered.is_new && !NamesWeights(request.record)) {
    env_.log->Warning("model.no_revision",
                      "\"{}\" of tenant {} names no revision: other weights under this name "
                      "would be given its blocks",
                      request.record.name, client_.tenant);
  }
  replies_.Send(call, wire::RegisterModelReply{.model = model->id, .groups = model->groups});
  return {};
}

// The list is made once at the start: devices neither come nor go while the daemon runs.
Status PoolHandler::OnDevices(const Call& call, const wire::Devices&) {
  replies_.Send(call, *env_.devices);
  return {};
}

Status PoolHandler::OnAttach(const Call& call, const wire::Attach& request) {
  return replies_.After(
      [this, &request](std::function<void(Status)> open) {
        cache_.WhenDeviceOpen(DeviceIndex(request.device), nullptr, std::move(open));
      },
      wire::MessageType::kAttach, call,
      [this, call, request] {
        const Status attached = TryAttach(call, request, /*waited=*/false);
        if (attached) return attached;
        replies_.connection().Spend(kRefusedAttachPrice);
        return AttachLater(call, request, attached.error());
      });
}

// Once the cache has begun to close pools, each call goes on with it.
Status PoolHandler::AttachLater(const Call& call, const wire::Attach& request, const Error& error) {
  if (error.reason != kPoolBytesReturning || attaches_waiting_ == kMaxAttachesWaiting) {
    return tl::unexpected(error);
  }
  ++attaches_waiting_;
  env_.retries->Add(
      client_.tenant, [this, call, request, error, pass = gate_.MakePass()](bool over) {
        return pass.open() ? AttachAgain(call, request, error, over) : Retries::Outcome{};
      });
  return {};
}

Retries::Outcome PoolHandler::AttachAgain(const Call& call, const wire::Attach& request,
                                          const Error& error, bool over) {
  if (replies_.ended()) return {};
  const Status attached = over ? tl::unexpected(error) : TryAttach(call, request, /*waited=*/true);
  if (!over && !attached && attached.error().reason == kPoolBytesReturning) {
    return {.waits = true, .price = kRefusedAttachPrice};
  }
  --attaches_waiting_;
  if (!attached) replies_.Fail(wire::MessageType::kAttach, call, attached.error());
  return {.price = kAttachPrice};
}

Status PoolHandler::TryAttach(const Call& call, const wire::Attach& request, bool waited) {
  KVT_ASSIGN_OR_RETURN(const ModelHold model, env_.models->Find(client_.tenant, request.model));
  if (request.group >= model->groups.size()) {
    return MakeError(ErrorCode::kNotFound, "unknown_group",
                     fmt::format("group {} of {}", request.group, model->groups.size()));
  }
  // The device number is the client's; AttachPool refuses one that does not exist.
  const DeviceIndex device(request.device);
  const auto identity_of = [&](const wire::RegisterModelReply::Group& group) {
    return NamespaceIdentity{client_.tenant, group.fingerprint, group.block_bytes};
  };
  // A pool that is left to the daemon leaves as much to each group that has none yet.
  const auto without_pool =
      std::ranges::count_if(model->groups, [&](const wire::RegisterModelReply::Group& group) {
        return !cache_.HasPool(identity_of(group), device);
      });
  const Result<PoolInfo> attached =
      cache_.AttachPool(identity_of(model->groups[request.group]), request.pool_bytes, device,
                        static_cast<uint32_t>(std::max<int64_t>(1, without_pool)),
                        static_cast<uint32_t>(model->groups.size()));
  if (!attached) return tl::unexpected(attached.error());
  const PoolInfo& pool = *attached;
  env_.models->NoteNamespace(pool.namespace_id, *model);
  // The pool is used from here on, so that no other attach takes its memory before the reply.
  cache_.UsePool(client_.session, pool.id, client_.Identity());
  if (env_.attention != nullptr) env_.attention->Prepare(request.device);
  if (waited) {
    env_.log->Info("pool.reclaimed", "pools that no client used made way for \"{}\" of tenant {}",
                   model->record.name, client_.tenant);
  }
  // The pool's memory may have to be zeroed first, so that a client never sees what an earlier
  // owner left there. The reply waits for that, and so the descriptor is not given out before.
  cache_.WhenPoolReady(
      pool.id, gate_.WhileOpen([this, call, pool,
                                attached = AttachedPool{.model = model,
                                                        .group = request.group,
                                                        .device = request.device,
                                                        .namespace_id = pool.namespace_id}] {
        OnAttached(call, pool, attached);
      }));
  return {};
}

// The client may leave the pool before it has read the reply, and then the pool's own descriptor
// may be closed at any time.
void PoolHandler::OnAttached(const Call& call, const PoolInfo& pool, const AttachedPool& attached) {
  replies_.End(wire::MessageType::kAttach, call);
  if (replies_.ended()) return;
  AttachedPool& known = pools_.Add(pool.id, attached);
  std::shared_ptr<const LentDescriptor> owner = known.descriptor.lock();
  if (!owner) {
    UniqueFd shared(::fcntl(pool.fd, F_DUPFD_CLOEXEC, 3));
    if (!shared.valid()) {
      return replies_.connection().CloseWith({ErrorCode::kResourceExhausted, "descriptors",
                                              "the daemon has none left for the pool's memory"});
    }
    owner = std::make_shared<const LentDescriptor>(std::move(shared),
                                                   env_.closer->CloseFor(client_.tenant));
    known.descriptor = owner;
  }
  if (known.attaches++ == 0) known.attachment = std::make_shared<Gate>();
  replies_.connection().Spend(kAttachPrice);
  replies_.connection().SendWithDescriptors(
      call.request_id,
      wire::AttachReply{.pool = pool.id,
                        .generation = pool.generation,
                        .pool_bytes = pool.bytes,
                        .block_bytes = pool.block_bytes,
                        .blocks = pool.blocks,
                        .device_kind = env_.devices->devices[attached.device].kind},
      {owner->get()}, owner);
}

// No ATTACH of the pool is waiting: its memory is ready since the first was answered, and any other
// is answered within its call from then on.
Status PoolHandler::OnDetach(const Call&, const wire::Detach& request) {
  KVT_RETURN_IF_ERROR(pools_.FindPool(request.pool));
  AttachedPool& attached = pools_.at(request.pool);
  if (--attached.attaches > 0) return {};
  replies_.connection().Spend(kAttachPrice + attached.held);
  // First, so that operations that the cache cancels find the pool detached.
  pools_.Erase(request.pool);
  cache_.LeavePool(client_.session, request.pool);
  return {};
}

Status PoolHandler::OnStats(const Call& call, const wire::Stats&) {
  const CacheStats::Asked& blocks = cache_.stats().blocks;
  wire::StatsReply reply;
  reply.blocks_asked = blocks.asked;
  reply.blocks_pool = blocks.hit[static_cast<size_t>(Tier::kPool)];
  reply.blocks_host = blocks.hit[static_cast<size_t>(Tier::kHost)];
  reply.blocks_disk = blocks.hit[static_cast<size_t>(Tier::kDisk)];
  reply.blocks_miss = blocks.miss;
  // A client learns the sizes of pools that it has attached, and of no other tenant's. The counts
  // of hits above are those of the whole daemon.
  replies_.connection().Spend(pools_.all().size());
  for (const auto& [id, attached] : pools_.all()) {
    if (attached.is_region()) continue;
    const PoolGauges pool = cache_.GaugesOfPool(id);
    reply.pool_blocks_total += pool.blocks;
    reply.pool_blocks_free += pool.free;
    reply.pool_blocks_private += pool.private_blocks;
    reply.pool_blocks_cached += pool.cached;
  }
  reply.session_references = pools_.held();
  replies_.Send(call, reply);
  return {};
}

Status PoolHandler::OnPing(const Call& call, const wire::Ping&) {
  replies_.Send(call, wire::Pong{});
  return {};
}

// The pool is one of the session's tenant, and the former session had it: so nothing that is taken
// back here was another tenant's.
Status PoolHandler::OnResume(const Call& call, const wire::Resume& request) {
  KVT_RETURN_IF_ERROR(pools_.FindPool(request.pool));
  const std::optional<SessionId> holdings =
      env_.former_clients == nullptr ? std::nullopt
                                     : env_.former_clients->Find(request.pool, request.session,
                                                                 request.secret, client_.process);
  if (!holdings) {
    return MakeError(ErrorCode::kPermissionDenied, "unknown_session",
                     "this process had no such session with that secret in the pool");
  }
  const auto references = std::accumulate(
      request.claims.begin(), request.claims.end(), uint64_t{0},
      [](uint64_t sum, const ResumeClaim& claim) { return sum + claim.references; });
  // A claim's price is its references: each is counted, up to the session's limit.
  replies_.connection().Spend(static_cast<uint32_t>(
      std::min<uint64_t>(references, env_.config->cache.max_references_per_session)));
  wire::ResumeReply reply{
      .outcomes = cache_.Resume(*holdings, client_.session, request.pool, request.claims)};
  for (size_t i = 0; i < reply.outcomes.size(); ++i) {
    if (reply.outcomes[i] == ResumeOutcome::kLost) continue;
    pools_.at(request.pool).held +=
        reply.outcomes[i] == ResumeOutcome::kPrivate ? 1 : request.claims[i].references;
  }
  if (!request.more) {
    env_.former_clients->OnResumed(*holdings);
    env_.log->Info("session.resumed", "session {} goes on with what session {} held",
                   client_.session.value, request.session.value);
  }
  replies_.Send(call, reply);
  return {};
}

}  // namespace kvtier
