// SPDX-License-Identifier: Apache-2.0
#include "tiers/transfer/read_lines.h"

namespace kvtier {
namespace {

// So many of a line are given up with one tick, the others with the next.
constexpr size_t kMostGivenUp = 1024;

}  // namespace

InFlightBytes Arrival::Ahead(InFlight* line, const CacheState& state) const {
  if (CanWait(state)) return {};
  return {line, pool->block_bytes, 1};
}

void ReadLines::Push(const Arrival& arrival) {
  const TenantLine tenant = state_.blocks.LineOf(state_.blocks.directory[arrival.entry]);
  Queued read{arrival, arrival.Ahead(&ahead_, state_)};
  if (arrival.CanWait(state_)) {
    lines_.PushLater(tenant, std::move(read));
  } else {
    lines_.Push(tenant, std::move(read));
  }
}

std::vector<Arrival> ReadLines::TakeLate() {
  const int64_t now_ms = state_.clock.NowMs();
  std::vector<Arrival> late;
  const auto take = [&](std::deque<Queued>* line) {
    for (size_t left = kMostGivenUp; left > 0 && !line->empty(); --left) {
      if (now_ms - line->front().arrival.since_ms <= kPatienceMs) return;
      late.push_back(line->front().arrival);
      line->pop_front();
    }
  };
  lines_.ForEachLine([&](TenantLine, PriorityQueue<Queued>* line) {
    take(line->now());
    take(line->later());
  });
  return late;
}

}  // namespace kvtier
