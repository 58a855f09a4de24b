// SPDX-License-Identifier: Apache-2.0
// The requests of an engine that wait for their turn, and the bound on the bytes under way.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "tiers/storage/io_engine.h"

namespace kvtier {

// First come, first served: a request that does not fit holds back the smaller ones behind it, so
// that it cannot starve. One thread at a time.
class IoQueue {
 public:
  explicit IoQueue(uint64_t depth_bytes) : depth_bytes_(depth_bytes) {}

  void Push(IoRequest request) { waiting_.push_back(std::move(request)); }

  // Whether the next request may start: within the bound, or alone.
  [[nodiscard]] bool CanTake() const {
    if (waiting_.empty()) return false;
    return bytes_under_way_ == 0 || bytes_under_way_ + waiting_.front().bytes <= depth_bytes_;
  }
  // REQUIRES: CanTake().
  [[nodiscard]] IoRequest Take() {
    IoRequest request = std::move(waiting_.front());
    waiting_.pop_front();
    bytes_under_way_ += request.bytes;
    return request;
  }
  // A request that was taken, of this many bytes, has ended.
  void Finish(uint64_t bytes) { bytes_under_way_ -= bytes; }

  // Empties the queue.
  [[nodiscard]] std::vector<IoCompletion> CancelWaiting() {
    std::vector<IoCompletion> cancelled;
    for (IoRequest& request : waiting_) {
      cancelled.push_back({std::move(request.done),
                           MakeError(ErrorCode::kCancelled, "closed", request.Describe())});
    }
    waiting_.clear();
    return cancelled;
  }

  [[nodiscard]] uint64_t bytes_under_way() const { return bytes_under_way_; }

 private:
  const uint64_t depth_bytes_;
  std::deque<IoRequest> waiting_;
  uint64_t bytes_under_way_ = 0;
};

}  // namespace kvtier
