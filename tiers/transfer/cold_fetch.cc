// SPDX-License-Identifier: Apache-2.0
#include "tiers/transfer/cold_fetch.h"

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
      state_.env.cold->Delete({ColdName(state_.blocks.NamespaceOf(entry).identity, entry.hash)},
                              state_.options.cold_read_deadline_ms, [](const Status&) {});
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

}  // namespace kvtier
