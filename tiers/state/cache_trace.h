// SPDX-License-Identifier: Apache-2.0
// Where the parts of the cache tell the tracer, if there is one, what they do. Internal to the
// cache.
#pragma once

#include <cstdint>

#include "base/acquired.h"
#include "tiers/types/block_key.h"
#include "tiers/types/tracer.h"

namespace kvtier {

class CacheState;
struct AcquireRequest;

// Without a tracer a call costs a few instructions and reads no clock. Event loop only.
class CacheTrace {
 public:
  explicit CacheTrace(CacheState* state) : state_(*state) {}

  // While one lives, events share readings of the clock, each at most kEventsPerReading: for work
  // on many blocks in a row, where a reading for each would cost more than all the rest.
  class Together {
   public:
    explicit Together(CacheTrace* trace) : trace_(*trace) {
      ++trace_.together_;
      trace_.readings_left_ = 0;
    }
    ~Together() { --trace_.together_; }
    Together(const Together&) = delete;
    Together& operator=(const Together&) = delete;

   private:
    CacheTrace& trace_;
  };
  static constexpr int kEventsPerReading = 64;

  void WaitBegin(const AcquireRequest& request);
  void WaitEnd(const AcquireRequest& request);
  // `blocks` of the acquire's hits have to be loaded.
  void LoadBegin(const AcquireRequest& request, LoadId load, uint64_t blocks);
  void LoadEnd(SessionId session, const LoadProgress& progress);

  // A block's way up, which has just begun. REQUIRES: something but its pool holds it.
  void BlockLoadBegin(RequestTag tag, EntryIndex entry);
  void BlockLoadEnd(EntryIndex entry, MissReason miss);
  // A copy, read, write or check of one block.
  void Begin(TraceKind kind, EntryIndex entry) { Move(kind, TracePhase::kBegin, entry, false); }
  void End(TraceKind kind, EntryIndex entry, bool failed) {
    Move(kind, TracePhase::kEnd, entry, failed);
  }
  // A read has ended whose bytes another thread has checked since `check_begun_us` of the tracer's
  // clock.
  void EndOfRead(EntryIndex entry, int64_t check_begun_us, bool check_failed) {
    Move(TraceKind::kDiskRead, TracePhase::kEnd, entry, false, check_begun_us);
    Move(TraceKind::kCheck, TracePhase::kBegin, entry, false, check_begun_us);
    Move(TraceKind::kCheck, TracePhase::kEnd, entry, check_failed);
  }
  void Evict(const BlockKey& key, Tier tier, DropReason reason);
  void IndexCommitBegin(uint64_t records, uint64_t deletions);
  void IndexCommitEnd(bool failed);

 private:
  // `time_us` of the tracer's clock; 0: now.
  void Move(TraceKind kind, TracePhase phase, EntryIndex entry, bool failed, int64_t time_us = 0);
  void Record(TraceEvent event);

  CacheState& state_;
  int together_ = 0;
  int64_t reading_us_ = 0;
  int readings_left_ = 0;
};

}  // namespace kvtier
