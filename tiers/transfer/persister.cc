// SPDX-License-Identifier: Apache-2.0
#include "tiers/transfer/persister.h"

#include <algorithm>
#include <ranges>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "tiers/storage/slot_header.h"

namespace kvtier {
namespace {

// So many blocks of a line are looked at for one whose sequence can be written from its start on.
constexpr size_t kLinesTried = 4;
// Beside reads, writes take this part of what may otherwise be in flight: 4 MiB by default. They go
// on, since space in host depends on them.
constexpr uint64_t kShareBesideReads = 8;
// Reads of so many bytes at once are many: they keep the drive busy, so that each write takes time
// from them. A block is then written for each so many blocks that have been read.
constexpr uint64_t kManyReadBytes = 4 * kMiB;
constexpr uint64_t kReadsPerWrite = 32;

}  // namespace

bool Persister::Pump() {
  climbed_ = 0;
  return queue_.lines().TakeTurns([this](TenantLine, PriorityQueue<EntryRef>* of_tenant) {
    std::deque<EntryRef>* const line = of_tenant->next();
    return state_.parts.TakeStep(&part_, [&]() -> uint64_t {
      const uint64_t looked_at = state_.stats.disk_eviction_steps;
      if (!MayWrite(line->front())) return 0;
      if (!PutPrefixFirst(line)) return 0;
      if (TryWrite(line->front()) == Step::kWait) return 0;
      line->pop_front();
      return 1 + state_.stats.disk_eviction_steps - looked_at;
    });
  });
}

// A client waits for reads, and none waits for writes until space in host is overdue: the drive
// divides its time by the bytes in flight, and reads may be few where host has few slots for them.
// A share of the bytes that were read, unlike one of the bytes in flight, is small however few the
// reads and however large the blocks are.
bool Persister::MayWrite(EntryRef next) const {
  const uint64_t most_bytes = state_.options.max_disk_write_bytes;
  const uint64_t reads = state_.stats.Lane(CopyLane::kDiskToHost).under_way();
  if (reads == 0) return in_flight_.bytes < most_bytes;
  // A block that has been forgotten costs nothing: it only leaves the line.
  const EntryIndex index = state_.blocks.directory.Resolve(next);
  if (index == kNoEntry) return true;
  const uint64_t slot_bytes = state_.blocks.NamespaceOf(state_[index]).slot_bytes;
  if (state_.pressure.host_space_is_overdue() || reads * slot_bytes < kManyReadBytes) {
    return in_flight_.bytes < most_bytes / kShareBesideReads;
  }
  const uint64_t read_bytes = state_.stats.disk_read_bytes - read_bytes_before_write_;
  return in_flight_.bytes == 0 && read_bytes >= kReadsPerWrite * slot_bytes;
}

bool Persister::PutPrefixFirst(std::deque<EntryRef>* line) {
  if (state_.clock.NowMs() >= state_.pressure.prefixes_first_until_ms) return true;
  for (size_t tries = std::min(line->size(), kLinesTried); tries > 0; --tries) {
    const EntryRef next = line->front();
    if (state_.blocks.directory.Resolve(next) == kNoEntry) return true;
    std::vector<EntryRef> ancestors;
    const Climbed climbed = ClimbFrom(next, &ancestors);
    if (climbed == Climbed::kGoesOn) return false;
    if (climbed == Climbed::kEnough) return in_flight_.bytes == 0;
    const bool all_in_host = std::ranges::all_of(
        ancestors, [this](EntryRef ancestor) { return state_[ancestor.row].in_host(); });
    // The first of the sequence first, for there may not be slots in host for all.
    for (const EntryRef ancestor : std::views::reverse(ancestors)) {
      queue_.WantWithBytes(ancestor.row);
    }
    if (all_in_host) {
      // These stand in the line a second time from now on, and are skipped there.
      line->insert(line->begin(), ancestors.rbegin(), ancestors.rend());
      return true;
    }
    // The start of its sequence comes to host first: meanwhile, another.
    line->push_back(line->front());
    line->pop_front();
  }
  // Host may have no slot for it before something is written.
  return in_flight_.bytes == 0;
}

// A sequence may have hundreds of thousands of blocks. Where it is looked at in parts, the latest
// one alone, its beginning, is what matters.
Persister::Climbed Persister::ClimbFrom(EntryRef next, std::vector<EntryRef>* ancestors) {
  const uint64_t part = state_.options.search_part_blocks;
  const bool goes_on = climb_.from == next;
  // The sequence that goes on has half of each event, also behind others.
  const bool beside_another = !goes_on && climb_.pump + 1 == state_.parts.pumps();
  const uint64_t most = beside_another ? part / 2 : part;
  const uint64_t before = climbed_;
  EntryIndex at = state_.blocks.directory.Resolve(next);
  const EntryIndex reached = goes_on ? state_.blocks.directory.Resolve(climb_.reached) : kNoEntry;
  if (reached != kNoEntry && IsUnwritten(reached)) {
    at = reached;
    ancestors->push_back(climb_.reached);
  }
  for (EntryIndex parent = UnwrittenParent(at); parent != kNoEntry;
       parent = UnwrittenParent(parent)) {
    if (climbed_ >= most) {
      // Without a step in each event there would be events without end.
      const bool got_on = goes_on ? climbed_ > before : climbed_ == before + part;
      if (!got_on) return Climbed::kEnough;
      climb_ = {next, ancestors->back(), state_.parts.pumps()};
      state_.SchedulePart();
      return Climbed::kGoesOn;
    }
    ++climbed_;
    ancestors->push_back(state_.blocks.directory.RefOf(parent));
  }
  if (goes_on) climb_ = {};
  return Climbed::kAll;
}

EntryIndex Persister::UnwrittenParent(EntryIndex index) const {
  const EntryIndex parent = state_.blocks.lineage.ParentOf(index);
  return parent != kNoEntry && IsUnwritten(parent) ? parent : kNoEntry;
}

bool Persister::IsUnwritten(EntryIndex index) const {
  const BlockEntry& entry = state_[index];
  if (entry.writing() || !entry.NeedsPersist(state_.has_disk())) return false;
  return entry.in_host() || (entry.in_pool() && !entry.offload_failed());
}

Persister::Step Persister::TryWrite(EntryRef block) {
  const EntryIndex index = state_.blocks.directory.Resolve(block);
  if (index == kNoEntry) return Step::kSkipped;
  const BlockEntry& entry = state_[index];
  // The block may have been dropped from host.
  if (!entry.write_queued() || !entry.in_host() || !entry.NeedsPersist(state_.has_disk())) {
    queue_.Unqueue(index);
    return Step::kSkipped;
  }
  if (state_.BeingErased(entry)) {
    queue_.Fail(index, DropReason::kErased);
    return Step::kSkipped;
  }
  const uint64_t slot_bytes = state_.blocks.NamespaceOf(entry).slot_bytes;
  if (state_.write_budget.left_bytes() < slot_bytes) {
    state_.incidents.ReportBudgetSpent();
    queue_.Fail(index, DropReason::kWriteBudget);
    return Step::kSkipped;
  }
  switch (disk_.Reserve(index)) {
    case DiskSlots::Outcome::kWait:
      return Step::kWait;
    case DiskSlots::Outcome::kFull:
      queue_.Fail(index, disk_.degraded() ? DropReason::kWriteError : DropReason::kDiskFull);
      return Step::kSkipped;
    case DiskSlots::Outcome::kOverCap:
      queue_.Fail(index, DropReason::kTenantCap);
      return Step::kSkipped;
    case DiskSlots::Outcome::kReserved:
      break;
  }
  KVT_CHECK(state_.write_budget.TrySpend(slot_bytes));
  StartWrite(index);
  return Step::kStarted;
}

void Persister::StartWrite(EntryIndex index) {
  const BlockEntry& entry = state_[index];
  state_.Apply(index, BlockEvent::kBeginWrite);
  const std::span<std::byte> slot = state_.tables.HostBytes(entry);
  state_.tables.BeginHostChange(entry);
  PlaceSlotHeader({.address = entry.disk,
                   .generation = entry.disk_generation,
                   .created_s = state_.clock.ToWallS(entry.created_s),
                   .last_use_s = state_.clock.ToWallS(entry.last_use_s)},
                  slot.first<kSlotHeaderBytes>());
  state_.tables.EndHostChange(index);
  read_bytes_before_write_ = state_.stats.disk_read_bytes;
  writes_.try_emplace(index, Write{HostPin(&state_, index), {&in_flight_, slot.size(), 1}});
  state_.stats.Lane(CopyLane::kHostToDisk).Begin(state_.clock.NowMs());
  state_.trace.Begin(TraceKind::kDiskWrite, index);
  disk_.Write(index, slot, [this, index](const Status& status) { OnWritten(index, status); });
}

void Persister::OnWritten(EntryIndex index, const Status& status) {
  state_.SchedulePump();
  state_.trace.End(TraceKind::kDiskWrite, index, !status);
  writes_.erase(index);
  state_.stats.Lane(CopyLane::kHostToDisk).End(state_.clock.NowMs());
  if (!status) queue_.Fail(index, DropReason::kWriteError);
}

}  // namespace kvtier
