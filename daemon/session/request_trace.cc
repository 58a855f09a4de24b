// SPDX-License-Identifier: Apache-2.0
#include "daemon/session/request_trace.h"

namespace kvtier {

void RequestTrace::SessionBegin() {
  Record({.tag = {session_}, .kind = TraceKind::kSession, .phase = TracePhase::kBegin});
}

void RequestTrace::SessionEnd() {
  Record({.tag = {session_}, .kind = TraceKind::kSession, .phase = TracePhase::kEnd});
}

void RequestTrace::Begin(wire::MessageType message, uint64_t request, const Asked& asked) {
  Record({.tag = {session_, request},
          .hash_prefix = asked.hash_prefix,
          .blocks = {asked.blocks, asked.new_blocks},
          .kind = TraceKind::kRequest,
          .phase = TracePhase::kBegin,
          .message = static_cast<uint8_t>(message)});
}

// Every Begin is followed by exactly one End or EndAcquire, also for a request that is refused. A
// request that is still being answered when its session ends may have none; the session's own end
// tells a reader of the trace.
void RequestTrace::End(wire::MessageType message, uint64_t request, bool failed) {
  Record({.tag = {session_, request},
          .kind = TraceKind::kRequest,
          .phase = TracePhase::kEnd,
          .message = static_cast<uint8_t>(message),
          .failed = failed});
}

void RequestTrace::EndAcquire(uint64_t request, const wire::AcquireReply& reply) {
  TraceEvent event{.tag = {session_, request},
                   .kind = TraceKind::kRequest,
                   .phase = TracePhase::kEnd,
                   .message = static_cast<uint8_t>(wire::MessageType::kAcquire)};
  for (const wire::AcquireReply::Part& part : reply.parts) {
    // Where there are several groups, the first that loads and the first that misses stand for all.
    if (event.id == 0) event.id = part.load.value;
    if (event.miss == MissReason::kNone) event.miss = part.miss;
    for (const AcquiredBlock& hit : part.hits) ++event.blocks[static_cast<size_t>(hit.tier)];
  }
  Record(event);
}

}  // namespace kvtier
