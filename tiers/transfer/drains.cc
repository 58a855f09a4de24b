// SPDX-License-Identifier: Apache-2.0
#include "tiers/transfer/drains.h"

#include <utility>

namespace kvtier {

// Once draining has been stopped, what still waits in queues counts no more: it will not be
// started.
bool Drains::Settled() const {
  if (stopped_) {
    return offloader_.in_flight() + persister_.writes_in_flight() == 0 && disk_.committer().Idle();
  }
  return offloader_.Idle() && persister_.Idle() && adoption_.Idle() && disk_.committer().Idle();
}

void Drains::Begin(std::function<void()> done) {
  ++beginning_;
  disk_.pause().SetDraining(true);
  WalkFrom(0, std::move(done));
}

void Drains::WalkFrom(uint64_t row, std::function<void()> done) {
  // Begins the writes first, so that they are under way while the rows are walked.
  uint64_t next = row;
  if (retention_.PersistSome(state_.options.drain_part_rows)) {
    next = disk_.FlushRecency(row, state_.options.drain_part_rows);
  } else {
    state_.SchedulePump();
  }
  if (next >= state_.blocks.directory.end()) {
    state_.SchedulePump();
    --beginning_;
    waiting_.push_back(std::move(done));
    return;
  }
  state_.env.loop->Post(gate_.WhileOpen(
      [this, next, done = std::move(done)]() mutable { WalkFrom(next, std::move(done)); }));
}

// An index that refuses again and again, as on a full file system, would keep a drain waiting for
// ever. The next start finds out by itself which of its records are wrong.
bool Drains::NothingLeft() const {
  if (Settled()) return true;
  if (!disk_.committer().refuses()) return false;
  if (stopped_) return offloader_.in_flight() + persister_.writes_in_flight() == 0;
  return offloader_.Idle() && persister_.Idle() && adoption_.Idle();
}

// Blocks committed since a drain began are written, too; they would not be before they have been
// idle.
void Drains::Pump() {
  if (waiting_.empty()) return;
  // Blocks that an earlier daemon left may be worth writing, too, also those that lie in memory
  // which is not ready yet.
  if (!stopped_ && state_.has_disk() && !adoption_.Ended()) return;
  if (!state_.orders.unpersisted.empty()) {
    if (stopped_) return;
    (void)retention_.PersistSome(state_.options.drain_part_rows);
    return state_.SchedulePump();
  }
  if (!NothingLeft()) return;
  std::vector<std::function<void()>> finished;
  finished.swap(waiting_);
  disk_.pause().SetDraining(UnderWay());
  for (const auto& done : finished) done();
}

}  // namespace kvtier
