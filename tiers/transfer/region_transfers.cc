// SPDX-License-Identifier: Apache-2.0
#include "tiers/transfer/region_transfers.h"

#include <fmt/format.h>

#include <algorithm>
#include <ranges>

#include "base/result.h"

namespace kvtier {
namespace {

// Late stores that one tick ends at most, over all tenants, and those that it looks at.
constexpr size_t kLateStoresPerTick = 4096;
constexpr size_t kStoreLooksPerTick = 32'768;
// Blocks that are cancelled, or loads that have waited, in one event.
constexpr size_t kBlocksPerEvent = 1024;
// A region whose turn it is, which may be forgotten with it, counts as so many.
constexpr size_t kRegionPrice = 16;
// When blocks are stored singly, the whole prefix is touched only every so many blocks.
constexpr uint32_t kGeneratedBlocksPerWalk = 64;

}  // namespace

Result<CachePool*> RegionTransfers::Open(SessionId session, NamespaceId namespace_id,
                                         RegionMemory memory) {
  const Namespace& name_space = state_.blocks.namespaces[namespace_id.value];
  const bool in_host_memory = memory.lent.kind == LentMemory::Kind::kShared;
  if (in_host_memory) memory.device = DeviceIndex(kMaxDevices);  // whatever its client says
  if (!in_host_memory && memory.device.value >= state_.env.devices.size()) {
    return MakeError(ErrorCode::kInvalidArgument, "bad_region_memory",
                     fmt::format("there is no device {}", memory.device.value));
  }
  Device* const copier =
      in_host_memory ? state_.env.lent_host_memory : state_.env.devices[memory.device.value].device;
  if (copier == nullptr) return MakeError(ErrorCode::kUnsupported, "region_memory_kind");
  KVT_RETURN_IF_ERROR(state_.blocks.MayAddPool());
  const auto first = static_cast<uint32_t>(state_.env.devices.size());
  const std::optional<PoolSlot> slot = name_space.FreeSlot(first);
  if (!slot) {
    return MakeError(ErrorCode::kLimitExceeded, "too_many_regions",
                     fmt::format("{} of this model's group are open", kMaxPoolSlots - first));
  }
  KVT_ASSIGN_OR_RETURN(std::unique_ptr<DevicePool> mapped, copier->Borrow(&memory.lent));
  CachePool* const pool = state_.blocks.AddPool(
      std::make_unique<CachePool>(CachePool{.namespace_id = namespace_id,
                                            .device = memory.device,
                                            .slot = *slot,
                                            .block_bytes = name_space.identity.block_bytes,
                                            .copier = copier,
                                            .memory = std::move(mapped),
                                            .blocks = PoolBlocks::OfRegion(memory.blocks),
                                            .victims = VictimQueue(MakeLruPolicy()),
                                            .pieces = std::move(memory.pieces),
                                            .is_region = true,
                                            .lender = std::move(memory.lender),
                                            .published = std::move(memory.published)}));
  regions_.emplace(pool->id, Region{.session = session,
                                    .pool = pool,
                                    .in_host_memory = in_host_memory,
                                    .block_tokens = memory.block_tokens,
                                    .party = state_.blocks.trust.Open(memory.process, session)});
  of_session_[session].insert(pool->id);
  return pool;
}

void RegionTransfers::Close(PoolId id, std::function<void()> closed) {
  const auto region = regions_.find(id);
  region->second.closed.push_back(std::move(closed));
  size_t most = kBlocksPerEvent;
  CancelAll(&region->second, &most);
  ForgetIfClosed(region);
}

void RegionTransfers::CloseAll(SessionId session, std::function<void()> closed) {
  const auto found = of_session_.find(session);
  if (found == of_session_.end() || found->second.empty()) return closed();
  const auto left = std::make_shared<size_t>(found->second.size());
  for (const PoolId id : found->second) {
    Region& region = regions_.at(id);
    region.closed.push_back([left, closed] {
      if (--*left == 0) closed();
    });
    CloseLater(&region);
  }
}

void RegionTransfers::CloseSession(SessionId session) {
  const auto regions = of_session_.extract(session);
  if (regions.empty()) return;
  for (const PoolId id : regions.mapped()) CloseLater(&regions_.at(id));
}

void RegionTransfers::CloseLater(Region* region) {
  to_close_.push_back(region->pool->id);
  state_.SchedulePart();
}

// A block that has not begun to move ends soon; one that moves, when it has landed. A load that
// waits in a line is found to be abandoned when its turn comes.
void RegionTransfers::CancelAll(Region* region, size_t* most) {
  if (std::exchange(region->closing, true)) return;
  loader_.neighbours().regions().Forget(region->pool->id);
  region->waiting.clear();
  region->woken.clear();
  // Only in the line is a block found to be abandoned.
  for (auto& [number, transfer] : region->transfers) {
    if (!transfer.in_layers.empty()) QueueLayers(region->pool, &transfer);
  }
  region->to_cancel.reserve(region->uses.size());
  for (const auto& [block, use] : region->uses) region->to_cancel.push_back(block);
  CancelSome(region, most);
}

void RegionTransfers::CancelSome(Region* region, size_t* most) {
  for (; !region->to_cancel.empty() && *most > 0; --*most) {
    const BlockIndex block = region->to_cancel.back();
    region->to_cancel.pop_back();
    // It may have ended meanwhile.
    if (region->uses.contains(block)) CancelOne(region, block);
  }
  if (!region->to_cancel.empty()) GoOnWith(region);
}

void RegionTransfers::CancelOne(Region* region, BlockIndex block) {
  const PoolBlock& record = region->pool->blocks[block];
  if (record.state() == PoolBlockState::kFree) {
    End(region, block, Outcome::kFailed, MissReason::kCancelled);
  } else if (record.loading()) {
    if (record.references() > 0) region->pool->blocks.Unreference(block);
  } else if (record.pins() == 0 && !state_[record.entry].offloading()) {
    EndStore(region, record.entry, MissReason::kCancelled);
  }
}

// To let go of a GPU's memory may take the driver as long as mapping it. Its owner, who may want
// the room, hears of the end when it is there.
void RegionTransfers::ForgetIfClosed(Regions::iterator region) {
  if (!region->second.closing || !region->second.uses.empty()) return;
  if (region->second.pool->readers > 0) return unread_.push_back(region->first);
  const Region gone = std::move(regions_.extract(region).mapped());
  const auto of_session = of_session_.find(gone.session);
  if (of_session != of_session_.end()) of_session->second.erase(gone.pool->id);
  const auto memory = std::make_shared<std::unique_ptr<DevicePool>>(
      std::move(state_.blocks.RemovePool(gone.pool)->memory));
  state_.blocks.trust.Close(gone.party);
  auto tell = gate_.WhileOpen([this, session = gone.session, closed = gone.closed] {
    if (!of_session_.contains(session)) return;
    for (const std::function<void()>& call : closed) call();
  });
  if (!gone.in_host_memory) return state_.env.executor->Run([memory] { memory->reset(); }, tell);
  memory->reset();
  tell();
}

void RegionTransfers::ForgetLater(Region* region) {
  if (region->closing && region->uses.empty()) GoOnWith(region);
}

Status RegionTransfers::Begin(PoolId id, TransferId number, std::span<const BlockIndex> blocks,
                              std::function<void(TransferEnd)> done, const LayerOrder& order) {
  Region& region = regions_.at(id);
  if (region.transfers.contains(number)) {
    return MakeError(ErrorCode::kWrongState, "transfer_busy",
                     fmt::format("transfer {} is under way", number.value));
  }
  Status status;
  uint32_t position = 0;
  for (; position < blocks.size() && status; ++position) {
    const BlockIndex block = blocks[position];
    if (block.value >= region.pool->blocks.size()) {
      status = MakeError(ErrorCode::kInvalidArgument, "block_out_of_range",
                         fmt::format("block {}, item {}", block.value, position));
    } else if (!region.uses.try_emplace(block, Use{number, position}).second) {
      status = MakeError(ErrorCode::kWrongState, "block_busy",
                         fmt::format("block {}, item {}", block.value, position));
    }
  }
  if (!status) {
    for (uint32_t taken = 0; taken + 1 < position; ++taken) region.uses.erase(blocks[taken]);
    return status;
  }
  in_flight_ += blocks.size();
  const auto count = static_cast<uint32_t>(blocks.size());
  Transfer transfer{
      .done = std::move(done), .left = count, .not_begun = count, .layers = order.layers};
  if (order.counters) {
    auto counter =
        order.counters->OpenNamed(order.counter_offset, order.counter_base, order.layers);
    if (!counter) ++state_.stats.loads_without_counter;
    if (counter) {
      transfer.count = std::make_shared<LayerCount>(std::move(counter), order.layers, count);
    }
  }
  region.transfers.emplace(number, std::move(transfer));
  return {};
}

void RegionTransfers::Take(CachePool* pool, BlockIndex block, EntryIndex entry) {
  pool->blocks.TakeCommitted(block, entry);
  pool->blocks.Reference(block);
  state_.AddPlace(pool, block);
}

BlockIndex RegionTransfers::GiveBack(CachePool* pool, EntryIndex entry) {
  const BlockIndex block = state_.RemovePlace(pool, entry);
  // One that was cancelled while it was loading has lost its reference before.
  if (pool->blocks[block].references() > 0) pool->blocks.Unreference(block);
  pool->blocks.Free(block, nullptr);
  return block;
}

// --- stores ---

void RegionTransfers::Store(PoolId id, std::span<const StoreRequest> blocks) {
  Region& region = regions_.at(id);
  const NamespaceId whose = region.pool->namespace_id;
  const Trust& trust = state_.blocks.trust;
  if (trust.Distrusts(whose) || trust.Expelled(whose, region.party)) {
    for (const StoreRequest& refused : blocks) {
      End(&region, refused.block, Outcome::kFailed, MissReason::kDistrusted);
    }
    return;
  }
  while (!blocks.empty()) {
    size_t length = 1;
    while (length < blocks.size() && blocks[length].parent == blocks[length - 1].hash) ++length;
    StoreRun(&region, blocks.first(length));
    blocks = blocks.subspan(length);
  }
  std::vector<RegionSources::Stored> computed = std::exchange(region.computed, {});
  if (!region.closing) loader_.neighbours().regions().Note(region.pool, std::move(computed));
}

// The deepest of them is the oldest, and all before them are younger. A block that comes alone is
// one that was generated: walking the whole sequence for each would take longer than storing it.
void RegionTransfers::StoreRun(Region* region, std::span<const StoreRequest> run) {
  std::vector<EntryIndex> entries;
  for (const StoreRequest& block : run) entries.push_back(StoreOne(region, block));
  for (const EntryIndex entry : entries | std::views::reverse) touches_.Touch(entry);
  if (run.size() > 1 || run.front().depth % kGeneratedBlocksPerWalk == 0) {
    touches_.TouchPrefix(state_.blocks.lineage.ParentOf(entries.front()));
  }
}

// A block that only the disk has was computed because that was faster than to read it, and would be
// computed each time that it is wanted if it stayed there alone.
EntryIndex RegionTransfers::StoreOne(Region* region, const StoreRequest& request) {
  CachePool* const pool = region->pool;
  const BlockKey key{pool->namespace_id, request.hash};
  EntryIndex index = state_.blocks.Find(key);
  if (canary_.KeepsRefused(index)) {
    End(region, request.block, Outcome::kSkipped);
    return index;
  }
  index = state_.blocks.Find(key);
  if (index != kNoEntry) {
    state_.UseComputedAnew(pool, index, request.retention);
    if (InMemory(index)) {
      ++state_.stats.commit_duplicates;
      const EntryIndex copy = canary_.BeginCopy(index, request, region->party);
      if (copy == kNoEntry) {
        End(region, request.block, Outcome::kSkipped);
        return index;
      }
      Take(pool, request.block, copy);
      QueueStore(pool, request.block, copy);
      return index;
    }
    // The copy on disk may be another's.
    state_.blocks.trust.NoteStored(state_.blocks.directory.RefOf(index), kUnknownParty);
  } else {
    index = state_.AddEntry(key, request.tokens, request.depth, request.retention);
    state_.blocks.trust.NoteStored(state_.blocks.directory.RefOf(index), region->party);
    region->computed.push_back({request.block, state_.blocks.directory.RefOf(index)});
  }
  ++state_.stats.commits;
  Take(pool, request.block, index);
  state_.infinite_cache.Store(pool->namespace_id, request.hash);
  if (request.parent) state_.LinkToParent(index, *request.parent);
  state_.QueueIfUndecided(index);
  QueueStore(pool, request.block, index);
  return index;
}

void RegionTransfers::QueueStore(CachePool* pool, BlockIndex block, EntryIndex index) {
  const Namespace& name_space = state_.blocks.namespaces[pool->namespace_id.value];
  StoreLine& line = stores_[name_space.line];
  line.tenant = name_space.tenant;
  // Stores that have ended leave faster than others come, so that the list stays short.
  for (int i = 0; i < 2 && !line.stores.empty(); ++i) {
    if (UnderWay(line.stores.front().region, line.stores.front().block) != nullptr) break;
    line.stores.pop_front();
  }
  line.stores.push_back(
      {state_.clock.NowMs() + state_.options.max_wait_ms, pool->id, pool->blocks.HandleOf(block)});
  to_host_.WantAnew(index);
}

bool RegionTransfers::InMemory(EntryIndex index) const {
  const BlockEntry& entry = state_[index];
  return entry.in_pool() || entry.has_host_slot() || entry.expected_in_host();
}

void RegionTransfers::EndStore(Region* region, EntryIndex index, MissReason reason) {
  const bool stored = state_[index].in_host();
  const bool on_disk = state_[index].on_disk();
  const BlockIndex block = GiveBack(region->pool, index);
  if (state_.blocks.ReadyPool(state_[index]) == nullptr) to_host_.SourceGone(index);
  WakeWaiting(region, index);
  if (canary_.IsCopy(index)) {
    canary_.EndCopy(index);
    return End(region, block, Outcome::kSkipped);
  }
  state_.ForgetIfGone(index);
  if (stored) return End(region, block, Outcome::kCopied);
  if (on_disk) return End(region, block, Outcome::kSkipped);
  End(region, block, Outcome::kFailed, reason);
}

// Neither a region that was closed nor a handle whose store has ended names anything any more.
const PoolBlock* RegionTransfers::UnderWay(PoolId id, BlockHandle block) {
  const auto region = regions_.find(id);
  if (region == regions_.end()) return nullptr;
  const PoolBlocks& blocks = region->second.pool->blocks;
  return blocks.Current(block) ? &blocks[block.index] : nullptr;
}

const RegionTransfers::Queued* RegionTransfers::OldestWaiting(StoreLine* line) {
  std::deque<Queued>& stores = line->stores;
  for (size_t looks = kStoreLooksPerTick / stores_.size() + 1; !stores.empty() && looks > 0;
       --looks, stores.pop_front()) {
    const PoolBlock* const block = UnderWay(stores.front().region, stores.front().block);
    if (block == nullptr || block->pins() > 0 || state_[block->entry].offloading()) continue;
    return &stores.front();
  }
  return nullptr;
}

void RegionTransfers::Tick() {
  bool late = false;
  for (auto line = stores_.begin(); line != stores_.end();) {
    TickLine(&line->second);
    late |= line->second.late;
    line = line->second.stores.empty() ? stores_.erase(line) : std::next(line);
  }
  state_.pressure.store_late = late;
  if (late) state_.SchedulePump();
}

// A store whose time is over fails if host still waits for the disk a tick after it was asked to
// give up blocks, even while slots come slowly, because the engine cannot use the memory meanwhile.
// It fails, too, if not one of its tenant's stores got a slot between two ticks; a slow copy alone
// lets no store fail. A store that begins right after a tick has waited for less than its half at
// the next one, and for all of its time at the one after.
void RegionTransfers::TickLine(StoreLine* line) {
  const int64_t now_ms = state_.clock.NowMs();
  const Queued* oldest = OldestWaiting(line);
  const bool awaits_disk = state_.pressure.await_disk.contains(line->tenant);
  const bool was_late = line->late;
  const bool none_began = oldest != nullptr && line->oldest_at_last_tick == *oldest;
  const bool disk_is_slow = was_late && awaits_disk;
  if (disk_is_slow || (none_began && (was_late || !awaits_disk))) {
    EndLateStores(line, now_ms);
    oldest = OldestWaiting(line);
  }
  line->oldest_at_last_tick = oldest != nullptr ? std::optional(*oldest) : std::nullopt;
  const int64_t asked_ms = now_ms + state_.options.max_wait_ms / 2;
  line->late = oldest != nullptr && asked_ms >= oldest->deadline_ms && (was_late || awaits_disk);
}

// In the order in which they began, which is that of their deadlines.
void RegionTransfers::EndLateStores(StoreLine* line, int64_t now_ms) {
  for (size_t most = kLateStoresPerTick / stores_.size() + 1; most > 0; --most) {
    const Queued* const oldest = OldestWaiting(line);
    if (oldest == nullptr || now_ms < oldest->deadline_ms) return;
    const EntryIndex entry = UnderWay(oldest->region, oldest->block)->entry;
    const auto region = regions_.find(oldest->region);
    line->stores.pop_front();
    state_.drops.Count(entry, Tier::kHost, DropReason::kHostFull);
    EndStore(&region->second, entry, MissReason::kHostFull);
    ForgetLater(&region->second);
  }
}

// --- both ---

void RegionTransfers::GoOnWith(Region* region) {
  if (std::exchange(region->goes_on, true)) return;
  going_on_.push_back(region->pool->id);
  state_.SchedulePart();
}

// As many regions as there are now, so that one that stays has its next turn after all others.
void RegionTransfers::GoOn() {
  std::erase_if(unread_, [this](PoolId id) {
    const auto region = regions_.find(id);
    if (region == regions_.end()) return true;
    if (region->second.pool->readers > 0) return false;
    GoOnWith(&region->second);
    return true;
  });
  size_t most = kBlocksPerEvent;
  for (size_t turns = going_on_.size(); turns > 0 && most > 0; --turns) {
    const auto region = regions_.find(going_on_.front());
    going_on_.pop_front();
    if (region == regions_.end()) continue;
    most -= std::min(most, kRegionPrice);
    region->second.goes_on = false;
    CancelSome(&region->second, &most);
    LoadWoken(&region->second, &most);
    ForgetIfClosed(region);
  }
  // A part of their own: a session may have had any number, and others' loads do not wait for them.
  most = kBlocksPerEvent;
  while (!to_close_.empty() && most > 0) {
    const auto region = regions_.find(to_close_.front());
    to_close_.pop_front();
    if (region == regions_.end()) continue;
    most -= std::min(most, kRegionPrice);
    CancelAll(&region->second, &most);
    ForgetIfClosed(region);
  }
  if (!going_on_.empty() || !to_close_.empty()) state_.SchedulePart();
}

void RegionTransfers::OnEnded(std::span<const BlockEnd> ends) {
  for (const BlockEnd& end : ends) {
    if (end.move == BlockMove::kToPool) OnLoadEnded(end);
    if (end.move == BlockMove::kFromRegion) OnStoreEnded(end);
  }
}

void RegionTransfers::OnStoreEnded(const BlockEnd& end) {
  // One that was cancelled has been given back already.
  const PoolBlock* const stored = UnderWay(end.region, end.place);
  if (stored == nullptr) return;
  // The block is being copied once more: that offload has an end of its own.
  const EntryIndex index = stored->entry;
  if (state_[index].offload_queued() || state_[index].offloading()) return;
  const auto region = regions_.find(end.region);
  EndStore(&region->second, index, end.reason);
  ForgetLater(&region->second);
}

void RegionTransfers::End(Region* region, BlockIndex block, Outcome outcome, MissReason reason) {
  const Use use = region->uses.at(block);
  region->uses.erase(block);
  --in_flight_;
  const auto found = region->transfers.find(use.transfer);
  Transfer& transfer = found->second;
  const bool copied = outcome == Outcome::kCopied;
  const bool failed = outcome == Outcome::kFailed;
  transfer.end.copied += copied;
  transfer.end.skipped += outcome == Outcome::kSkipped;
  if (failed) transfer.end.failed.emplace_back(use.position, reason);
  if (failed && transfer.count) transfer.count->Fail();
  if (copied && transfer.count && !use.in_layers) transfer.count->EndWhole();
  if (--transfer.left > 0) return;
  Transfer ended = std::move(transfer);
  region->transfers.erase(found);
  // The client may name the counter anew as soon as it hears of the end.
  ended.count.reset();
  // No client hears of the ends of a session that is gone.
  if (!ended.done || !of_session_.contains(region->session)) return;
  TransferEnd end = ended.end;
  std::ranges::sort(end.failed);
  ended.done(std::move(end));
}

}  // namespace kvtier
