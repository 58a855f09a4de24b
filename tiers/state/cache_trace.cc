// SPDX-License-Identifier: Apache-2.0
#include "tiers/state/cache_trace.h"

#include "tiers/state/cache_state.h"
#include "tiers/types/cache_requests.h"

namespace kvtier {
namespace {

RequestTag TagOf(const AcquireRequest& request) { return {request.session, request.request_id}; }

}  // namespace

void CacheTrace::Record(TraceEvent event) {
  Tracer* const tracer = state_.env.tracer;
  if (tracer == nullptr) return;
  // Events of one batch share readings of the clock, so that it is not read for each of thousands
  // of blocks.
  if (together_ > 0 && event.time_us == 0) {
    if (readings_left_ == 0) {
      reading_us_ = tracer->NowUs();
      readings_left_ = kEventsPerReading;
    }
    --readings_left_;
    event.time_us = reading_us_;
  }
  tracer->Record(event);
}

void CacheTrace::WaitBegin(const AcquireRequest& request) {
  Record({.tag = TagOf(request), .kind = TraceKind::kWait, .phase = TracePhase::kBegin});
}

void CacheTrace::WaitEnd(const AcquireRequest& request) {
  Record({.tag = TagOf(request), .kind = TraceKind::kWait, .phase = TracePhase::kEnd});
}

void CacheTrace::LoadBegin(const AcquireRequest& request, LoadId load, uint64_t blocks) {
  Record({.tag = TagOf(request),
          .id = load.value,
          .blocks = {static_cast<uint32_t>(blocks)},
          .kind = TraceKind::kLoad,
          .phase = TracePhase::kBegin});
}

void CacheTrace::LoadEnd(SessionId session, const LoadProgress& progress) {
  Record({.tag = {session},
          .id = progress.load.value,
          .blocks = {progress.ready},
          .kind = TraceKind::kLoad,
          .phase = TracePhase::kEnd,
          .miss = progress.miss,
          .failed = progress.miss != MissReason::kNone});
}

void CacheTrace::BlockLoadBegin(RequestTag tag, EntryIndex index) {
  const BlockEntry& entry = state_[index];
  const bool through_host = entry.in_host() || state_.blocks.ReadyPool(entry) != nullptr;
  const Tier tier = through_host ? Tier::kHost : Tier::kDisk;
  Record({.tag = tag,
          .id = index.value,
          .hash_prefix = entry.hash.Prefix64(),
          .bytes = static_cast<uint32_t>(state_.blocks.NamespaceOf(entry).slot_bytes),
          .kind = TraceKind::kBlockLoad,
          .phase = TracePhase::kBegin,
          .tier = tier});
}

void CacheTrace::BlockLoadEnd(EntryIndex index, MissReason miss) {
  const BlockEntry& entry = state_[index];
  Record({.id = index.value,
          .hash_prefix = entry.hash.Prefix64(),
          .bytes = static_cast<uint32_t>(state_.blocks.NamespaceOf(entry).slot_bytes),
          .kind = TraceKind::kBlockLoad,
          .phase = TracePhase::kEnd,
          .miss = miss,
          .failed = miss != MissReason::kNone});
}

void CacheTrace::Move(TraceKind kind, TracePhase phase, EntryIndex index, bool failed,
                      int64_t time_us) {
  const BlockEntry& entry = state_[index];
  Record({.time_us = time_us,
          .id = index.value,
          .hash_prefix = entry.hash.Prefix64(),
          .bytes = static_cast<uint32_t>(state_.blocks.NamespaceOf(entry).slot_bytes),
          .kind = kind,
          .phase = phase,
          .failed = failed});
}

void CacheTrace::Evict(const BlockKey& key, Tier tier, DropReason reason) {
  Record({.hash_prefix = key.hash.Prefix64(),
          .kind = TraceKind::kEvict,
          .phase = TracePhase::kInstant,
          .tier = tier,
          .drop = reason});
}

void CacheTrace::IndexCommitBegin(uint64_t records, uint64_t deletions) {
  Record({.blocks = {static_cast<uint32_t>(records), static_cast<uint32_t>(deletions)},
          .kind = TraceKind::kIndexCommit,
          .phase = TracePhase::kBegin});
}

void CacheTrace::IndexCommitEnd(bool failed) {
  Record({.kind = TraceKind::kIndexCommit, .phase = TracePhase::kEnd, .failed = failed});
}

}  // namespace kvtier
