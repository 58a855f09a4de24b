#include "tiers/disk_slots.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "tiers/chunk_header.h"
#include "tiers/slot_header.h"

namespace kvtier {

DiskSlots::DiskSlots(CacheState* state)
    : state_(*state),
      slab_(state->options.chunk_bytes, kChunkHeaderBytes),
      committer_(state, [this](DiskLocation location) { FreeSlot(location); }) {
  slab_.Grow(state_.env.geometry.chunks);
  header_slot_bytes_.resize(state_.env.geometry.chunks);
}

void DiskSlots::Restore(IndexSnapshot snapshot) {
  constexpr uint32_t kMaxSpaces = 1 << 16;
  for (auto& [id, identity] : snapshot.spaces) {
    const uint64_t slot_bytes = SlotBytes(identity.block_bytes);
    if (id.value >= kMaxSpaces || identity.block_bytes == 0 || !slab_.Fits(slot_bytes)) continue;
    if (id.value >= state_.spaces.size()) state_.spaces.resize(id.value + 1);
    state_.spaces[id.value] = {
        .identity = std::move(identity), .slot_bytes = slot_bytes, .indexed = true};
  }
  // Coldest first; of one sequence the deepest first.
  std::sort(snapshot.records.begin(), snapshot.records.end(),
            [](const IndexRecord& a, const IndexRecord& b) {
              return a.last_use_s != b.last_use_s ? a.last_use_s < b.last_use_s : a.depth > b.depth;
            });
  state_.directory.Reserve(snapshot.records.size());
  for (const IndexRecord& record : snapshot.records) RestoreRecord(record);
}

void DiskSlots::RestoreRecord(const IndexRecord& record) {
  next_generation_ = std::max(next_generation_, record.generation + 1);
  const bool space_known = record.key.space.value < state_.spaces.size() &&
                           state_.spaces[record.key.space.value].slot_bytes > 0;
  if (!space_known || state_.directory.Find(record.key) != kNoEntry) {
    state_.CountDrop(record.key, Tier::kDisk, DropReason::kStaleIndex);
    return;
  }
  const uint64_t slot_bytes = state_.spaces[record.key.space.value].slot_bytes;
  const EntryIndex index =
      state_.AddEntry(record.key, record.tokens, record.depth, record.retention);
  BlockEntry& entry = state_[index];
  entry.created_s = record.created_s;
  entry.last_use_s = entry.indexed_use_s = record.last_use_s;
  if (!slab_.Claim(record.location.offset, slot_bytes, index)) {
    state_.CountDrop(record.key, Tier::kDisk, DropReason::kStaleIndex);
    committer_.Delete(record.key, record.location, IndexCommitter::Slot::kKeep);
    state_.ForgetIfGone(index);
    return;
  }
  entry.disk = record.location;
  entry.disk_generation = record.generation;
  entry.verified = record.verified;
  header_slot_bytes_[state_.env.geometry.ChunkOf(record.location)] = slot_bytes;
  ++blocks_;
  state_.endless.Store(record.key.space, record.key.hash);
  state_.disk_recency->Insert(index, entry.facts());
  state_.SetPersisted(index, record.verified);
  if (state_.Expired(entry)) {
    Drop(index, DropReason::kExpired);
  } else {
    ++state_.stats.restored_blocks;
  }
}

DiskSlots::Outcome DiskSlots::Reserve(EntryIndex index) {
  if (degraded()) return Outcome::kFull;
  BlockEntry& entry = state_[index];
  const uint64_t slot_bytes = state_.SpaceOf(entry).slot_bytes;
  const std::optional<uint64_t> address = slab_.Allocate(slot_bytes, index);
  if (!address) {
    KeepFree(slot_bytes);
    const bool evicting = freeing_[slot_bytes] > 0 || EvictFor(slot_bytes);
    return evicting || !committer_.Idle() ? Outcome::kWait : Outcome::kFull;
  }
  entry.disk = DiskLocation{*address};
  entry.disk_generation = next_generation_++;
  entry.motion.writing = true;
  KeepFree(slot_bytes);
  return Outcome::kReserved;
}

void DiskSlots::KeepFree(uint64_t slot_bytes) {
  const double share = state_.options.disk_free_fraction;
  const auto target =
      static_cast<uint64_t>(std::ceil(share * static_cast<double>(slab_.TotalSlots(slot_bytes))));
  while (slab_.FreeSlots(slot_bytes) + freeing_[slot_bytes] < target) {
    if (!EvictFor(slot_bytes)) return;
  }
}

bool DiskSlots::Evictable(const BlockEntry& entry) const {
  const BlockMotion& motion = entry.motion;
  return entry.on_disk() && !entry.pinned && !motion.loading && !motion.reading &&
         !motion.committing && !motion.verifying;
}

bool DiskSlots::EvictFor(uint64_t slot_bytes) {
  EvictionPolicy& recency = *state_.disk_recency;
  for (EntryIndex victim = recency.Victim(); victim != kNoEntry;
       victim = recency.VictimAfter(victim)) {
    const BlockEntry& entry = state_[victim];
    if (!Evictable(entry)) continue;
    if (slab_.SlotBytesAt(entry.disk.offset) == slot_bytes) {
      Drop(victim, entry.in_host() ? DropReason::kCopyAbove : DropReason::kLru);
      return true;
    }
    // The coldest block belongs to another slot size: its whole chunk goes, if it can.
    if (EvictChunk(entry.disk)) return true;
  }
  return false;
}

bool DiskSlots::EvictChunk(DiskLocation location) {
  bool free_of_motion = true;
  std::vector<EntryIndex> owners;
  slab_.ForEachInChunk(location.offset, [&](uint64_t, EntryIndex owner) {
    if (owner == kNoEntry || !Evictable(state_[owner])) free_of_motion = false;
    owners.push_back(owner);
  });
  if (!free_of_motion) return false;
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
  state_.disk_recency->Remove(index);
  // The slot stays taken until the deletion is durable.
  slab_.SetOwner(entry.disk.offset, kNoEntry);
  if (slot == IndexCommitter::Slot::kFree) {
    ++freeing_[slab_.SlotBytesAt(entry.disk.offset)];
  } else {
    ++state_.stats.slots_quarantined;
  }
  committer_.Delete({entry.space, entry.hash}, entry.disk, slot);
  entry.disk = DiskLocation{};
  entry.verified = entry.update_queued = false;
  // Writing again what was just evicted would only evict the next, in circles.
  entry.persist_failed = true;
  state_.SetPersisted(index, false);
  state_.ForgetIfGone(index);
}

void DiskSlots::FreeSlot(DiskLocation location) {
  --freeing_[slab_.SlotBytesAt(location.offset)];
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
