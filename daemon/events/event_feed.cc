// SPDX-License-Identifier: Apache-2.0
#include "daemon/events/event_feed.h"

#include <utility>

namespace kvtier {

EventFeed EventFeed::Live(EventStream* stream, EventPeerCounters* counters) {
  EventFeed feed(stream, counters, stream->ring().next());
  feed.BeginSnapshot(EventStream::Numbers::kNew);
  return feed;
}

// A number that was never given is of another daemon, whose batches say nothing of this one.
EventFeed EventFeed::Replay(EventStream* stream, EventPeerCounters* counters, uint64_t first) {
  const EventRing& ring = stream->ring();
  EventFeed feed(stream, counters, first);
  if (first < ring.first() || first > ring.next()) feed.BeginSnapshot(EventStream::Numbers::kOld);
  return feed;
}

void EventFeed::BeginSnapshot(EventStream::Numbers numbers) {
  snapshot_ = stream_->BeginSnapshot(numbers);
  ready_.clear();
  next_ = stream_->ring().next();
  if (snapshot_) ++counters_->snapshots;
}

std::optional<PublishedBatch> EventFeed::Next() {
  const EventRing& ring = stream_->ring();
  if (next_ < ring.first()) {
    counters_->lost += ring.first() - next_;
    BeginSnapshot(EventStream::Numbers::kNew);
  }
  while (snapshot_ && ready_.empty()) {
    for (PublishedBatch& batch : stream_->Continue(&*snapshot_)) ready_.push_back(std::move(batch));
    if (snapshot_->finished()) snapshot_.reset();
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
