// SPDX-License-Identifier: Apache-2.0
// Which batches one router gets next: a snapshot if it needs one, then all that was published
// since, each once and in order.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>

#include "daemon/events/event_stream.h"

namespace kvtier {

// A connection pulls batches as fast as its peer reads, so that a slow peer costs no memory: a
// snapshot makes good the batches that have left the ring meanwhile. Event loop only.
class EventFeed {
 public:
  // Begins with a snapshot, behind the last batch published. `stream` and `counters` are borrowed.
  static EventFeed Live(EventStream* stream, EventPeerCounters* counters);
  // Begins with this number, with a snapshot first if the ring no longer has it, or never had. Ends
  // with the last batch that is published when it comes there.
  static EventFeed Replay(EventStream* stream, EventPeerCounters* counters, uint64_t first);

  // The next batch, or nothing: a live feed has more later, a replay is at its end. Parts of
  // a snapshot take time, so that the caller bounds how many it takes in one event.
  [[nodiscard]] std::optional<PublishedBatch> Next();

 private:
  EventFeed(EventStream* stream, EventPeerCounters* counters, uint64_t next)
      : stream_(stream), counters_(counters), next_(next) {}
  void BeginSnapshot(EventStream::Numbers numbers);

  EventStream* stream_;
  EventPeerCounters* counters_;
  uint64_t next_;  // of the ring, behind the snapshot
  std::optional<EventStream::Snapshot> snapshot_;
  std::deque<PublishedBatch> ready_;  // of the snapshot
};

}  // namespace kvtier
