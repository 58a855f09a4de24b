// SPDX-License-Identifier: Apache-2.0
// The events of requests and blocks as they happen: a tracer learns when each was, for how long,
// and for which session.
#pragma once

#include <array>
#include <cstdint>

#include "base/ids.h"
#include "tiers/types/cache_stats.h"

namespace kvtier {

// Things that take time have a begin and an end; what pairs the two is said with each.
enum class TraceKind : uint8_t {
  kSession,      // session
  kRequest,      // session and request
  kWait,         // the same: an acquire waits for blocks to become free
  kLoad,         // id: the LoadId, of the part of an acquire that is not in the pool
  kBlockLoad,    // id: the block, on its way up to the pool; the next three are its parts
  kDiskRead,     // id: the block
  kCheck,        // id: the block; its checksum is compared
  kCopyUp,       // id: the block; host to pool
  kOffload,      // id: the block; pool to host
  kSeal,         // id: the block; its checksum is made
  kDiskWrite,    // id: the block
  kVerifyRead,   // id: the block; read back and checked
  kIndexCommit,  // one at a time
  kEvict,        // an instant: a copy of a block leaves a tier, or never reaches it
};
inline constexpr int kTraceKindCount = 14;

enum class TracePhase : uint8_t { kBegin, kEnd, kInstant };

// Which request something is done for; session 0: for none.
struct RequestTag {
  SessionId session;
  uint64_t request = 0;
};

// A cache line: they are written in the middle of everything. Members that a kind has no use for
// are zero.
struct TraceEvent {
  // Monotonic; 0: set by the tracer. Another thread's work carries its own time, which may lie
  // before that of the event recorded before it.
  int64_t time_us = 0;
  RequestTag tag;
  uint64_t id = 0;
  uint64_t hash_prefix = 0;  // of the block; of a request, its last block's (Digest::Prefix64)
  uint32_t bytes = 0;        // of the block and its header
  // A request's begin and a load's: blocks asked for, new blocks. A request's end: hits by Tier. A
  // load's end: blocks ready. An index commit's begin: records, deletions.
  std::array<uint32_t, kTierCount> blocks{};
  TraceKind kind = TraceKind::kRequest;
  TracePhase phase = TracePhase::kInstant;
  Tier tier = Tier::kPool;  // where a block is loaded from or evicted from
  uint8_t message = 0;      // of a request: its wire::MessageType
  MissReason miss = MissReason::kNone;
  DropReason drop = DropReason::kCleanCopyBelow;  // of an eviction
  bool failed = false;
};
static_assert(sizeof(TraceEvent) == 64);

// Event loop only, but for NowUs.
class Tracer {
 public:
  virtual ~Tracer() = default;
  // Must be quick, and must not call the cache.
  virtual void Record(const TraceEvent& event) = 0;
  // The time that an event recorded now would get. Any thread may ask.
  [[nodiscard]] virtual int64_t NowUs() const = 0;
};

}  // namespace kvtier
