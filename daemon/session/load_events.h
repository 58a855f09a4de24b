// SPDX-License-Identifier: Apache-2.0
// Turns the cache's reports on loads into LOAD_PROGRESS events: the first block that becomes ready
// is told at once, then at most one event per load and millisecond, and the end at once again.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "base/ids.h"
#include "daemon/net/connection.h"
#include "daemon/runtime/event_loop.h"
#include "tiers/cache.h"

namespace kvtier {

// A load of many blocks finishes thousands of copies per second. One event per millisecond is finer
// than any engine schedules by, and keeps the socket and the client's thread free for replies.
inline constexpr int64_t kLoadEventIntervalMs = 1;

// Event loop only. One object belongs to one session. It is called from within calls of the cache,
// so that it never calls the cache itself; it only queues frames on the connection.
class LoadEvents {
 public:
  // `connection` must outlive this object.
  LoadEvents(EventLoop* loop, Connection* connection) : connection_(connection), pace_(loop) {}

  // Sends the progress, or keeps the latest of its load until it may be sent. An end is never kept
  // for pacing, because the engine may be waiting for it; a congested connection delays even an
  // end, since its queue must not grow without bound.
  void Report(const LoadProgress& progress);
  // Keeps back the reports on a load that the client does not know yet, until it is announced
  // (after the reply that names it) or dropped (the client never hears of it).
  void Withhold(LoadId load) { withheld_.emplace(load, std::nullopt); }
  // Sends the load's withheld report, if there is one. REQUIRES: the reply that names the load has
  // been queued before, so that the client meets the load's id first in the reply. A load that was
  // not withheld is left alone.
  void Announce(LoadId load);
  void Drop(LoadId load);

 private:
  void Send(const LoadProgress& progress);
  void SendPending();

  Connection* const connection_;
  // Loads of which something was told, but not the end.
  std::unordered_set<LoadId> announced_;
  // The last report on each load that is kept back.
  std::unordered_map<LoadId, std::optional<LoadProgress>> withheld_;
  // Loads whose try was rolled back and which have not ended yet. Their reports are swallowed until
  // the last one, with which the entry goes away: an entry lives no longer than its load.
  std::unordered_set<LoadId> dropped_;
  // The latest of each load that waits: a client that does not read costs one entry per load.
  std::unordered_map<LoadId, LoadProgress> pending_;
  // Runs for a while after each event sent.
  Timer pace_;
};

}  // namespace kvtier
