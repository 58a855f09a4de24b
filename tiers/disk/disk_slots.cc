#include "tiers/disk/disk_slots.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "tiers/disk/chunk_header.h"
#include "tiers/disk/slot_header.h"

namespace kvtier {
namespace {

// Blocks beyond a cap leave in stretches, so that they do not hold the event loop.
constexpr int kCapEvictionsPerCall = 1024;

}  // namespace

DiskSlots::DiskSlots(CacheState* state)
    : state_(*state),
      slab_(state->options.chunk_bytes, kChunkHeaderBytes),
      committer_(state, [this](DiskLocation location) { FreeSlot(location); }),
      leaving_bytes_(state->tenants.rows()) {
  slab_.Grow(state_.env.geometry.chunks);
  header_slot_bytes_.resize(state_.env.geometry.chunks);
}

void DiskSlots::RestoreSpaces(IndexSnapshot* snapshot) {
  constexpr uint32_t kMaxSpaces = 1 << 16;
  for (auto& [id, identity] : snapshot->spaces) {
    const uint64_t slot_bytes = SlotBytes(identity.block_bytes);
    if (id.value >= kMaxSpaces || identity.block_bytes == 0 || !slab_.Fits(slot_bytes)) continue;
    if (id.value >= state_.spaces.size()) state_.spaces.resize(id.value + 1);
    Space& space = state_.spaces[id.value];
    space = state_.MakeSpace(identity);
    space.indexed = true;
  }
}

std::vector<uint32_t> DiskSlots::GroupsOfChunks(const IndexSnapshot& snapshot) const {
  // The majority's, by one pass (Boyer and Moore). The rest was written before its tenant, or that
  // majority's, got chunks of its own, or is the header of a slot given up long ago; it stays until
  // it is evicted or expires.
  struct Vote {
    uint32_t group = 0;
    uint32_t lead = 0;
  };
  std::vector<Vote> votes(state_.env.geometry.chunks);
  for (const IndexRecord& record : snapshot.records) {
    const uint64_t chunk = record.location.offset / slab_.chunk_bytes();
    if (record.key.space.value >= state_.spaces.size() || chunk >= votes.size()) continue;
    const Space& space = state_.spaces[record.key.space.value];
    const uint32_t group = state_.tenants.GroupOf(Tier::kDisk, space.tenant);
    Vote& vote = votes[chunk];
    if (vote.lead == 0) vote.group = group;
    vote.lead = vote.group == group ? vote.lead + 1 : vote.lead - 1;
  }
  std::vector<uint32_t> groups;
  for (const Vote& vote : votes) groups.push_back(vote.group);
  return groups;
}

void DiskSlots::Restore(IndexSnapshot snapshot) {
  RestoreSpaces(&snapshot);
  // Coldest first; of one sequence the deepest first.
  std::sort(snapshot.records.begin(), snapshot.records.end(),
            [](const IndexRecord& a, const IndexRecord& b) {
              return a.last_use_s != b.last_use_s ? a.last_use_s < b.last_use_s : a.depth > b.depth;
            });
  state_.directory.Reserve(snapshot.records.size());
  const std::vector<uint32_t> groups = GroupsOfChunks(snapshot);
  for (const IndexRecord& record : snapshot.records) RestoreRecord(record, groups);
}

void DiskSlots::RestoreRecord(const IndexRecord& record, const std::vector<uint32_t>& groups) {
  next_generation_ = std::max(next_generation_, record.generation + 1);
  const bool space_known = record.key.space.value < state_.spaces.size() &&
                           state_.spaces[record.key.space.value].slot_bytes > 0;
  if (!space_known || state_.directory.Find(record.key) != kNoEntry) {
    state_.CountDrop(record.key, Tier::kDisk, DropReason::kStaleIndex);
    return;
  }
  const Space& space = state_.spaces[record.key.space.value];
  const uint64_t chunk = record.location.offset / slab_.chunk_bytes();
  const SlotClass slots{space.slot_bytes, chunk < groups.size() ? groups[chunk] : 0};
  const EntryIndex index =
      state_.AddEntry(record.key, record.tokens, record.depth, record.retention);
  BlockEntry& entry = state_[index];
  entry.created_s = record.created_s;
  entry.last_use_s = entry.indexed_use_s = record.last_use_s;
  if (!slab_.Claim(record.location.offset, slots, index)) {
    state_.CountDrop(record.key, Tier::kDisk, DropReason::kStaleIndex);
    committer_.Delete(record.key, record.location, IndexCommitter::Slot::kKeep);
    state_.ForgetIfGone(index);
    return;
  }
  entry.disk = record.location;
  entry.disk_generation = record.generation;
  entry.verified = record.verified;
  header_slot_bytes_[state_.env.geometry.ChunkOf(record.location)] = space.slot_bytes;
  ++blocks_;
  state_.tenants.Restore(Tier::kDisk, space.tenant, space.slot_bytes);
  state_.endless.Store(record.key.space, record.key.hash);
  state_.TouchDisk(index);
  state_.SetPersisted(index, record.verified);
  if (state_.Expired(entry)) {
    Drop(index, DropReason::kExpired);
  } else {
    ++state_.stats.restored_blocks;
  }
}

SlotClass DiskSlots::ClassOf(const Space& space) const {
  return {space.slot_bytes, state_.tenants.GroupOf(Tier::kDisk, space.tenant)};
}

DiskSlots::Outcome DiskSlots::Reserve(EntryIndex index) {
  if (degraded()) return Outcome::kFull;
  BlockEntry& entry = state_[index];
  const Space& space = state_.SpaceOf(entry);
  const SlotClass slots = ClassOf(space);
  if (!state_.tenants.Fits(Tier::kDisk, space.tenant, slots.slot_bytes)) {
    KeepUnderCap(space.tenant, slots.slot_bytes, kCapEvictionsPerCall);
    const bool leaving = leaving_bytes_[space.tenant.value] > 0 || !committer_.Idle();
    return leaving ? Outcome::kWait : Outcome::kOverCap;
  }
  const std::optional<uint64_t> address = slab_.Allocate(slots, index);
  if (!address) {
    KeepFree(space);
    const bool evicting = freeing_[slots] > 0 || slab_.closing_chunks() > 0 || EvictFor(space);
    return evicting || !committer_.Idle() ? Outcome::kWait : Outcome::kFull;
  }
  entry.disk = DiskLocation{*address};
  entry.disk_generation = next_generation_++;
  entry.motion.writing = true;
  state_.tenants.Charge(Tier::kDisk, space.tenant, slots.slot_bytes);
  KeepUnderCap(space.tenant, 0, kCapEvictionsPerCall);
  KeepFree(space);
  return Outcome::kReserved;
}

void DiskSlots::KeepFree(const Space& space) {
  const SlotClass slots = ClassOf(space);
  // Who has chunks of his own keeps a share of these free, not of everybody's.
  const uint64_t total =
      slots.group == 0 ? slab_.TotalSlots(slots.slot_bytes)
                       : slab_.GroupChunks(slots.group) * slab_.SlotsPerChunk(slots.slot_bytes);
  const auto target = static_cast<uint64_t>(
      std::ceil(state_.options.disk_free_fraction * static_cast<double>(total)));
  const auto coming = [&] {
    return slab_.FreeSlots(slots) + freeing_[slots] +
           slab_.closing_chunks() * slab_.SlotsPerChunk(slots.slot_bytes);
  };
  while (coming() < target) {
    if (!EvictFor(space)) return;
  }
}

void DiskSlots::KeepUnderCap(TenantId tenant, uint64_t bytes, int limit) {
  const uint64_t cap = state_.tenants.cap_bytes(Tier::kDisk, tenant);
  if (cap == UINT64_MAX) return;
  const auto share =
      static_cast<uint64_t>(state_.options.disk_free_fraction * static_cast<double>(cap));
  const uint64_t allowed = cap - std::min(cap, std::max(bytes, share));
  const auto staying = [&] {
    return state_.tenants.used_bytes(Tier::kDisk, tenant) - leaving_bytes_[tenant.value];
  };
  for (; limit > 0 && staying() > allowed; --limit) {
    if (!EvictOwn(tenant)) return;
  }
}

bool DiskSlots::EvictOwn(TenantId tenant) {
  RecencyLanes::Walk walk(state_.disk_recency, [&](TenantId other) { return other == tenant; });
  for (EntryIndex victim = walk.Next(); victim != kNoEntry; victim = walk.Next()) {
    const BlockEntry& entry = state_[victim];
    if (!Evictable(entry)) continue;
    Drop(victim, entry.in_host() ? DropReason::kCopyAbove : DropReason::kTenantCap);
    return true;
  }
  return false;
}

void DiskSlots::TrimToCaps() {
  for (uint32_t i = 1; i < state_.tenants.rows(); ++i) {
    if (!state_.tenants.OverCap(Tier::kDisk, TenantId(i))) continue;
    KeepUnderCap(TenantId(i), 0, kCapEvictionsPerCall);
  }
}

bool DiskSlots::Exposed(TenantId tenant) const {
  const uint64_t reserved = state_.tenants.ReservedChunks(Tier::kDisk, tenant);
  return reserved == 0 || slab_.GroupChunks(tenant.value) > reserved;
}

bool DiskSlots::Evictable(const BlockEntry& entry) const {
  const BlockMotion& motion = entry.motion;
  return entry.on_disk() && !entry.pinned && !motion.loading && !motion.reading &&
         !motion.committing && !motion.verifying;
}

bool DiskSlots::EvictFor(const Space& space) {
  Room room{space.tenant, ClassOf(space)};
  const uint64_t reserved = state_.tenants.ReservedChunks(Tier::kDisk, space.tenant);
  room.own = slab_.GroupChunks(room.slots.group) >= reserved;
  if (EvictFrom(room)) return true;
  if (room.own) return false;
  // Nobody else has anything that may go.
  room.own = true;
  return EvictFrom(room);
}

bool DiskSlots::EvictFrom(const Room& room) {
  RecencyLanes::Walk walk(state_.disk_recency, [&](TenantId tenant) {
    return tenant == room.tenant ? room.own : Exposed(tenant);
  });
  for (EntryIndex victim = walk.Next(); victim != kNoEntry; victim = walk.Next()) {
    const BlockEntry& entry = state_[victim];
    if (!Evictable(entry)) continue;
    if (slab_.ClassAt(entry.disk.offset) == room.slots) {
      Drop(victim, entry.in_host() ? DropReason::kCopyAbove : DropReason::kLru);
      return true;
    }
    // The coldest block belongs to another class: its whole chunk goes, if it can.
    if (EvictChunk(entry.disk, room)) return true;
  }
  return false;
}

bool DiskSlots::EvictChunk(DiskLocation location, const Room& room) {
  // What a restart found may lie in a chunk that has become another tenant's.
  const uint32_t group = slab_.ClassAt(location.offset).group;
  if (group != room.slots.group && !Exposed(TenantId(group))) return false;
  bool free_of_motion = true;
  std::vector<EntryIndex> owners;
  slab_.ForEachInChunk(location.offset, [&](uint64_t, EntryIndex owner) {
    if (owner == kNoEntry || !Evictable(state_[owner])) free_of_motion = false;
    owners.push_back(owner);
  });
  if (!free_of_motion) return false;
  slab_.Close(location.offset);
  for (const EntryIndex owner : owners) Drop(owner, DropReason::kChunkReclaimed);
  return true;
}

void DiskSlots::Drop(EntryIndex index, DropReason reason, IndexCommitter::Slot slot) {
  BlockEntry& entry = state_[index];
  KVT_CHECK(entry.disk.valid() && !entry.motion.writing && !entry.motion.committing);
  state_.CountDrop(index, Tier::kDisk, reason);
  // Written soon after its commit; no more exact time is kept, across restarts least of all.
  state_.stats.residence[static_cast<size_t>(Tier::kDisk)].ObserveMs(
      (int64_t{state_.NowS()} - entry.created_s) * 1000);
  --blocks_;
  state_.LeaveDiskOrder(index);
  // The slot stays taken until the deletion is durable.
  slab_.SetOwner(entry.disk.offset, kNoEntry);
  const Space& space = state_.SpaceOf(entry);
  if (slot == IndexCommitter::Slot::kFree) {
    Leave(space.tenant, entry.disk);
  } else {
    ++state_.stats.slots_quarantined;
    state_.tenants.Refund(Tier::kDisk, space.tenant, space.slot_bytes);
  }
  committer_.Delete({entry.space, entry.hash}, entry.disk, slot);
  entry.disk = DiskLocation{};
  entry.verified = entry.update_queued = false;
  // Writing again what was just evicted would only evict the next, in circles.
  entry.persist_failed = true;
  state_.SetPersisted(index, false);
  state_.ForgetIfGone(index);
}

void DiskSlots::Leave(TenantId tenant, DiskLocation location) {
  const SlotClass slots = slab_.ClassAt(location.offset);
  if (!slab_.Closing(location.offset)) ++freeing_[slots];
  leaving_bytes_[tenant.value] += slots.slot_bytes;
  if (tenant != kOtherTenants) leaving_[location.offset] = tenant;
}

void DiskSlots::FreeSlot(DiskLocation location) {
  const SlotClass slots = slab_.ClassAt(location.offset);
  if (!slab_.Closing(location.offset)) --freeing_[slots];
  TenantId tenant = kOtherTenants;
  if (const auto whose = leaving_.extract(location.offset)) tenant = whose.mapped();
  leaving_bytes_[tenant.value] -= slots.slot_bytes;
  state_.tenants.Refund(Tier::kDisk, tenant, slots.slot_bytes);
  slab_.Free(location.offset);
}

void DiskSlots::Write(EntryIndex index, std::span<const std::byte> slot,
                      std::function<void(Status)> done) {
  const DiskLocation location = state_[index].disk;
  WithChunkHeader(
      index, [this, index, slot, location, done = std::move(done)](const Status& header_status) {
        const auto finish = [this, index, bytes = slot.size(), done](const Status& status) {
          OnWritten(index, bytes, status);
          done(status);
        };
        if (!header_status) {
          finish(header_status);
          return;
        }
        const DiskGeometry& geometry = state_.env.geometry;
        state_.env.files[geometry.FileOf(location)]->Write(geometry.OffsetInFile(location), slot,
                                                           finish);
      });
}

void DiskSlots::OnWritten(EntryIndex index, uint64_t bytes, const Status& status) {
  BlockEntry& entry = state_[index];
  entry.motion.writing = false;
  if (status) {
    ++state_.stats.disk_write_blocks;
    state_.stats.disk_write_bytes += bytes;
    ++blocks_;
    committer_.Put(index);
    return;
  }
  ++state_.stats.disk_write_errors;
  ++state_.stats.slots_quarantined;
  write_pause_until_ms_ = state_.env.clock->MonotonicMs() + kWritePauseMs;
  // Whatever the disk did there, the slot is not to be trusted before a restart.
  slab_.SetOwner(entry.disk.offset, kNoEntry);
  const Space& space = state_.SpaceOf(entry);
  state_.tenants.Refund(Tier::kDisk, space.tenant, space.slot_bytes);
  entry.disk = DiskLocation{};
}

void DiskSlots::WithChunkHeader(EntryIndex index, std::function<void(Status)> write) {
  const BlockEntry& entry = state_[index];
  const Space& space = state_.SpaceOf(entry);
  const DiskGeometry& geometry = state_.env.geometry;
  const uint64_t chunk = geometry.ChunkOf(entry.disk);
  const auto under_way = header_writes_.find(chunk);
  if (under_way != header_writes_.end()) {
    under_way->second.waiting.push_back(std::move(write));
    return;
  }
  if (header_slot_bytes_[chunk] == space.slot_bytes) {
    write({});
    return;
  }
  HeaderWrite& header = header_writes_[chunk];
  header.buffer = AlignedBuffer(kChunkHeaderBytes);
  header.waiting.push_back(std::move(write));
  EncodeChunkHeader(
      {chunk, space.slot_bytes, entry.disk_generation, space.identity.tenant, space.identity.model},
      header.buffer.span().first<kChunkHeaderBytes>());
  const DiskLocation start = geometry.ChunkStart(chunk);
  state_.env.files[geometry.FileOf(start)]->Write(
      geometry.OffsetInFile(start), header.buffer.span(),
      [this, chunk, slot_bytes = space.slot_bytes](const Status& status) {
        header_slot_bytes_[chunk] = status ? slot_bytes : 0;
        const auto node = header_writes_.extract(chunk);
        for (const auto& waiting : node.mapped().waiting) waiting(status);
      });
}

void DiskSlots::Proven(EntryIndex index) {
  BlockEntry& entry = state_[index];
  if (entry.persisted || !entry.on_disk() || entry.motion.committing) return;
  if (!entry.verified) {
    // Found by a rebuild, which put it into the index.
    entry.verified = true;
    state_.SetPersisted(index, true);
    state_.QueueRecencyUpdate(index);
  } else if (!degraded()) {
    committer_.Put(index);
  }
}

void DiskSlots::Read(DiskLocation location, std::span<std::byte> slot, IoDone done) {
  const DiskGeometry& geometry = state_.env.geometry;
  state_.env.files[geometry.FileOf(location)]->Read(geometry.OffsetInFile(location), slot,
                                                    std::move(done));
}

void DiskSlots::Tick() {
  if (write_pause_until_ms_ > 0 && state_.env.clock->MonotonicMs() >= write_pause_until_ms_) {
    write_pause_until_ms_ = 0;
  }
  committer_.RetryAfterFailure();
}

void DiskSlots::FlushRecency() {
  for (uint32_t row = 0; row < state_.directory.end(); ++row) {
    const EntryIndex index(row);
    if (!state_.directory.Live(index)) continue;
    const BlockEntry& entry = state_[index];
    if (entry.last_use_s > entry.indexed_use_s) state_.QueueRecencyUpdate(index);
  }
}

}  // namespace kvtier
