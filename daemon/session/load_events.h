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

inline constexpr int64_t kLoadEventIntervalMs = 1;

class LoadEvents {
 public:
  // `connection` must outlive this object.
  LoadEvents(EventLoop* loop, Connection* connection) : connection_(connection), pace_(loop) {}

  void Report(const LoadProgress& progress);
  // Keeps back what is reported of a load that the client does not know yet, until it is announced
  // (after the reply that names it) or dropped (the client never hears of it).
  void Withhold(LoadId load) { withheld_.emplace(load, std::nullopt); }
  void Announce(LoadId load);
  void Drop(LoadId load);

 private:
  void Send(const LoadProgress& progress);
  void SendPending();

  Connection* const connection_;
  // Loads of which something was told, but not the end.
  std::unordered_set<LoadId> announced_;
  // What was reported of those kept back.
  std::unordered_map<LoadId, std::optional<LoadProgress>> withheld_;
  // Dropped, and not ended yet.
  std::unordered_set<LoadId> dropped_;
  // The latest of each load that waits: a client that does not read costs one entry per load.
  std::unordered_map<LoadId, LoadProgress> pending_;
  // Runs for a while after each event sent.
  Timer pace_;
};

}  // namespace kvtier
