// SPDX-License-Identifier: Apache-2.0
#include "tiers/transfer/reader.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "tiers/state/cold_copies.h"

namespace kvtier {
namespace {

// The store may have forgotten the object since it said that it has it; whatever else went wrong is
// the store's fault, as a disk's.
MissReason MissOf(const Error& error) {
  if (error.code == ErrorCode::kNotFound) return MissReason::kUnknown;
  return error.code == ErrorCode::kCorrupt ? MissReason::kChecksumMismatch : MissReason::kReadError;
}

bool IsDamage(MissReason miss) {
  return miss == MissReason::kChecksumMismatch || miss == MissReason::kIdentityMismatch;
}

constexpr int kReadAttempts = 2;

// The part of the slot in which all rates are counted.
uint64_t PayloadOf(std::span<const std::byte> slot) { return slot.size() - kSlotHeaderBytes; }

}  // namespace

void ColdFetch::Begin(const SlotExpectation& expected, std::span<std::byte> slot,
                      std::function<void(const ColdVerdict&)> done) {
  const uint64_t bytes = ColdObjectBytes(expected.identity.block_bytes);
  auto on_got = [this, &expected, slot, done = std::move(done)](Result<ColdBytes> got) {
    if (!got) {
      state_.incidents.ReportCold(expected.identity, got.error());
      return done({.miss = MissOf(got.error())});
    }
    const auto verdict = std::make_shared<ColdVerdict>();
    state_.env.executor->Run(
        [verdict, &expected, slot, object = *std::move(got)] {
          *verdict = CheckColdObject(expected, *object);
          if (verdict->miss == MissReason::kNone) std::ranges::copy(*object, slot.begin());
        },
        gate_.WhileOpen([this, &expected, verdict, done] {
          if (IsDamage(verdict->miss)) {
            state_.incidents.ReportCold(
                expected.identity,
                {ErrorCode::kCorrupt, std::string(MissReasonName(verdict->miss)), "read"});
          }
          done(*verdict);
        }));
  };
  state_.env.cold->Get(ColdName(expected.identity, expected.hash), bytes,
                       state_.options.cold_read_deadline_ms, gate_.WhileOpen(std::move(on_got)));
}

// The copy in host has never been on this disk: it is to be written there like any other block.
MissReason ColdFetch::Accept(EntryIndex index, const ColdVerdict& verdict, uint64_t bytes) {
  MissReason miss = verdict.miss;
  BlockEntry& entry = state_[index];
  BlockEntry written = entry;
  if (miss == MissReason::kNone) {
    written.created_s = state_.clock.FromWallS(verdict.created_s);
    written.last_use_s = state_.clock.FromWallS(verdict.last_use_s);
    if (state_.Expired(written)) miss = MissReason::kExpired;
  }
  if (miss != MissReason::kNone) {
    state_.stats.cold.CountFailedRead(miss);
    // Else the next host that computes the block would find its name taken.
    if (IsDamage(miss) || miss == MissReason::kExpired) {
      deletions_->Forget({entry.namespace_id, entry.hash}, nullptr);
    }
    return miss;
  }
  entry.created_s = std::min(entry.created_s, state_.clock.FromWallS(verdict.created_s));
  if (verdict.parent) LearnPlace(index, verdict.depth, *verdict.parent);
  NoteColdCopy(&state_, index, state_.ExpiryMs(written));
  state_.QueueIfUndecided(index);
  ++state_.stats.cold.read_blocks;
  state_.stats.cold.read_bytes += bytes;
  return MissReason::kNone;
}

// An acquire knows where in its sequence a block stands, a load of a region does not. A parent that
// this host does not know is not waited for: the engine may have it in its own memory.
void ColdFetch::LearnPlace(EntryIndex index, uint32_t depth, const BlockHash& parent) {
  BlockEntry& entry = state_[index];
  const bool unplaced = entry.depth == 0 && !state_.blocks.lineage.HasChildren(index);
  if (unplaced) entry.depth = depth;
  const bool is_known = state_.blocks.Find({entry.namespace_id, parent}) != kNoEntry;
  if (is_known) state_.LinkToParent(index, parent);
}

void Reader::ReadFromDisk(EntryIndex index, For whom) {
  state_.Apply(index, BlockEvent::kBeginRead);
  const BlockEntry& entry = state_[index];
  const std::span<std::byte> slot = state_.tables.HostBytes(entry);
  const auto read = reads_.insert(reads_.end(), {.entry = index,
                                                 .whom = whom,
                                                 .expected = state_.tables.ExpectationOf(entry),
                                                 .slot = slot,
                                                 .in_flight = {&from_disk_, slot.size(), 1}});
  state_.stats.Lane(CopyLane::kDiskToHost).Begin(state_.clock.NowMs());
  state_.load_rates.disk().Begin(PayloadOf(slot), state_.clock.PreciseUs());
  Issue(read);
}

// The bytes come into memory of their own and are checked there and copied: a store that answers
// late finds nothing to write to.
void Reader::FetchFromCold(EntryIndex index) {
  state_.Apply(index, BlockEvent::kBeginFetch);
  const BlockEntry& entry = state_[index];
  const std::span<std::byte> slot = state_.tables.HostBytes(entry);
  const auto read = reads_.insert(reads_.end(), {.entry = index,
                                                 .expected = state_.tables.ExpectationOf(entry),
                                                 .slot = slot,
                                                 .in_flight = {&from_cold_, slot.size(), 1}});
  state_.load_rates.cold().Begin(PayloadOf(slot), state_.clock.PreciseUs());
  fetch_.Begin(read->expected, slot,
               [this, read](const ColdVerdict& verdict) { OnFetched(read, verdict); });
}

void Reader::OnFetched(Reads::iterator read, const ColdVerdict& verdict) {
  const EntryIndex index = read->entry;
  const MissReason miss = fetch_.Accept(index, verdict, read->slot.size());
  state_.load_rates.cold().End(PayloadOf(read->slot), miss == MissReason::kNone,
                               state_.clock.PreciseUs());
  End(read);
  if (miss == MissReason::kNone) return Arrive(index, For::kPool);
  host_.RollBack(index);
  Tell({.block = state_.blocks.directory.RefOf(index), .reason = miss}, For::kPool);
}

// The check runs on another thread. It touches only this Read, which stays in the list until
// OnRead, and the host slot, which is not in host's order yet and so cannot be evicted.
void Reader::Issue(Reads::iterator read) {
  state_.trace.Begin(TraceKind::kDiskRead, read->entry);
  const auto check = [read, tracer = state_.env.tracer] {
    if (tracer != nullptr) read->check_begun_us = tracer->NowUs();
    read->verdict = CheckDiskSlot(read->expected, read->slot);
  };
  disk_.ReadAndCheck(read->expected.location, read->slot, check,
                     [this, read](const Status& status) { OnRead(read, status); });
}

void Reader::OnRead(Reads::iterator read, const Status& status) {
  if (!status) {
    state_.trace.End(TraceKind::kDiskRead, read->entry, /*failed=*/true);
    ++state_.stats.disk_read_errors;
    return OnFailed(read, status, MissReason::kReadError);
  }
  const bool good = read->verdict == SlotVerdict::kGood;
  state_.trace.EndOfRead(read->entry, read->check_begun_us, /*check_failed=*/!good);
  if (good) return OnVerified(read);
  if (read->verdict == SlotVerdict::kErased) {
    return OnFailed(read, status, MissReason::kErased);
  }
  const bool corrupt = read->verdict == SlotVerdict::kCorrupt;
  OnFailed(read, status, corrupt ? MissReason::kChecksumMismatch : MissReason::kIdentityMismatch);
}

// The read ends before the block is ready in host, because a block is either being read or in host,
// never both.
void Reader::OnVerified(Reads::iterator read) {
  ++state_.stats.disk_read_blocks;
  state_.stats.disk_read_bytes += read->slot.size();
  if (read->attempt > 1) ++state_.stats.disk_read_repaired;
  state_.stats.Lane(CopyLane::kDiskToHost).End(state_.clock.NowMs());
  state_.load_rates.disk().End(PayloadOf(read->slot), /*arrived=*/true, state_.clock.PreciseUs());
  const EntryIndex index = read->entry;
  const For whom = read->whom;
  End(read);
  disk_.MarkVerified(index);
  state_[index].was_read_from_disk = 1;
  Arrive(index, whom);
}

void Reader::Arrive(EntryIndex index, For whom) {
  state_.CountUsesAnew(index);
  host_.Ready(index);
  Tell({.block = state_.blocks.directory.RefOf(index)}, whom);
}

// Read once more, for a fault may lie on the way (cable, controller) and not in the medium. A
// second failure gives the slot up for good, and the block is a miss for all pools that wait for
// it. A slot that a verification has dropped meanwhile is not read again: it may lie beyond the end
// of a file that was cut.
void Reader::OnFailed(Reads::iterator read, const Status& status, MissReason miss) {
  const bool erased = miss == MissReason::kErased;
  const bool there =
      state_[read->entry].has_disk_slot() && state_[read->entry].disk == read->expected.location;
  if (!erased && there && read->attempt < kReadAttempts) {
    ++read->attempt;
    ++state_.stats.disk_read_retries;
    return Issue(read);
  }
  const DiskLocation location = read->expected.location;
  state_.incidents.ReportRead(location, read->entry, status, read->verdict);
  state_.stats.Lane(CopyLane::kDiskToHost).End(state_.clock.NowMs());
  state_.load_rates.disk().End(PayloadOf(read->slot), /*arrived=*/false, state_.clock.PreciseUs());
  const EntryIndex index = read->entry;
  const For whom = read->whom;
  const EntryRef block = state_.blocks.directory.RefOf(index);
  End(read);
  host_.RollBack(index);
  // The place of a block that was erased is as good as before.
  const auto slot = erased ? IndexCommitter::Slot::kFree : IndexCommitter::Slot::kKeep;
  const DropReason damaged = status ? DropReason::kCorrupt : DropReason::kReadError;
  DropUseless(&state_, &disk_, index, location, erased ? DropReason::kErased : damaged, slot);
  Tell({.block = block, .reason = miss}, whom);
}

void Reader::End(Reads::iterator read) {
  const EntryIndex index = read->entry;
  reads_.erase(read);
  state_.Apply(index, BlockEvent::kEndRead);
  // The pump runs at the end of the event, so that all blocks which it brought are copied together.
  state_.SchedulePump();
}

void Reader::Tell(const BlockEnd& end, For whom) {
  BlockEnd told = end;
  if (whom == For::kHost) {
    told.move = BlockMove::kReadAhead;
    state_.ends.TellLater(told);
  }
  told.move = BlockMove::kRead;
  listener_.OnEnded(std::span(&told, 1));
}

}  // namespace kvtier
