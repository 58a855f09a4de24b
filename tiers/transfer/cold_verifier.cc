// SPDX-License-Identifier: Apache-2.0
#include "tiers/transfer/cold_verifier.h"

#include <algorithm>
#include <utility>

namespace kvtier {
namespace {

// Rows that one event looks at.
constexpr uint64_t kMostRows = 4096;

}  // namespace

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
  const uint64_t end = std::min<uint64_t>(state_.blocks.directory.end(), cursor + kMostRows);
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
    // Stores may forget. The block is written again after its next use.
    ++step->result.absent;
    const EntryIndex index = state_.blocks.Find(step->key);
    if (index != kNoEntry) state_.Apply(index, BlockEvent::kForgetColdCopy);
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
    const EntryIndex index = state_.blocks.Find(step->key);
    if (index != kNoEntry) state_.Apply(index, BlockEvent::kForgetColdCopy);
    state_.env.cold->Delete({ColdName(step->expected.identity, step->key.hash)},
                            state_.options.cold_read_deadline_ms, [](const Status&) {});
  }
  Next(step);
}

}  // namespace kvtier
