// SPDX-License-Identifier: Apache-2.0
// Turns the cache's reports on loads into LOAD_PROGRESS events: the first block that becomes ready
// is told at once, then at most one event per load and millisecond, and the end at once again.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/ids.h"
#include "daemon/net/connection.h"
#include "daemon/runtime/event_loop.h"
#include "protocol/block_messages.h"
#include "tiers/cache.h"

namespace kvtier {

inline constexpr int64_t kLoadEventIntervalMs = 1;

class LoadEvents {
 public:
  // `connection` must outlive this object.
  LoadEvents(EventLoop* loop, Connection* connection) : connection_(connection), pace_(loop) {}

  void Report(const LoadProgress& progress);

 private:
  void Send(const LoadProgress& progress);
  void SendPending();

  Connection* const connection_;
  // Loads of which something was told, but not the end.
  std::unordered_set<LoadId> announced_;
  // The latest of each load that waits: a client that does not read costs one entry per load.
  std::unordered_map<LoadId, LoadProgress> pending_;
  // Runs for a while after each event sent.
  Timer pace_;
};

inline void LoadEvents::Report(const LoadProgress& progress) {
  const bool may_wait = pace_.running() && announced_.contains(progress.load) && !progress.finished;
  if (connection_->congested()) {
    pending_[progress.load] = progress;
    connection_->OnceUncongested([this] { SendPending(); });
  } else if (may_wait) {
    pending_[progress.load] = progress;
  } else {
    pending_.erase(progress.load);
    Send(progress);
  }
}

inline void LoadEvents::Send(const LoadProgress& progress) {
  if (progress.finished) {
    announced_.erase(progress.load);
  } else {
    announced_.insert(progress.load);
  }
  connection_->Send(0, wire::LoadProgress{progress});
  if (!pace_.running()) pace_.Start(kLoadEventIntervalMs, [this] { SendPending(); });
}

inline void LoadEvents::SendPending() {
  const auto pending = std::exchange(pending_, {});
  for (const auto& [load, progress] : pending) Send(progress);
}

}  // namespace kvtier
