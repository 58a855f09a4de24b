// SPDX-License-Identifier: Apache-2.0
// The batches that were published last, for those who are behind.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>

namespace kvtier {

// One message. Copies share topic and payload.
struct PublishedBatch {
  uint64_t sequence = 0;
  std::shared_ptr<const std::string> topic;
  std::shared_ptr<const std::string> payload;
};

// Numbers batches from `first` on and keeps the latest: at most `batches` of them, in at most
// kMaxBytes. Event loop only.
class EventRing {
 public:
  static constexpr size_t kMaxBytes = 64u << 20;

  EventRing(size_t batches, uint64_t first) : batches_(batches), next_(first) {}

  void Add(std::shared_ptr<const std::string> topic, std::string payload) {
    AddRun(1, std::move(topic), std::move(payload));
  }
  // Gives one batch `count` numbers: it is kept once.
  void AddRun(uint64_t count, std::shared_ptr<const std::string> topic, std::string payload) {
    bytes_ += payload.size();
    kept_.push_back(
        {next_, std::move(topic), std::make_shared<const std::string>(std::move(payload))});
    next_ += count;
    while (kept_.size() > batches_ || bytes_ > kMaxBytes) {
      bytes_ -= kept_.front().payload->size();
      kept_.pop_front();
    }
  }

  void Clear() {
    kept_.clear();
    bytes_ = 0;
  }

  // The number of the oldest batch that is kept; next() if none is.
  [[nodiscard]] uint64_t first() const { return kept_.empty() ? next_ : kept_.front().sequence; }
  // The number that the next batch will have.
  [[nodiscard]] uint64_t next() const { return next_; }
  // REQUIRES: first() <= sequence < next().
  [[nodiscard]] PublishedBatch operator[](uint64_t sequence) const {
    PublishedBatch batch =
        *--std::ranges::upper_bound(kept_, sequence, {}, &PublishedBatch::sequence);
    batch.sequence = sequence;
    return batch;
  }

 private:
  const size_t batches_;
  std::deque<PublishedBatch> kept_;
  size_t bytes_ = 0;
  uint64_t next_;
};

}  // namespace kvtier
