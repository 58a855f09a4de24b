// SPDX-License-Identifier: Apache-2.0
// Counters of events, for status and metrics.
#pragma once

#include <cstdint>
#include <string>

namespace kvtier {

// Counts of published blocks and batches.
struct EventCounters {
  uint64_t stored = 0;   // blocks
  uint64_t removed = 0;  // blocks
  uint64_t batches = 0;
  uint64_t untold = 0;  // groups of models that found no topic left
};

// Counts over all routers together.
struct EventPeerCounters {
  uint64_t lost = 0;       // batches that left the ring before a router took them
  uint64_t snapshots = 0;  // begun
  uint64_t replays = 0;    // requests answered
  uint64_t refused = 0;    // connections ended for what they sent, or because there were too many
};

struct EventReport {
  // Where events are listened for, as configured, with the port that was chosen; empty: nowhere.
  std::string endpoint;
  std::string replay_endpoint;
  EventCounters stream;
  EventPeerCounters peers;
  uint64_t subscribers = 0;
  uint64_t next_sequence = 0;
};

// Its source. Event loop only.
class EventReportSource {
 public:
  virtual ~EventReportSource() = default;
  [[nodiscard]] virtual EventReport Report() const = 0;
};

}  // namespace kvtier
