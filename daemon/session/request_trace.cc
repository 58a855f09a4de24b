// SPDX-License-Identifier: Apache-2.0
#include "daemon/session/request_trace.h"

#include "base/probes.h"

namespace kvtier {

void RequestTrace::SessionBegin() {
  Record({.tag = {session_}, .kind = TraceKind::kSession, .phase = TracePhase::kBegin});
}

void RequestTrace::SessionEnd() {
  Record({.tag = {session_}, .kind = TraceKind::kSession, .phase = TracePhase::kEnd});
}

void RequestTrace::Begin(wire::MessageType message, uint64_t request, const Asked& asked) {
  if (message == wire::MessageType::kAcquire) {
    KVT_PROBE4(acquire__begin, session_.value, request, asked.blocks, asked.new_blocks);
  }
  Record({.tag = {session_, request},
          .hash_prefix = asked.hash_prefix,
          .blocks = {asked.blocks, asked.new_blocks},
          .kind = TraceKind::kRequest,
          .phase = TracePhase::kBegin,
          .message = static_cast<uint8_t>(message)});
}

void RequestTrace::End(wire::MessageType message, uint64_t request, bool failed) {
  if (message == wire::MessageType::kAcquire) {
    KVT_PROBE6(acquire__end, session_.value, request, 0, 0, 0, failed);
  }
  Record({.tag = {session_, request},
          .kind = TraceKind::kRequest,
          .phase = TracePhase::kEnd,
          .message = static_cast<uint8_t>(message),
          .failed = failed});
}

void RequestTrace::EndAcquire(uint64_t request, const Result<AcquireReply>& acquired) {
  if (!acquired) return End(wire::MessageType::kAcquire, request, true);
  KVT_PROBE6(acquire__end, session_.value, request, acquired->hits.size(),
             acquired->new_blocks.size(), acquired->load.value, 0);
  if (tracer_ == nullptr) return;
  TraceEvent event{.tag = {session_, request},
                   .id = acquired->load.value,
                   .kind = TraceKind::kRequest,
                   .phase = TracePhase::kEnd,
                   .message = static_cast<uint8_t>(wire::MessageType::kAcquire),
                   .miss = acquired->miss};
  for (const AcquiredBlock& hit : acquired->hits) ++event.blocks[static_cast<size_t>(hit.tier)];
  tracer_->Record(event);
}

}  // namespace kvtier
