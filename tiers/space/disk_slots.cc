// SPDX-License-Identifier: Apache-2.0
#include "tiers/space/disk_slots.h"

#include <algorithm>

#include "base/result.h"
#include "tiers/index/index_codec.h"
#include "tiers/space/cold_choice.h"
#include "tiers/space/pin_share.h"
#include "tiers/storage/disk_geometry.h"
#include "tiers/storage/slot_header.h"

namespace kvtier {
namespace {

// Slabs of another slot class that one search for a victim tries to empty: some cannot be, and a
// search through all of them would hold the event loop.
constexpr size_t kSlabsTriedPerSearch = 16;

// Whether a block leaves the disk for another.
bool IsForSpace(DropReason reason) {
  return reason == DropReason::kLru || reason == DropReason::kTenantCap ||
         reason == DropReason::kSlabReclaimed;
}

// The required header of the slab in which the entry has its slot.
SlabHeader HeaderOf(const BlockEntry& entry, const Namespace& name_space,
                    const DiskGeometry& geometry) {
  return {.slab = geometry.SlabOf(entry.disk),
          .slot_bytes = name_space.slot_bytes,
          .generation = entry.disk_generation,
          .tenant = name_space.identity.tenant,
          .model = name_space.identity.model};
}

// Behind all others, or the next search would meet them first again.
void PassOver(CacheState* state, const std::vector<EntryIndex>& passed) {
  for (const EntryIndex index : passed) {
    const BlockEntry& entry = (*state)[index];
    state->orders.TouchDisk(state->blocks.TenantOf(entry), index, entry);
  }
}

}  // namespace

DiskSlots::DiskSlots(CacheState* state, ColdChoice* cold)
    : state_(*state),
      allocator_(state->options.slab_bytes, kSlabHeaderBytes, kMaxDrives),
      health_(state, this),
      committer_(state, this),
      leaving_(&state->tenants, &allocator_),
      room_(state, &allocator_, &leaving_),
      slab_headers_(&state->env, &health_),
      quarantined_(state, &allocator_, &health_),
      passed_(state->tenants.rows()),
      cold_(cold) {
  state_.pinned_slabs.disk.SetAllocator(&allocator_);
  const DiskGeometry& geometry = state_.env.geometry;
  for (uint32_t drive = 0; drive < kMaxDrives; ++drive) {
    if (geometry.drive_slabs[drive] > 0) allocator_.Grow(geometry.drive_slabs[drive], drive);
  }
}

// Its errors may have paused writing to all. The blocks are dropped in parts: see LostDrives.
void DiskSlots::OnDriveFailed(uint32_t drive) {
  allocator_.CloseDrive(drive);
  leaving_.Forget();
  pause_.Forget();
  state_.SchedulePart();
}

void DiskSlots::Resize(const DriveSlabs& staying, const DriveSlabs& in_files) {
  for (uint32_t drive = 0; drive < kMaxDrives; ++drive) {
    if (in_files[drive] == 0) continue;
    allocator_.Resize(staying[drive], drive);
    slab_headers_.Resize(drive, in_files[drive]);
    BlockFile& file = *state_.env.files[state_.env.geometry.FileOfDrive(drive)];
    file.SetBytes(kFirstSlabOffset + in_files[drive] * allocator_.slab_bytes());
  }
  leaving_.Forget();
  quarantined_.FreeLeaving();
}

std::optional<DiskLocation> DiskSlots::LastLeaving() {
  for (uint32_t drive = 0; drive < kMaxDrives; ++drive) {
    if ((health_.failed() >> drive & 1) != 0) continue;
    if (const auto slab = allocator_.LastLeaving(drive)) return DiskLocation{*slab};
  }
  return std::nullopt;
}

std::optional<uint64_t> DiskSlots::RoomFor(EntryIndex index, uint64_t slots) {
  const Namespace& name_space = state_.blocks.NamespaceOf(state_[index]);
  const SlotClass of_class = room_.ClassOf(name_space);
  const auto room = [&] {
    const uint64_t coming = room_.ComingSlots(of_class);
    return coming - std::min(coming, room_.WantedSlots(of_class));
  };
  const uint64_t there = std::min(slots, room());
  bool evicted = false;
  for (uint64_t most = std::min<uint64_t>(slots - there, state_.options.search_part_blocks);
       most > 0 && room() < slots && EvictFor(name_space); --most) {
    evicted = true;
  }
  return evicted ? std::nullopt : std::optional(there);
}

void DiskSlots::BeginMove(EntryIndex index) {
  BlockEntry& entry = state_[index];
  LeaveSlot(entry, IndexCommitter::Slot::kFree);
  state_.Apply(index, BlockEvent::kMoveOnDisk);
  entry.disk = DiskLocation{};
}

bool DiskSlots::Adopt(EntryIndex index, const IndexRecord& record, uint32_t group) {
  BlockEntry& entry = state_[index];
  const Namespace& name_space = state_.blocks.NamespaceOf(entry);
  if (!allocator_.Claim(record.location.offset, {name_space.slot_bytes, group}, index)) {
    state_.drops.Count(record.key, Tier::kDisk, DropReason::kStaleIndex);
    committer_.Delete(record.key, record.location, IndexCommitter::Slot::kKeep);
    state_.ForgetIfGone(index);
    return false;
  }
  entry.disk = record.location;
  entry.disk_generation = record.generation;
  entry.was_read_from_disk = 1;
  state_.Apply(index, BlockEvent::kRestore);
  if (record.verified) state_.Apply(index, BlockEvent::kTrust);
  slab_headers_.Assume(state_.env.geometry.SlabOf(record.location), name_space.slot_bytes);
  ++blocks_;
  state_.tenants.Restore(Tier::kDisk, name_space.tenant, name_space.slot_bytes);
  state_.usage.Take(name_space.line, Tier::kDisk, name_space.slot_bytes);
  return true;
}

// Freed slots come back only when their deletion is durable, so space is made ahead of need, and a
// write that finds none waits for the commit instead of evicting more.
DiskSlots::Outcome DiskSlots::Reserve(EntryIndex index) {
  if (degraded()) {
    const bool waits = pause_.is_waited_out() && !committer_.refuses();
    return waits ? Outcome::kWait : Outcome::kFull;
  }
  BlockEntry& entry = state_[index];
  const Namespace& name_space = state_.blocks.NamespaceOf(entry);
  const SlotClass slots = room_.ClassOf(name_space);
  if (!state_.tenants.Fits(Tier::kDisk, name_space.tenant, slots.slot_bytes)) {
    const bool searched = KeepUnderCap(name_space.tenant, slots.slot_bytes);
    const bool leaving = leaving_.bytes(name_space.tenant) > 0 || !committer_.Idle();
    return leaving || !searched ? Outcome::kWait : Outcome::kOverCap;
  }
  const std::optional<uint64_t> address = allocator_.Allocate(slots, index);
  if (!address) {
    KeepFree(name_space);
    const bool evicting =
        leaving_.Of(slots) > 0 || allocator_.closing_slabs() > 0 || EvictFor(name_space);
    return evicting || !committer_.Idle() ? Outcome::kWait : Outcome::kFull;
  }
  entry.disk = DiskLocation{*address};
  entry.disk_generation = next_generation_++;
  state_.Apply(index, BlockEvent::kTakeDiskSlot);
  state_.tenants.Charge(Tier::kDisk, name_space.tenant, slots.slot_bytes);
  state_.usage.Take(name_space.line, Tier::kDisk, slots.slot_bytes);
  KeepUnderCap(name_space.tenant, 0);
  KeepFree(name_space);
  return Outcome::kReserved;
}

void DiskSlots::KeepFree(const Namespace& name_space) {
  const SlotClass slots = room_.ClassOf(name_space);
  // Blocks in slabs that leave make no room.
  for (uint32_t steps = state_.options.search_part_blocks; steps > 0; --steps) {
    if (room_.ComingSlots(slots) >= room_.WantedSlots(slots) || !EvictFor(name_space)) return;
  }
}

// Counts blocks that are leaving already as gone, or one block too many would be evicted for each
// commit that is under way.
bool DiskSlots::KeepUnderCap(TenantId tenant, uint64_t bytes) {
  const uint64_t allowed = room_.AllowedBytes(tenant, bytes);
  uint64_t& passed = passed_[tenant.value];
  for (uint32_t steps = state_.options.search_part_blocks; room_.StayingBytes(tenant) > allowed;) {
    const uint32_t before = steps;
    if (EvictOwn(tenant, &steps)) {
      passed = 0;
      continue;
    }
    passed += before - steps;
    if (steps == 0 && passed < state_.orders.disk.size(tenant)) {
      state_.SchedulePart();
      return false;
    }
    passed = 0;
    break;
  }
  return true;
}

bool DiskSlots::EvictOwn(TenantId tenant, uint32_t* steps) {
  TenantRecency::Walk walk(state_.orders.disk, [&](TenantId other) { return other == tenant; });
  std::vector<EntryIndex> passed;
  for (; *steps > 0; --*steps) {
    const EntryIndex victim = walk.Next();
    if (victim == kNoEntry) return false;
    ++state_.stats.disk_eviction_steps;
    const BlockEntry& entry = state_[victim];
    if (!entry.AtRestOnDisk() || entry.pinned()) {
      passed.push_back(victim);
      continue;
    }
    Drop(victim, entry.in_host() ? DropReason::kCopyAbove : DropReason::kTenantCap);
    --*steps;
    return true;
  }
  // As in EvictFrom.
  PassOver(&state_, passed);
  return false;
}

void DiskSlots::TrimToCaps() {
  for (uint32_t i = 1; i < state_.tenants.rows(); ++i) {
    if (!state_.tenants.OverCap(Tier::kDisk, TenantId(i))) continue;
    KeepUnderCap(TenantId(i), 0);
  }
}

// The order has blocks, too, whose writes have not ended. The case that another class takes a whole
// slab of this one is not foreseen.
void DiskSlots::ForEachLeavingSoon(uint64_t bytes,
                                   const std::function<void(EntryIndex)>& visit) const {
  // The bytes still to leave for other blocks of the class, and for the tenant's cap.
  std::unordered_map<SlotClass, uint64_t, SlotClassHash> for_class;
  std::unordered_map<uint32_t, uint64_t> for_cap;
  const auto beyond = [bytes](uint64_t spare) { return bytes - std::min(bytes, spare); };
  TenantRecency::Walk walk(state_.orders.disk, [](TenantId) { return true; });
  for (uint32_t steps = state_.options.search_part_blocks; steps > 0; --steps) {
    const EntryIndex index = walk.Next();
    if (index == kNoEntry) return;
    const BlockEntry& entry = state_.blocks.directory[index];
    if (!entry.on_disk()) continue;
    const SlotClass slots = allocator_.ClassAt(entry.disk.offset);
    const TenantId tenant = state_.blocks.TenantOf(entry);
    if (!for_class.contains(slots)) for_class[slots] = beyond(room_.SpareBytes(slots));
    if (!for_cap.contains(tenant.value)) for_cap[tenant.value] = beyond(room_.SpareBytes(tenant));
    uint64_t& of_class = for_class[slots];
    uint64_t& of_cap = for_cap[tenant.value];
    if (of_class == 0 && of_cap == 0) continue;
    of_class -= std::min(of_class, slots.slot_bytes);
    of_cap -= std::min(of_cap, slots.slot_bytes);
    visit(index);
  }
}

bool DiskSlots::EvictFor(const Namespace& name_space) {
  SpaceRequest request{name_space.tenant, room_.ClassOf(name_space)};
  const uint64_t reserved = state_.tenants.ReservedSlabs(Tier::kDisk, name_space.tenant);
  request.own = allocator_.GroupSlabs(request.slots.group) >= reserved;
  if (EvictFrom(request)) return true;
  if (request.own) return false;
  // No other tenant has anything that may go.
  request.own = true;
  return EvictFrom(request);
}

bool DiskSlots::EvictFrom(const SpaceRequest& request) {
  const EntryIndex unpinned =
      EndPinsBeyondShare(&state_, Tier::kDisk, allocator_, allocator_.slabs(), request.slots,
                         [this](TenantId tenant) { return room_.EvictableForOthers(tenant); });
  if (unpinned != kNoEntry && EvictSlab(state_[unpinned].disk, request)) return true;
  TenantRecency::Walk walk(state_.orders.disk, [&](TenantId tenant) {
    return tenant == request.tenant ? request.own : room_.EvictableForOthers(tenant);
  });
  std::vector<uint64_t> tried_slabs;
  std::vector<EntryIndex> stuck;
  std::vector<EntryIndex> passed;
  bool evicted = false;
  uint32_t steps = state_.options.search_part_blocks;
  for (EntryIndex victim = walk.Next(); victim != kNoEntry && steps > 0; victim = walk.Next()) {
    --steps;
    ++state_.stats.disk_eviction_steps;
    const BlockEntry& entry = state_[victim];
    if (!entry.AtRestOnDisk() || entry.pinned() || health_.Failed(entry.disk)) {
      passed.push_back(victim);
      continue;
    }
    // A slab that leaves is never cut anew: its blocks go one by one.
    if (allocator_.Leaving(entry.disk.offset) ||
        allocator_.ClassAt(entry.disk.offset) == request.slots) {
      Drop(victim, entry.in_host() ? DropReason::kCopyAbove : DropReason::kLru);
      evicted = true;
      break;
    }
    // The coldest block belongs to another class: its whole slab goes, if it can.
    const uint64_t slab = state_.env.geometry.SlabOf(entry.disk);
    const bool known =
        state_.pinned_slabs.disk.Has(slab) || std::ranges::count(tried_slabs, slab) > 0;
    if (!known && tried_slabs.size() == kSlabsTriedPerSearch) break;
    evicted = !known && EvictSlab(entry.disk, request);
    if (evicted) break;
    if (!known) tried_slabs.push_back(slab);
    stuck.push_back(victim);
  }
  // Blocks that are to be written, and whose bytes do not come to host, may stand in front for
  // ever: a search that saw nothing behind them lets the next one see more.
  if (!evicted && steps == 0) stuck.insert(stuck.end(), passed.begin(), passed.end());
  PassOver(&state_, stuck);
  return evicted;
}

// A slab serves another slot size only when it is empty. It is closed first, so that none of its
// slots is given out again while deletions become durable.
bool DiskSlots::EvictSlab(DiskLocation location, const SpaceRequest& request) {
  // A block that a restart found may lie in a slab that has become another tenant's.
  if (allocator_.Leaving(location.offset)) return false;
  const uint32_t group = allocator_.ClassAt(location.offset).group;
  if (group != request.slots.group && !room_.EvictableForOthers(TenantId(group))) return false;
  bool free_of_motion = true;
  std::vector<EntryIndex> owners;
  allocator_.ForEachInSlab(location.offset, [&](uint64_t, EntryIndex owner) {
    if (owner == kNoEntry || !state_[owner].AtRestOnDisk()) free_of_motion = false;
    owners.push_back(owner);
  });
  if (!free_of_motion) return false;
  allocator_.Close(location.offset);
  for (const EntryIndex owner : owners) Drop(owner, DropReason::kSlabReclaimed);
  return true;
}

void DiskSlots::Drop(EntryIndex index, DropReason reason, IndexCommitter::Slot slot) {
  BlockEntry& entry = state_[index];
  // A block that an operator evicts must not come back with an index that is rebuilt from the
  // headers.
  const bool by_hand = reason == DropReason::kEvictedByHand;
  if (by_hand && slot == IndexCommitter::Slot::kFree) slot = IndexCommitter::Slot::kVoid;
  if (cold_ != nullptr && IsForSpace(reason)) cold_->CountLoss(index);
  state_.drops.Count(index, Tier::kDisk, reason);
  // Written soon after its commit; no more exact time is kept, across restarts least of all.
  state_.stats.residence[static_cast<size_t>(Tier::kDisk)].ObserveMs(
      (int64_t{state_.clock.NowS()} - entry.created_s) * 1000);
  if (!entry.was_read_from_disk) {
    state_.stats.disk_never_read.Add(int64_t{state_.clock.NowS()} - entry.created_s,
                                     state_.blocks.NamespaceOf(entry).slot_bytes);
  }
  LeaveSlot(entry, slot);
  // It is not written again before its next use: that would only evict the next, in circles.
  state_.Apply(index, BlockEvent::kDropFromDisk);
  entry.disk = DiskLocation{};
  state_.ForgetIfGone(index);
}

// The slot stays taken until the deletion is durable.
void DiskSlots::LeaveSlot(const BlockEntry& entry, IndexCommitter::Slot slot) {
  --blocks_;
  allocator_.SetOwner(entry.disk.offset, kNoEntry);
  const Namespace& name_space = state_.blocks.NamespaceOf(entry);
  state_.usage.GiveBack(name_space.line, Tier::kDisk, name_space.slot_bytes);
  if (slot != IndexCommitter::Slot::kKeep) {
    leaving_.Begin(name_space.tenant, entry.disk);
  } else {
    quarantined_.Add(entry.disk);
    state_.tenants.Refund(Tier::kDisk, name_space.tenant, name_space.slot_bytes);
  }
  committer_.Delete({entry.namespace_id, entry.hash}, entry.disk, slot);
}

void DiskSlots::FreeSlot(DiskLocation location) {
  leaving_.End(location);
  allocator_.Free(location.offset);
}

void DiskSlots::KeepSlot(DiskLocation location) {
  leaving_.End(location);
  quarantined_.Add(location);
}

void DiskSlots::OnCommitted(const Status& status) {
  if (!status) {
    state_.incidents.Report(IncidentKind::kIndexFailed, status);
    ReportPause(status);
  } else if (!degraded() && std::exchange(pause_reported_, false)) {
    state_.incidents.Report(IncidentKind::kWritesResumed, {});
  }
}

void DiskSlots::ReportPause(const Status& refused) {
  if (std::exchange(pause_reported_, true)) return;
  state_.incidents.Report(IncidentKind::kWritesPaused, refused);
}

// The slab's header is on disk before its first slot is: a rebuild reads slot sizes from there.
void DiskSlots::Write(EntryIndex index, std::span<const std::byte> slot,
                      std::function<void(Status)> done) {
  const DiskLocation location = state_[index].disk;
  slab_headers_.Ensure(
      HeaderOf(state_[index], state_.blocks.NamespaceOf(state_[index]), state_.env.geometry),
      [this, index, slot, location, done = std::move(done)](const Status& header_status) {
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
  const uint32_t drive = state_.env.geometry.DriveOf(entry.disk);
  state_.Apply(index, status ? BlockEvent::kEndWrite : BlockEvent::kFailWrite);
  if (status) {
    pause_.OnWritten();
    health_.Note(drive, DriveRequest::kWrite, status);
    ++state_.stats.disk_write_blocks;
    state_.stats.disk_write_bytes += bytes;
    entry.was_read_from_disk = 0;
    ++blocks_;
    committer_.Put(index);
    return;
  }
  ++state_.stats.disk_write_errors;
  const bool encrypted = status.error().reason != kNotEncrypted;
  state_.incidents.ReportSlot(encrypted ? IncidentKind::kWriteFailed : IncidentKind::kNotEncrypted,
                              entry.disk, index, status.error().ToString());
  if (encrypted) {
    const bool served = !health_.Failed(entry.disk);
    health_.Note(drive, DriveRequest::kWrite, status);
    // The others are not held up by a drive that is given up.
    if (served && !health_.Failed(entry.disk)) {
      ReportPause(status);
      pause_.Begin(state_.env.clock->MonotonicMs());
    }
  }
  if (!encrypted || IsForWantOfRoom(status)) {
    // The drive has done nothing wrong, and other blocks may have their keys, or room.
    allocator_.Free(entry.disk.offset);
  } else {
    // Whatever the disk did there, the slot is not to be trusted before a restart.
    allocator_.SetOwner(entry.disk.offset, kNoEntry);
    quarantined_.Add(entry.disk);
  }
  const Namespace& name_space = state_.blocks.NamespaceOf(entry);
  state_.tenants.Refund(Tier::kDisk, name_space.tenant, name_space.slot_bytes);
  state_.usage.GiveBack(name_space.line, Tier::kDisk, name_space.slot_bytes);
  entry.disk = DiskLocation{};
}

void DiskSlots::MarkVerified(EntryIndex index) {
  const BlockEntry& entry = state_[index];
  if (entry.persisted() || !entry.on_disk() || entry.committing()) return;
  if (!entry.verified()) {
    // Found by a rebuild, which put it into the index.
    state_.Apply(index, BlockEvent::kTrust);
    state_.QueueRecencyUpdate(index);
  } else if (!degraded()) {
    committer_.Put(index);
  }
}

void DiskSlots::ReadAndCheck(DiskLocation location, std::span<std::byte> slot, IoCheck check,
                             IoDone done) {
  const DiskGeometry& geometry = state_.env.geometry;
  BlockFile* const file = state_.env.files[geometry.FileOf(location)];
  if (state_.env.files.size() > 1) {
    done = [this, drive = geometry.DriveOf(location), done = std::move(done)](Status status) {
      health_.Note(drive, DriveRequest::kRead, status);
      done(std::move(status));
    };
  }
  file->ReadAndCheck(geometry.OffsetInFile(location), slot, std::move(check), std::move(done));
}

void DiskSlots::Tick() {
  pause_.Tick(state_.env.clock->MonotonicMs());
  committer_.Tick();
}

// The index may be behind by a share of the time to live (QueueUpdateIfBehind); at the end of the
// process it is brought up to date.
uint64_t DiskSlots::FlushRecency(uint64_t row, uint64_t max_rows) {
  const uint64_t end = std::min<uint64_t>(state_.blocks.directory.end(), row + max_rows);
  for (; row < end; ++row) {
    const EntryIndex index(static_cast<uint32_t>(row));
    if (!state_.blocks.directory.Live(index)) continue;
    const BlockEntry& entry = state_[index];
    if (entry.last_use_s > entry.indexed_use_s) state_.QueueRecencyUpdate(index);
  }
  return row;
}

void DropUseless(CacheState* state, DiskSlots* disk, EntryIndex index, DiskLocation location,
                 DropReason reason, IndexCommitter::Slot slot) {
  const BlockEntry& entry = (*state)[index];
  if (entry.disk == location && !entry.committing()) return disk->Drop(index, reason, slot);
  state->ForgetIfGone(index);
}

}  // namespace kvtier
