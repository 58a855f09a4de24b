// SPDX-License-Identifier: Apache-2.0
#include "daemon/events/event_feed.h"

#include <utility>

namespace kvtier {

EventFeed EventFeed::Live(EventStream* stream, EventPeerCounters* counters) {
  EventFeed feed(stream, counters, stream->ring().next());
  feed.BeginSnapshot();
  return feed;
}

// A number that was never given is of another daemon, whose batches say nothing of this one.
EventFeed EventFeed::Replay(EventStream* stream, EventPeerCounters* counters, uint64_t first) {
  const EventRing& ring = stream->ring();
  EventFeed feed(stream, counters, first);
  if (first < ring.first() || first > ring.next()) feed.BeginSnapshot();
  return feed;
}

void EventFeed::BeginSnapshot() {
  snapshot_ = stream_->BeginSnapshot();
  ready_.clear();
  next_ = snapshot_ ? snapshot_->sequence() + 1 : 0;
  if (snapshot_) ++counters_->snapshots;
}

std::optional<PublishedBatch> EventFeed::Next() {
  const EventRing& ring = stream_->ring();
  if (next_ < ring.first()) {
    counters_->lost += ring.first() - next_;
    BeginSnapshot();
  }
  if (snapshot_ && ready_.empty()) {
    for (PublishedBatch& batch : stream_->Continue(&*snapshot_)) ready_.push_back(std::move(batch));
    if (snapshot_->finished()) snapshot_.reset();
    if (ready_.empty()) return PublishedBatch{};
  }
  if (!ready_.empty()) {
    PublishedBatch batch = std::move(ready_.front());
    ready_.pop_front();
    return batch;
  }
  if (next_ == ring.next()) return std::nullopt;
  return ring[next_++];
}

}  // namespace kvtier
