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

void ReadLines::Push(Arrival arrival) {
  arrival.since_ms = state_.clock.NowMs();
  const TenantLine tenant = state_.blocks.LineOf(state_.blocks.directory[arrival.entry]);
  if (tenant.value >= progress_.size()) progress_.resize(tenant.value + 1);
  Queued read{arrival, arrival.Ahead(&ahead_, state_)};
  if (arrival.CanWait(state_)) {
    lines_.PushLater(tenant, std::move(read));
  } else {
    lines_.Push(tenant, std::move(read));
  }
}

void ReadLines::Note(TenantLine tenant, bool prefetched, Step outcome) {
  Progress& progress = progress_[tenant.value];
  if (outcome == Step::kNoSlot) progress.refused = true;
  if (outcome != Step::kLeft) return;
  moved_ms_ = state_.clock.NowMs();
  (prefetched ? progress.prefetch_ms : progress.moved_ms) = moved_ms_;
  progress.refused = false;
}

// A line may stand still because others are read all the time, and then waits for its turn. A
// prefetch does not: it holds a block of its pool meanwhile.
std::vector<ReadLines::GivenUp> ReadLines::TakeStuck(bool may_hang) {
  const int64_t now_ms = state_.clock.NowMs();
  const auto long_ago = [now_ms](int64_t ms) { return now_ms - ms > kPatienceMs; };
  const bool reads_hang = may_hang && long_ago(moved_ms_);
  std::vector<GivenUp> stuck;
  const auto give_up = [&](std::deque<Queued>* line, MissReason reason) {
    for (size_t left = kMostGivenUp; left > 0 && !line->empty(); --left) {
      if (!long_ago(line->front().arrival.since_ms)) return;
      stuck.push_back({line->front().arrival, reason});
      line->pop_front();
    }
  };
  lines_.ForEachLine([&](TenantLine tenant, PriorityQueue<Queued>* line) {
    if (line->empty()) return;
    const Progress& progress = progress_[tenant.value];
    const bool refused = progress.refused;
    if (long_ago(progress.moved_ms) && (refused || reads_hang)) {
      give_up(line->now(), refused ? MissReason::kHostFull : MissReason::kReadError);
    }
    if (!long_ago(progress.prefetch_ms)) return;
    PromoteReferenced(tenant);
    give_up(line->later(), refused ? MissReason::kHostFull : MissReason::kCancelled);
  });
  return stuck;
}

}  // namespace kvtier
