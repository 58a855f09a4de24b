// SPDX-License-Identifier: Apache-2.0
#include "tiers/state/cache_trace.h"

#include "base/probes.h"
#include "tiers/state/cache_state.h"
#include "tiers/types/cache_requests.h"

namespace kvtier {
namespace {

RequestTag TagOf(const AcquireRequest& request) { return {request.session, request.request_id}; }

// A probe's name is fixed when the program is compiled, so that each kind needs a statement of its
// own.
void FireMove(TraceKind kind, TracePhase phase, uint64_t block, uint64_t hash, uint64_t bytes,
              bool failed) {
  const bool begins = phase == TracePhase::kBegin;
  if (kind == TraceKind::kOffload) {
    if (begins) {
      KVT_PROBE3(offload__begin, block, hash, bytes);
    } else {
      KVT_PROBE4(offload__end, block, hash, bytes, failed);
    }
  } else if (kind == TraceKind::kDiskRead || kind == TraceKind::kVerifyRead) {
    if (begins) {
      KVT_PROBE3(disk__read__begin, block, hash, bytes);
    } else {
      KVT_PROBE4(disk__read__end, block, hash, bytes, failed);
    }
  } else if (kind == TraceKind::kDiskWrite) {
    if (begins) {
      KVT_PROBE3(disk__write__begin, block, hash, bytes);
    } else {
      KVT_PROBE4(disk__write__end, block, hash, bytes, failed);
    }
  }
}

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
  const uint64_t hash = entry.hash.Prefix64();
  const uint64_t bytes = state_.blocks.NamespaceOf(entry).slot_bytes;
  KVT_PROBE6(load__begin, index.value, hash, bytes, static_cast<int>(tier), tag.session.value,
             tag.request);
  Record({.tag = tag,
          .id = index.value,
          .hash_prefix = hash,
          .bytes = static_cast<uint32_t>(bytes),
          .kind = TraceKind::kBlockLoad,
          .phase = TracePhase::kBegin,
          .tier = tier});
}

void CacheTrace::BlockLoadEnd(EntryIndex index, MissReason miss) {
  const BlockEntry& entry = state_[index];
  const uint64_t hash = entry.hash.Prefix64();
  const uint64_t bytes = state_.blocks.NamespaceOf(entry).slot_bytes;
  KVT_PROBE4(load__end, index.value, hash, bytes, static_cast<int>(miss));
  Record({.id = index.value,
          .hash_prefix = hash,
          .bytes = static_cast<uint32_t>(bytes),
          .kind = TraceKind::kBlockLoad,
          .phase = TracePhase::kEnd,
          .miss = miss,
          .failed = miss != MissReason::kNone});
}

void CacheTrace::Move(TraceKind kind, TracePhase phase, EntryIndex index, bool failed,
                      int64_t time_us) {
  const BlockEntry& entry = state_[index];
  const uint64_t hash = entry.hash.Prefix64();
  const uint64_t bytes = state_.blocks.NamespaceOf(entry).slot_bytes;
  FireMove(kind, phase, index.value, hash, bytes, failed);
  Record({.time_us = time_us,
          .id = index.value,
          .hash_prefix = hash,
          .bytes = static_cast<uint32_t>(bytes),
          .kind = kind,
          .phase = phase,
          .failed = failed});
}

void CacheTrace::Evict(const BlockKey& key, Tier tier, DropReason reason) {
  const uint64_t hash = key.hash.Prefix64();
  KVT_PROBE4(evict, hash, static_cast<int>(tier), static_cast<int>(reason), key.namespace_id.value);
  Record({.hash_prefix = hash,
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
