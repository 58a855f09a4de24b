// SPDX-License-Identifier: Apache-2.0
// The calls of the cache, each handed to the part that is responsible for it, and the pump that
// lets the parts go on. The bodies of Cache lie here, so that cache.h knows nothing of the parts.
#include "tiers/cache_impl.h"

#include <fmt/format.h>

#include "base/result.h"
#include "tiers/space/disk_restore.h"

namespace kvtier {
namespace {

Status CheckIdentity(const NamespaceIdentity& identity) {
  if (identity.block_bytes > 0 && identity.tenant.size() <= kMaxTenantBytes) return {};
  return MakeError(ErrorCode::kInvalidArgument, "bad_namespace_identity");
}

}  // namespace

Cache::Impl::Impl(const CacheOptions& options, CacheEnvironment environment, IndexSnapshot snapshot)
    : pump(environment.loop, [this] { Pump(); }),
      next_part(environment.loop, [this] { GoOn(); }),
      state(options, std::move(environment), snapshot.budget, &pump, &next_part),
      loads(&state.stats, state.options.close_part_blocks,
            [this](SessionId session, const LoadProgress& progress) {
              if (progress.finished) state.trace.LoadEnd(session, progress);
            }),
      sessions(&state),
      cold_choice(state.env.cold == nullptr ? std::nullopt : std::optional<ColdChoice>(&state)),
      disk(&state, cold_choice ? &*cold_choice : nullptr),
      to_host(&state),
      to_disk(&state, &to_host),
      host(&state, &to_disk),
      pools(&state, &to_host),
      touches(&state, &host),
      down{.cold_writer = MakeColdWriter(),
           .persister = Persister(&state, &to_disk, &disk),
           .offloader = Offloader(&state, &to_host, &host)},
      up{.loader = Loader(&state, &host, &to_host, &disk, &loads,
                          down.cold_writer ? &down.cold_writer->deletions() : nullptr),
         .finder = PrefixFinder(&state),
         .acquirer = Acquirer(&state, &pools, &up.loader, &loads, &sessions),
         .prefetch = HostPrefetch(&state, &up.finder, &host, &up.loader, &to_host, &touches),
         .cold_lookup = std::nullopt},
      canary(&state, &host, &disk, [this](const BlockKey& key) { return DropRefused(key); }),
      regions(&state, &up.finder, &up.loader, &to_host, &touches, &canary),
      upkeep{.hints = SequenceHints(&state, &host),
             .retention = Retention(&state, &pools, &to_host, &host, &to_disk, &disk),
             .lost_drives = LostDrives(&state, &disk),
             .verifier = Verifier(&state, &disk),
             .cold_verifier = std::nullopt,
             .key_expiry = KeyExpiry(&state),
             .pool_adoption = PoolAdoption(&state, &pools, &sessions),
             .adoption = HostAdoption(&state, &host),
             .host_resize = HostResize(&state, &host, &upkeep.adoption),
             .disk_resize = DiskResize(&state, &disk, &to_host, &to_disk, &up.loader),
             .erasure = Erasure(&state, &to_host, &pools, &host, &disk, &upkeep.adoption,
                                down.cold_writer.get())},
      drains(&state, &disk, &upkeep.retention, &upkeep.adoption, &down.offloader, &down.persister) {
  state.ends.AddListener(&loads);
  if (state.env.cold != nullptr) {
    upkeep.cold_verifier.emplace(&state, &down.cold_writer->deletions());
    up.cold_lookup.emplace(&state, &up.finder, [this](AcquireRequest request, Acquirer::Done done) {
      up.acquirer.Acquire(std::move(request), std::move(done));
    });
  }
  // Before host grows for the first time: the index's blocks get their disk slots before any write
  // of a new block can take them.
  const std::vector<ErasureRecord> erasures = std::move(snapshot.erasures);
  const bool may_follow_another = !state.has_disk() || !snapshot.namespaces.empty();
  DiskRestore(&state, &disk, &upkeep.key_expiry).Restore(std::move(snapshot));
  upkeep.erasure.Resume(erasures, may_follow_another || !erasures.empty());
  // Before host, whose blocks then find theirs; and before anything takes the pools' memory anew.
  upkeep.pool_adoption.Adopt();
  state.env.arena->OnGrowth([this](std::span<std::byte> slice) {
    // Registered before its slots can be used, so that no transfer has to pin the pages by itself.
    for (BlockFile* file : state.env.files) file->RegisterMemory(slice);
    host.Grow();
    Pump();
  });
  host.Grow();
}

void Cache::Impl::GoOn() {
  up.acquirer.GoOn();
  up.acquirer.CancelSome();
  sessions.CloseSome();
  upkeep.retention.GoOn();
  upkeep.lost_drives.GoOn();
  touches.GoOn();
  regions.GoOn();
  canary.GoOn();
  up.loader.GoOn();
  loads.GoOn();
  Pump();
}

std::unique_ptr<ColdWriter> Cache::Impl::MakeColdWriter() {
  if (!cold_choice) return nullptr;
  return std::make_unique<ColdWriter>(&state, &to_host, &disk, &*cold_choice);
}

void Cache::Impl::Acquire(AcquireRequest request, Acquirer::Done done) {
  if (up.cold_lookup) {
    up.cold_lookup->Acquire(std::move(request), std::move(done));
  } else {
    up.acquirer.Acquire(std::move(request), std::move(done));
  }
}

EvictOutcome Cache::Impl::Evict(const BlockKey& key, std::optional<Tier> tier,
                                const std::shared_ptr<ObjectEviction>& objects) {
  if (tier.value_or(Tier::kHost) == Tier::kHost) upkeep.adoption.NoteEvicted(key);
  const EvictOutcome outcome = upkeep.retention.Evict(key, tier);
  if (outcome == EvictOutcome::kEvicted) state.SchedulePump();
  const bool stays = outcome != EvictOutcome::kEvicted && outcome != EvictOutcome::kAbsent;
  if (down.cold_writer && !tier && !stays) down.cold_writer->deletions().Forget(key, objects);
  return outcome;
}

// The object is deleted at the first try: by a later one another host may have written it anew.
EvictOutcome Cache::Impl::DropRefused(const BlockKey& key) {
  const EntryRef block = state.blocks.directory.RefOf(state.blocks.Find(key));
  const bool is_first = state.blocks.trust.StorerOf(block) != kCondemnedParty;
  if (down.cold_writer && is_first) down.cold_writer->deletions().Forget(key, nullptr);
  upkeep.adoption.NoteEvicted(key);
  state.SchedulePump();
  return upkeep.retention.Evict(key, std::nullopt);
}

// From the top of the stack down: an acquire that is served makes victims, victims make copies, and
// copies make writes. Resources that a lower part has freed let a higher one go on in the next
// round.
void Cache::Impl::Pump() {
  state.parts.Begin();
  loads.BeginEvent();
  bool progressed = true;
  while (progressed) {
    progressed = up.acquirer.Pump();
    if (!drains.stopped()) {
      // Before, the copy below of a block in a pool may not have been found yet.
      if (upkeep.adoption.Ended()) pools.Prepare();
      host.Prepare();
    }
    disk.TrimToCaps();
    progressed |= state.ends.TellKept();
    progressed |= up.loader.Pump();
    if (!drains.stopped()) {
      progressed |= down.offloader.Pump();
      progressed |= down.persister.Pump();
      progressed |= upkeep.adoption.Pump();
    }
    progressed |= disk.committer().Pump();
  }
  if (!drains.stopped()) {
    up.prefetch.Pump();
    // A resize makes writes, which a drain would wait for.
    if (!drains.UnderWay()) {
      upkeep.host_resize.Pump();
      upkeep.disk_resize.Pump();
    }
  }
  drains.Pump();
  if (loads.HasMore()) state.SchedulePart();
}

void Cache::Impl::Up::Cancel(SessionId session, std::optional<PoolId> pool) {
  if (cold_lookup) cold_lookup->Cancel(session, pool);
  acquirer.Cancel(session, pool);
}

EntryIndex Cache::Impl::EntryForCommit(CachePool* pool, const CommitRequest& request) {
  const BlockKey key{pool->namespace_id, request.hash};
  if (canary.KeepsRefused(state.blocks.Find(key))) return kNoEntry;
  const EntryIndex known = state.blocks.Find(key);
  if (known == kNoEntry) {
    const EntryIndex added = state.AddEntry(key, request.tokens, request.depth, request.retention);
    // It may be known to the pool from an earlier life.
    pool->victims.NoteUse(state.blocks.FactsOf(added));
    return added;
  }
  // The content is known already. If this pool has a block of it, the answer is kNoEntry: the
  // client's own block stays private, and the commit is reported as a duplicate.
  state.UseComputedAnew(pool, known, request.retention);
  return state.blocks.BlockIn(*pool, state[known]) == kNoBlock ? known : kNoEntry;
}

Result<CommitReply> Cache::Impl::Commit(SessionId session, PoolId pool_id,
                                        const CommitRequest& request) {
  CachePool* pool = state.blocks.FindPool(pool_id);
  if (pool == nullptr) return MakeError(ErrorCode::kNotFound, "unknown_pool");
  if (!pool->blocks.Current(request.block)) {
    return MakeError(
        ErrorCode::kStaleHandle, "stale_generation",
        fmt::format("block {} generation {}", request.block.index.value, request.block.generation));
  }
  // The handle's generation was checked first: without it a late commit could publish bytes of the
  // block's next owner.
  const PoolBlock& block = pool->blocks[request.block.index];
  if (block.state() != PoolBlockState::kPrivate) {
    return MakeError(ErrorCode::kWrongState, "not_private",
                     fmt::format("block {} is committed already", request.block.index.value));
  }
  if (!sessions.OwnsPrivate(session, *pool, request.block.index)) {
    return MakeError(
        ErrorCode::kNotOwner, "foreign_block",
        fmt::format("block {} is private to another session", request.block.index.value));
  }
  if (request.tokens == 0) return MakeError(ErrorCode::kInvalidArgument, "zero_tokens");
  const EntryIndex index = EntryForCommit(pool, request);
  if (index == kNoEntry) {
    ++state.stats.commit_duplicates;
    return CommitReply{.duplicate = true};
  }
  ++state.stats.commits;
  // The reference that the session gets is what keeps the new entry from being forgotten at once.
  BlockEntry& entry = state[index];
  sessions.Publish(session, pool, request.block.index, index);
  state.AddPlace(pool, request.block.index);
  pool->blocks.Taken(request.block.index).since_ds = state.clock.NowDs();
  state.infinite_cache.Store(pool->namespace_id, request.hash);
  if (request.checksum && !entry.in_host()) {
    pool->checksums.At(request.block.index.value) = request.checksum;
  }
  if (request.parent) state.LinkToParent(index, *request.parent);
  state.QueueIfUndecided(index);
  state.tables.EnterPool(pool, index);
  return CommitReply{};
}

// The errors name the fault of the handle, and never tell about another session's use of the block.
Status Cache::Impl::Release(SessionId session, CachePool* pool, BlockHandle handle,
                            ReleasedBlocks* released) {
  if (!pool->blocks.Current(handle)) {
    return MakeError(ErrorCode::kStaleHandle, "stale_generation",
                     fmt::format("block {} generation {}", handle.index.value, handle.generation));
  }
  const PoolBlock& block = pool->blocks[handle.index];
  const bool private_block = block.state() == PoolBlockState::kPrivate;
  if (private_block && sessions.OwnsPrivate(session, *pool, handle.index)) {
    sessions.FreePrivate(session, pool, handle.index);
    return {};
  }
  if (private_block || block.state() == PoolBlockState::kQuarantined ||
      !sessions.Holds(session, *pool, handle.index)) {
    return MakeError(ErrorCode::kNotOwner, "not_held",
                     fmt::format("the session holds no reference to block {}", handle.index.value));
  }
  sessions.DropReference(session, pool, handle.index, released);
  return {};
}

Cache::Cache(const CacheOptions& options, CacheEnvironment environment, IndexSnapshot snapshot)
    : impl_(std::make_unique<Impl>(options, std::move(environment), std::move(snapshot))) {
  impl_->Pump();
}

// The arena outlives the cache and must not call into it any more.
Cache::~Cache() { impl_->state.env.arena->OnGrowth(nullptr); }

void Cache::OpenSession(SessionId session, std::function<void(const LoadProgress&)> on_progress) {
  impl_->sessions.Open(session);
  impl_->loads.OpenSession(session, std::move(on_progress));
}

void Cache::CloseSession(SessionId session) {
  if (!impl_->sessions.IsOpen(session)) return;
  // In this order: the loads of operations that were not answered are forgotten, not counted as
  // cancelled, and no load reports to a session that is gone.
  impl_->up.Cancel(session, std::nullopt);
  impl_->up.prefetch.ForgetSession(session);
  impl_->regions.CloseSession(session);
  impl_->loads.CloseSession(session);
  impl_->sessions.Close(session);
  impl_->Pump();
}

void Cache::LeavePool(SessionId session, PoolId pool_id) {
  CachePool* const pool = impl_->state.blocks.FindPool(pool_id);
  KVT_CHECK(pool != nullptr && impl_->sessions.IsOpen(session));
  // In the order of CloseSession, for its reasons.
  impl_->up.Cancel(session, pool_id);
  impl_->loads.LeavePool(session, pool_id);
  impl_->sessions.LeavePool(session, pool);
  impl_->Pump();
}

bool Cache::Withholds(SessionId session) const { return impl_->sessions.Withholds(session); }

void Cache::ReleaseQuarantine(SessionId session) {
  impl_->sessions.ReleaseQuarantine(session);
  impl_->Pump();
}

void Cache::WhenDeviceOpen(DeviceIndex index, std::shared_ptr<LentMemory> memory,
                           std::function<void(Status)> done) {
  const std::vector<PoolDevice>& devices = impl_->state.env.devices;
  if (index.value >= devices.size()) return done({});
  Device* const device = devices[index.value].device;
  if (memory == nullptr) return device->WhenOpen(std::move(done));
  for (const PoolDevice& other : devices) {
    const DeviceInfo reader = other.device->info();
    if (memory->is_source && CanReadFrom(reader, device->info())) {
      memory->readers |= uint32_t{1} << reader.ordinal;
    }
  }
  device->WhenOpen([device, memory = std::move(memory), done = std::move(done)](Status opened) {
    if (!opened) return done(std::move(opened));
    device->Map(memory, done);
  });
}

Result<PoolInfo> Cache::AttachPool(const NamespaceIdentity& identity, uint64_t pool_bytes,
                                   DeviceIndex device, uint32_t shares, uint32_t groups) {
  KVT_RETURN_IF_ERROR(CheckIdentity(identity));
  if (device.value >= impl_->state.env.devices.size()) {
    return MakeError(ErrorCode::kNotFound, "unknown_device",
                     fmt::format("there is no device {}, but {} in all", device.value,
                                 impl_->state.env.devices.size()));
  }
  KVT_ASSIGN_OR_RETURN(const CachePool* pool,
                       impl_->state.blocks.WithNamespace(identity, [&](NamespaceId id) {
                         return impl_->pools.Attach(id, device, pool_bytes, shares, groups);
                       }));
  return PoolInfo{.id = pool->id,
                  .namespace_id = pool->namespace_id,
                  .generation = pool->generation,
                  .bytes = pool->memory->bytes(),
                  .block_bytes = pool->block_bytes,
                  .blocks = pool->blocks.size(),
                  .fd = pool->memory->shareable_fd()};
}

std::vector<AbsentClients> Cache::TakeAbsentClients() {
  return impl_->upkeep.pool_adoption.TakeAbsentClients();
}

void Cache::UsePool(SessionId session, PoolId pool_id, const SessionIdentity& identity) {
  CachePool* const pool = impl_->state.blocks.FindPool(pool_id);
  KVT_CHECK(pool != nullptr && impl_->sessions.IsOpen(session));
  impl_->sessions.UsePool(session, pool, identity);
}

std::vector<ResumeOutcome> Cache::Resume(SessionId absent, SessionId session, PoolId pool_id,
                                         std::span<const ResumeClaim> claims) {
  CachePool* const pool = impl_->state.blocks.FindPool(pool_id);
  KVT_CHECK(pool != nullptr && impl_->sessions.IsOpen(session));
  std::vector<ResumeOutcome> outcomes;
  outcomes.reserve(claims.size());
  CacheStats& stats = impl_->state.stats;
  for (const ResumeClaim& claim : claims) {
    outcomes.push_back(impl_->sessions.Resume(absent, session, pool, claim));
    const bool lost = outcomes.back() == ResumeOutcome::kLost;
    ++(lost ? stats.resume_lost_blocks : stats.resumed_blocks);
  }
  return outcomes;
}

void Cache::KeepHoldings() { impl_->sessions.KeepHoldings(); }

bool Cache::HasPool(const NamespaceIdentity& identity, DeviceIndex device) const {
  const std::optional<NamespaceId> namespace_id = FindNamespace(identity);
  return namespace_id && device.value < kMaxDevices &&
         impl_->state.blocks.namespaces[namespace_id->value].PoolIn(PoolSlot(device.value)) !=
             nullptr;
}

void Cache::WhenPoolReady(PoolId pool_id, std::function<void()> ready) {
  const CachePool* pool = impl_->state.blocks.FindPool(pool_id);
  if (pool != nullptr) pool->memory->WhenReady(std::move(ready));
}

void Cache::Acquire(AcquireRequest request, std::function<void(Result<AcquireReply>)> done) {
  if (!impl_->sessions.IsOpen(request.session)) {
    done(MakeError(ErrorCode::kCancelled, "session_closed"));
    return;
  }
  if (impl_->state.blocks.FindPool(request.pool) == nullptr) {
    done(MakeError(ErrorCode::kNotFound, "unknown_pool"));
    return;
  }
  impl_->Acquire(std::move(request), std::move(done));
  impl_->Pump();
}

Result<CommitReply> Cache::Commit(SessionId session, PoolId pool, const CommitRequest& request) {
  if (!impl_->sessions.IsOpen(session)) {
    return MakeError(ErrorCode::kCancelled, "session_closed");
  }
  return impl_->Commit(session, pool, request);
}

Result<PoolId> Cache::OpenRegion(SessionId session, const NamespaceIdentity& identity,
                                 RegionMemory memory) {
  KVT_RETURN_IF_ERROR(CheckIdentity(identity));
  if (!impl_->sessions.IsOpen(session)) {
    return MakeError(ErrorCode::kCancelled, "session_closed");
  }
  KVT_ASSIGN_OR_RETURN(const CachePool* region,
                       impl_->state.blocks.WithNamespace(identity, [&](NamespaceId id) {
                         return impl_->regions.Open(session, id, std::move(memory));
                       }));
  return region->id;
}

void Cache::CloseRegion(PoolId region, std::function<void()> closed) {
  impl_->regions.Close(region, std::move(closed));
  impl_->Pump();
}

void Cache::Forgive(NamespaceId namespace_id) { impl_->canary.Forgive(namespace_id); }

void Cache::CloseRegions(SessionId session, std::function<void()> closed) {
  impl_->regions.CloseAll(session, std::move(closed));
  impl_->Pump();
}

Status Cache::BeginTransfer(PoolId region, TransferId transfer, std::span<const BlockIndex> blocks,
                            std::function<void(TransferEnd)> done, LayerOrder order) {
  return impl_->regions.Begin(region, transfer, blocks, std::move(done), order);
}

void Cache::Store(PoolId region, std::span<const StoreRequest> blocks) {
  impl_->regions.Store(region, blocks);
  impl_->Pump();
}

void Cache::Load(PoolId region, std::span<const LoadRequest> blocks) {
  impl_->regions.Load(region, blocks);
  impl_->Pump();
}

std::vector<Cache::ReleaseError> Cache::Release(SessionId session, PoolId pool_id,
                                                std::span<const BlockHandle> blocks) {
  std::vector<ReleaseError> errors;
  CachePool* pool = impl_->state.blocks.FindPool(pool_id);
  std::optional<ReleasedBlocks> released;
  if (pool != nullptr) released.emplace(&impl_->state, pool);
  for (uint32_t i = 0; i < blocks.size(); ++i) {
    Status status = MakeError(ErrorCode::kNotFound, "unknown_pool");
    if (pool != nullptr && impl_->sessions.IsOpen(session)) {
      status = impl_->Release(session, pool, blocks[i], &*released);
    }
    if (!status) errors.push_back({i, std::move(status).error()});
  }
  released.reset();
  impl_->Pump();
  return errors;
}

uint32_t Cache::Prefetch(PoolId pool_id, std::span<const BlockHash> hashes, RequestTag tag) {
  CachePool* pool = impl_->state.blocks.FindPool(pool_id);
  if (pool == nullptr) return 0;
  const uint32_t count = impl_->up.acquirer.Prefetch(pool, hashes, tag);
  impl_->Pump();
  return count;
}

void Cache::PrefetchToHost(SessionId session, PoolId region, std::vector<BlockHash> hashes,
                           std::function<void(uint32_t in_memory)> done) {
  const CachePool* const pool = impl_->state.blocks.FindPool(region);
  if (pool == nullptr) return done(0);
  impl_->up.prefetch.Begin(session, pool->namespace_id, std::move(hashes), std::move(done));
  impl_->Pump();
}

Result<uint32_t> Cache::Pin(SessionId session, PoolId pool_id, std::span<const BlockHash> hashes,
                            int64_t ttl_ms) {
  const CachePool* pool = impl_->state.blocks.FindPool(pool_id);
  if (pool == nullptr) return MakeError(ErrorCode::kNotFound, "unknown_pool");
  return impl_->upkeep.retention.Pin(pool->namespace_id, hashes, session, ttl_ms);
}

Status Cache::MayPin(PoolId pool_id, std::span<const BlockHash> hashes, uint64_t* more) {
  const CachePool* pool = impl_->state.blocks.FindPool(pool_id);
  if (pool == nullptr) return MakeError(ErrorCode::kNotFound, "unknown_pool");
  return impl_->upkeep.retention.MayPin(pool->namespace_id, hashes, more);
}

Result<uint32_t> Cache::Hint(PoolId pool_id, std::span<const BlockHash> hashes, SequenceHint hint,
                             int64_t returns_in_ms) {
  const CachePool* pool = impl_->state.blocks.FindPool(pool_id);
  if (pool == nullptr) return MakeError(ErrorCode::kNotFound, "unknown_pool");
  const uint32_t taken = impl_->upkeep.hints.Give(pool->namespace_id, hashes, hint, returns_in_ms);
  impl_->Pump();
  return taken;
}

Status Cache::Reconfigure(const CacheOptions& options) {
  KVT_RETURN_IF_ERROR(impl_->upkeep.retention.CheckPinFraction(options.pin_fraction));
  CacheState& state = impl_->state;
  // Memory that was taken at the start stays as it is.
  CacheOptions taken = options;
  taken.pool_bytes = state.options.pool_bytes;
  taken.slab_bytes = state.options.slab_bytes;
  state.options = taken;
  state.tenants.Reconfigure(taken);
  state.write_budget.SetBytesPerDay(taken.disk_write_budget_bytes_per_day);
  for (const auto& [id, pool] : state.blocks.pools) state.NoteChange(pool.get());
  impl_->Pump();
  return {};
}

void Cache::Resize(const Sizes& sizes) {
  if (sizes.host_bytes) impl_->upkeep.host_resize.Begin(*sizes.host_bytes);
  if (sizes.disk) impl_->upkeep.disk_resize.Begin(*sizes.disk);
}

Result<uint32_t> Cache::Pin(NamespaceId namespace_id, std::span<const BlockHash> hashes,
                            int64_t ttl_ms) {
  return impl_->upkeep.retention.Pin(namespace_id, hashes, kNobody, ttl_ms);
}

EvictOutcome Cache::Evict(const BlockKey& key, std::optional<Tier> tier,
                          const std::shared_ptr<ObjectEviction>& objects) {
  return impl_->Evict(key, tier, objects);
}

void Cache::WhenEvictionsAreDurable(std::function<void(Status)> done,
                                    std::shared_ptr<ObjectEviction> objects) {
  impl_->disk.committer().WhenDeleted([done = std::move(done), objects](Status durable) {
    if (!durable || objects == nullptr) return done(std::move(durable));
    if (objects->left == 0 || !objects->ended) return done(objects->ended);
    objects->done = done;
  });
}

void Cache::Erase(const EraseRequest& request,
                  std::function<void(const EraseReport&, const Status&)> done) {
  impl_->upkeep.erasure.Begin(request, std::move(done));
}

bool Cache::GiveTokenIds(PoolId pool, const BlockHash& hash, std::span<const uint32_t> ids) {
  return impl_->state.token_ids.Give({impl_->state.blocks.FindPool(pool)->namespace_id, hash}, ids);
}

bool Cache::KeepsTokenIds(PoolId pool) const {
  return impl_->state.token_ids.Keeps(impl_->state.blocks.FindPool(pool)->namespace_id);
}

// Ticks the disk first: after a failure, the other parts need its free slots.
void Cache::Tick() {
  impl_->state.token_ids.Tick();
  impl_->disk.Tick();
  impl_->upkeep.key_expiry.Tick();
  impl_->host.Tick();
  impl_->up.loader.Tick();
  impl_->up.acquirer.Tick();
  impl_->regions.Tick();
  impl_->up.prefetch.Tick();
  impl_->touches.Tick();
  impl_->upkeep.retention.Tick();
  impl_->upkeep.lost_drives.Tick();
  impl_->canary.Tick();
  impl_->upkeep.host_resize.Tick();
  impl_->upkeep.disk_resize.Tick();
  impl_->upkeep.erasure.Tick();
  if (impl_->down.cold_writer && !impl_->drains.stopped()) impl_->down.cold_writer->Tick();
  impl_->Pump();
}

void Cache::Drain(std::function<void()> done) { impl_->drains.Begin(std::move(done)); }

// One that was given up before, because it failed, is often taken out later.
bool Cache::LoseDrive(uint32_t drive, const std::string& why, bool with_index) {
  DriveHealth& health = impl_->disk.health();
  (void)health.Fail(drive, why);
  const bool goes_on = !with_index && (health.failed() >> drive & 1) != 0;
  if (!goes_on) impl_->disk.pause().Stop();
  return goes_on;
}

void Cache::StopDraining() { impl_->drains.Stop(); }

// Something that is scheduled may start more: it counts as under way.
bool Cache::Idle() const {
  return impl_->drains.Idle() && impl_->up.Idle() && impl_->upkeep.verifier.Idle() &&
         impl_->upkeep.erasure.Idle() && impl_->upkeep.host_resize.Idle() &&
         impl_->upkeep.disk_resize.Idle() &&
         (!impl_->down.cold_writer || impl_->down.cold_writer->Idle()) &&
         impl_->regions.in_flight() == 0 && impl_->canary.Idle() &&
         (impl_->drains.stopped() || impl_->up.prefetch.Idle()) && !impl_->state.pump_scheduled();
}

void Cache::VerifyStep(uint64_t cursor, uint32_t max_blocks, std::function<void(VerifyResult)> done,
                       Verified of) {
  if (of == Verified::kCold) {
    return impl_->upkeep.cold_verifier->Step(cursor, max_blocks, std::move(done));
  }
  impl_->upkeep.verifier.Step(cursor, max_blocks, std::move(done));
}

bool Cache::HasColdStore() const { return impl_->upkeep.cold_verifier.has_value(); }

const CacheStats& Cache::stats() const { return impl_->state.stats; }
CacheGauges Cache::Gauges() const { return impl_->Gauges(); }
void Cache::CheckInvariants() const { impl_->CheckInvariants(); }

}  // namespace kvtier
