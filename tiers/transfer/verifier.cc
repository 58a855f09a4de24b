// SPDX-License-Identifier: Apache-2.0
#include "tiers/transfer/verifier.h"

#include <algorithm>
#include <utility>

#include "tiers/state/cold_copies.h"

namespace kvtier {
namespace {

// Rows that one event looks at: few of them may have their blocks on disk, or in the cold store.
constexpr uint64_t kRowsPerStep = 4096;

}  // namespace

void Verifier::Step(uint64_t cursor, uint32_t max_blocks, std::function<void(VerifyResult)> done) {
  const auto step = std::make_shared<StepState>();
  step->done = std::move(done);
  ++steps_;
  // The step itself counts as one, so that it cannot end before every read has been started.
  step->left = 1;
  const uint64_t end = std::min<uint64_t>(state_.blocks.directory.end(), cursor + kRowsPerStep);
  for (; cursor < end && step->left <= max_blocks; ++cursor) {
    const EntryIndex index(static_cast<uint32_t>(cursor));
    if (!state_.blocks.directory.Live(index)) continue;
    const BlockEntry& entry = state_[index];
    if (!entry.on_disk() || entry.busy()) continue;
    StartRead(index, step);
  }
  step->result.next_cursor = cursor;
  step->result.finished = cursor >= state_.blocks.directory.end();
  state_.env.loop->Post([this, step] {
    if (--step->left > 0) return;
    --steps_;
    step->done(step->result);
  });
}

// Into a buffer of its own and not into a host slot, so that a scrub takes no space from blocks
// that clients use. The expectation is a copy, since the check runs on another thread.
void Verifier::StartRead(EntryIndex index, const std::shared_ptr<StepState>& step) {
  const BlockEntry& entry = state_[index];
  const auto read = std::make_shared<Read>();
  read->entry = index;
  read->expected = state_.tables.ExpectationOf(entry);
  read->step = step;
  state_.Apply(index, BlockEvent::kBeginVerify);
  ++step->left;
  state_.trace.Begin(TraceKind::kVerifyRead, index);
  // To clear the buffers of a step would hold up the loop.
  state_.env.executor->Run(
      [read, bytes = state_.blocks.NamespaceOf(entry).slot_bytes] {
        read->buffer = AlignedBuffer(bytes);
      },
      [this, read] { Issue(read); });
}

void Verifier::Issue(const ReadPointer& read) {
  disk_.ReadAndCheck(read->expected.location, read->buffer.span(), nullptr,
                     [this, read](const Status& status) { OnRead(read, status); });
}

// No client waits for the check, and so it is no part of the read, whose checks go before other
// work of the machine.
void Verifier::OnRead(const ReadPointer& read, const Status& status) {
  if (!status) {
    ++state_.stats.disk_read_errors;
    return OnFailed(read, status);
  }
  state_.env.executor->Run(
      [read] { read->verdict = CheckDiskSlot(read->expected, read->buffer.span()); },
      [this, read] {
        read->verdict == SlotVerdict::kGood ? Finish(read, {}) : OnFailed(read, {});
      });
}

// Read once more, as by Reader::OnFailed.
void Verifier::OnFailed(const ReadPointer& read, const Status& status) {
  const BlockEntry& entry = state_[read->entry];
  const bool there = entry.has_disk_slot() && entry.disk == read->expected.location;
  if (there && read->verdict != SlotVerdict::kErased && !std::exchange(read->again, true)) {
    ++state_.stats.disk_read_retries;
    return Issue(read);
  }
  state_.incidents.ReportRead(read->expected.location, read->entry, status, read->verdict);
  Finish(read, status);
}

// A drive that does not answer says nothing of the block, which stays: all of them would be lost to
// an outage.
void Verifier::Finish(const ReadPointer& read, const Status& status) {
  const bool good = status && read->verdict == SlotVerdict::kGood;
  state_.SchedulePump();
  state_.trace.End(TraceKind::kVerifyRead, read->entry, !good);
  StepState& step = *read->step;
  status ? ++step.result.checked : ++step.result.unread;
  if (status) step.result.bytes += read->buffer.span().size();
  const BlockEntry& entry = state_[read->entry];
  state_.Apply(read->entry, BlockEvent::kEndVerify);
  if (good && entry.disk == read->expected.location) disk_.MarkVerified(read->entry);
  if (good || !status) {
    state_.ForgetIfGone(read->entry);
  } else {
    ++step.result.bad;
    const bool erased = read->verdict == SlotVerdict::kErased;
    DropUseless(&state_, &disk_, read->entry, read->expected.location,
                erased ? DropReason::kErased : DropReason::kCorrupt,
                erased ? IndexCommitter::Slot::kFree : IndexCommitter::Slot::kKeep);
  }
  if (--step.left > 0) return;
  --steps_;
  step.done(step.result);
}

void ColdVerifier::Step(uint64_t cursor, uint32_t max_blocks,
                        std::function<void(VerifyResult)> done) {
  const auto step = std::make_shared<StepState>();
  step->result.next_cursor = cursor;
  step->left = max_blocks;
  step->done = std::move(done);
  state_.env.loop->Post(gate_.WhileOpen([this, step] { Next(step); }));
}

void ColdVerifier::Next(const StepPointer& step) {
  uint64_t& cursor = step->result.next_cursor;
  const uint64_t end = std::min<uint64_t>(state_.blocks.directory.end(), cursor + kRowsPerStep);
  for (; cursor < end && step->left > 0; ++cursor) {
    const EntryIndex index(static_cast<uint32_t>(cursor));
    if (!state_.blocks.directory.Live(index) || !state_[index].cold_copy()) continue;
    ++cursor;
    --step->left;
    return Read(index, step);
  }
  step->result.finished = cursor >= state_.blocks.directory.end();
  step->done(step->result);
}

// The expectation is a copy, since the check runs on another thread. An object is the block's by
// its key: the block may be forgotten before the check has ended.
void ColdVerifier::Read(EntryIndex index, const StepPointer& step) {
  const BlockEntry& entry = state_[index];
  step->key = {entry.namespace_id, entry.hash};
  step->expected = state_.tables.ExpectationOf(entry);
  const NamespaceIdentity& identity = state_.blocks.NamespaceOf(entry).identity;
  state_.env.cold->Get(
      ColdName(identity, entry.hash), ColdObjectBytes(identity.block_bytes),
      state_.options.cold_read_deadline_ms,
      gate_.WhileOpen([this, step](const Result<ColdBytes>& got) { OnGot(step, got); }));
}

void ColdVerifier::OnGot(const StepPointer& step, const Result<ColdBytes>& got) {
  if (got) {
    state_.env.executor->Run(
        [step, object = *got] { step->verdict = CheckColdObject(step->expected, *object); },
        gate_.WhileOpen([this, step, bytes = (*got)->size()] {
          step->result.bytes += bytes;
          Judge(step, step->verdict.miss == MissReason::kNone);
        }));
    return;
  }
  if (got.error().code == ErrorCode::kCorrupt) return Judge(step, false);
  if (got.error().code == ErrorCode::kNotFound) {
    // Stores may forget.
    ++step->result.absent;
    const EntryIndex index = state_.blocks.Find(step->key);
    if (index != kNoEntry) ForgetColdCopy(&state_, index);
  } else {
    ++step->result.unread;
  }
  Next(step);
}

// No host is to be served it again.
void ColdVerifier::Judge(const StepPointer& step, bool good) {
  ++step->result.checked;
  if (!good) {
    ++step->result.bad;
    state_.incidents.ReportCold(step->expected.identity,
                                Error{ErrorCode::kCorrupt, "checksum_mismatch", "verify"});
    deletions_.Forget(step->key, nullptr);
  }
  Next(step);
}

}  // namespace kvtier
