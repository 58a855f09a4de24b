// SPDX-License-Identifier: Apache-2.0
#include "tiers/transfer/cold_writer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/units.h"
#include "tiers/cold/cold_object.h"

namespace kvtier {
namespace {

constexpr uint64_t kMostInFlightBytes = 16 * kMiB;
// Nothing waits for a write, but a store that needs longer is not keeping up.
constexpr int64_t kWriteTimeoutMs = 5'000;
// How far before its eviction from disk a block is written: what the store may be given in this
// time, but no more than this share of the disk, so that evictions find blocks that are not being
// read.
constexpr int64_t kAheadS = 2;
constexpr uint64_t kAheadShare = 16;

}  // namespace

ColdWriter::ColdWriter(CacheState* state, DiskSlots* disk, CopyDown* to_disk)
    : state_(*state), disk_(*disk), to_disk_(*to_disk) {
  disk_.OnEviction([this](EntryIndex index) { NoteEviction(index); });
}

void ColdWriter::SourceReady(EntryIndex index) {
  to_disk_.SourceReady(index);
  const BlockEntry& entry = state_[index];
  if (entry.cold_copy() || entry.retention != RetentionClass::kExtended) return;
  if (!line_.Contains(index)) line_.PushHot(index);
}

void ColdWriter::Tick() {
  Refill();
  away_ = !state_.env.cold->Available();
  if (away_) return;
  WriteLeaving();
  WriteIdle();
}

void ColdWriter::WriteLeaving() {
  if (!MayStart()) return;
  const uint64_t disk_bytes = disk_.allocator().slabs() * disk_.allocator().slab_bytes();
  const uint64_t ahead_bytes =
      std::min(state_.options.cold_write_bytes_per_s * kAheadS, disk_bytes / kAheadShare);
  disk_.ForEachLeavingSoon(ahead_bytes, [this](EntryIndex index) {
    if (MayStart() && LookAt(index, true) == Look::kWrite) Start(index);
  });
}

void ColdWriter::WriteIdle() {
  uint64_t left = std::min<uint64_t>(line_.size(), state_.options.close_part_blocks);
  for (; left > 0 && MayStart(); --left) {
    const EntryIndex index = line_.coldest();
    line_.Remove(index);
    switch (LookAt(index, false)) {
      case Look::kWrite:
        Start(index);
        break;
      case Look::kNotYet:
        line_.PushHot(index);
        break;
      case Look::kNever:
        break;
    }
  }
}

// A second's worth can be saved up, so that ticks that come late cost nothing.
void ColdWriter::Refill() {
  const auto per_s = static_cast<int64_t>(state_.options.cold_write_bytes_per_s);
  const int64_t elapsed_ms = std::min<int64_t>(state_.clock.NowMs() - refilled_ms_, 1000);
  refilled_ms_ = state_.clock.NowMs();
  allowance_bytes_ = std::min(allowance_bytes_ + per_s / 1000 * elapsed_ms, per_s);
}

bool ColdWriter::MayStart() const {
  return allowance_bytes_ > 0 && in_flight_bytes_ < kMostInFlightBytes;
}

ColdWriter::Look ColdWriter::LookAt(EntryIndex index, bool leaving) const {
  if (!state_.blocks.directory.Live(index)) return Look::kNever;
  const BlockEntry& entry = state_.blocks.directory[index];
  if (entry.cold_copy() || entry.retention != RetentionClass::kExtended || entry.LeavesFirst() ||
      state_.erasing.AnyCovers(entry) || !(entry.in_host() || entry.on_disk())) {
    return Look::kNever;
  }
  const int64_t now_ms = state_.clock.AgeMs();
  if (now_ms + 1000 > state_.ExpiryMs(entry)) return Look::kNever;
  const bool due =
      leaving || now_ms - int64_t{entry.last_use_s} * 1000 >= state_.options.cold_after_ms;
  // What is erased goes from the store at last; none of the tenant's comes there meanwhile.
  const bool erased = std::ranges::any_of(state_.erasing.scopes, [&](const Erasures::Scope& scope) {
    return scope.request.tenant == state_.blocks.NamespaceOf(entry).identity.tenant;
  });
  const bool readable = (entry.in_host() || !entry.busy()) &&
                        !under_way_.contains(state_.blocks.directory.RefOf(index)) && !erased;
  return due && readable && entry.uses >= state_.options.cold_min_uses ? Look::kWrite
                                                                       : Look::kNotYet;
}

// What a pool has comes to host once more.
void ColdWriter::NoteEviction(EntryIndex index) {
  const BlockEntry& entry = state_[index];
  if (state_.options.cold_write_bytes_per_s == 0 || entry.in_host() || entry.in_pool()) return;
  if (LookAt(index, true) != Look::kWrite) return;
  const ColdLoss loss = !MayStart() ? ColdLoss::kBudget : ColdLoss::kEarly;
  state_.stats.cold.CountLoss(away_ ? ColdLoss::kAway : loss);
}

void ColdWriter::Start(EntryIndex index) {
  const BlockEntry& entry = state_[index];
  const uint64_t bytes = ColdObjectBytes(state_.blocks.NamespaceOf(entry).identity.block_bytes);
  allowance_bytes_ -= static_cast<int64_t>(bytes);
  in_flight_bytes_ += bytes;
  const auto write = writes_.insert(writes_.end(), Write{});
  write->entry = state_.blocks.directory.RefOf(index);
  under_way_.insert(write->entry);
  write->key = {entry.namespace_id, entry.hash};
  write->placement = {.created_s = state_.clock.ToWallS(entry.created_s),
                      .last_use_s = state_.clock.ToWallS(entry.last_use_s)};
  write->ttl_s = (state_.ExpiryMs(entry) - state_.clock.AgeMs()) / 1000;
  write->object = std::make_shared<std::vector<std::byte>>(bytes);
  entry.in_host() ? ReadFromHost(write) : ReadFromDisk(write);
}

// The header is copied here, because a write to disk may change it meanwhile; the payload stays as
// it is while the pin holds.
void ColdWriter::ReadFromHost(Writes::iterator write) {
  const BlockEntry& entry = state_[write->entry.row];
  write->pin = HostPin(&state_, write->entry.row);
  const std::span<const std::byte> slot =
      state_.tables.HostBytes(entry).first(write->object->size());
  const std::span<std::byte> object = *write->object;
  std::ranges::copy(slot.first<kSlotHeaderBytes>(), object.begin());
  PlaceSlotHeader(write->placement, object.first<kSlotHeaderBytes>());
  state_.env.executor->Run(
      [slot, object = write->object] {
        std::ranges::copy(slot.subspan(kSlotHeaderBytes), object->begin() + kSlotHeaderBytes);
      },
      gate_.WhileOpen([this, write] {
        write->pin.Release();
        state_.SchedulePump();
        Put(write);
      }));
}

// As a verification reads it: beside the normal traffic, and without taking space in host.
void ColdWriter::ReadFromDisk(Writes::iterator write) {
  const BlockEntry& entry = state_[write->entry.row];
  write->expected = state_.tables.ExpectationOf(entry);
  write->buffer = AlignedBuffer(state_.blocks.NamespaceOf(entry).slot_bytes);
  state_.Apply(write->entry.row, BlockEvent::kBeginVerify);
  ++disk_reads_;
  const auto check = [write] {
    const std::span<std::byte> slot = write->buffer.span();
    write->verdict = CheckDiskSlot(write->expected, slot);
    if (write->verdict != SlotVerdict::kGood) return;
    PlaceSlotHeader(write->placement, slot.first<kSlotHeaderBytes>());
    std::ranges::copy(slot.first(write->object->size()), write->object->begin());
  };
  disk_.ReadAndCheck(entry.disk, write->buffer.span(), check,
                     [this, write](const Status& status) { OnDiskRead(write, status); });
}

void ColdWriter::OnDiskRead(Writes::iterator write, const Status& status) {
  --disk_reads_;
  state_.SchedulePump();
  const EntryIndex index = write->entry.row;
  const bool same_slot = state_[index].disk == write->expected.location;
  state_.Apply(index, BlockEvent::kEndVerify);
  write->buffer = {};
  if (status && write->verdict == SlotVerdict::kGood) {
    if (same_slot) disk_.MarkVerified(index);
    return Put(write);
  }
  if (!status) {
    ++state_.stats.disk_read_errors;
  } else if (same_slot) {
    disk_.Drop(index, DropReason::kCorrupt, IndexCommitter::Slot::kKeep);
  }
  state_.ForgetIfGone(index);
  End(write);
}

void ColdWriter::Put(Writes::iterator write) {
  const NamespaceIdentity& identity =
      state_.blocks.namespaces[write->key.namespace_id.value].identity;
  state_.env.cold->Put(
      ColdName(identity, write->key.hash), write->object, write->ttl_s, kWriteTimeoutMs,
      gate_.WhileOpen([this, write](const Status& status) { OnPut(write, status); }));
}

void ColdWriter::LookAgain(EntryIndex index) {
  if (!line_.Contains(index)) line_.PushHot(index);
}

bool ColdWriter::IsWriting(std::string_view tenant) const {
  return std::ranges::any_of(writes_, [&](const Write& write) {
    return state_.blocks.namespaces[write.key.namespace_id.value].identity.tenant == tenant;
  });
}

void ColdWriter::Forget(const BlockKey& key) {
  const NamespaceIdentity& identity = state_.blocks.namespaces[key.namespace_id.value].identity;
  state_.env.cold->Delete({ColdName(identity, key.hash)}, kWriteTimeoutMs, [](const Status&) {});
}

void ColdWriter::End(Writes::iterator write) {
  in_flight_bytes_ -= write->object->size();
  under_way_.erase(write->entry);
  writes_.erase(write);
}

// The object is the block's by its key, whether this host still has the block or has it anew.
void ColdWriter::OnPut(Writes::iterator write, const Status& status) {
  ColdStats& stats = state_.stats.cold;
  const uint64_t bytes = write->object->size();
  const EntryIndex index = state_.blocks.Find(write->key);
  End(write);
  if (status) {
    ++stats.write_blocks;
    stats.write_bytes += bytes;
    if (index != kNoEntry) state_.Apply(index, BlockEvent::kNoteColdCopy);
    return;
  }
  ++stats.write_errors;
  if (index == kNoEntry) stats.CountLoss(ColdLoss::kFailed);
  if (index != kNoEntry && !line_.Contains(index)) line_.PushHot(index);
}

}  // namespace kvtier
