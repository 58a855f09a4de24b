// SPDX-License-Identifier: Apache-2.0
#include "daemon/admin/trace_ring.h"

#include <chrono>

#include "base/result.h"

namespace kvtier {

TraceRing::TraceRing(uint64_t capacity) : events_(capacity) { KVT_CHECK(capacity > 0); }

int64_t TraceRing::ClockUs() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::microseconds>(now).count();
}

void TraceRing::Record(const TraceEvent& event) {
  TraceEvent& slot = events_[end_++ % events_.size()];
  slot = event;
  if (slot.time_us == 0) slot.time_us = ClockUs();
}

uint64_t TraceRing::FirstSince(int64_t time_us) const {
  uint64_t low = first();
  uint64_t high = end_;
  while (low < high) {
    const uint64_t middle = low + (high - low) / 2;
    if ((*this)[middle].time_us < time_us) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

}  // namespace kvtier
