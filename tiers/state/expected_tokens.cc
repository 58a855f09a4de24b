// SPDX-License-Identifier: Apache-2.0
#include "tiers/state/expected_tokens.h"

#include <utility>

namespace kvtier {

// An entry that was taken keeps its turn, and its share of the bytes, until its turn comes or
// nothing is expected: so the queue is bounded as well.
void ExpectedTokens::Add(const BlockKey& key, std::span<const uint32_t> ids, int64_t now_ms) {
  if (!ids_.try_emplace(key, ids.begin(), ids.end()).second) return;
  turns_.push_back({key, now_ms});
  bytes_ += CostOf(ids.size());
  while (bytes_ > kMaxBytes && turns_.size() > 1) DropOldest();
}

std::vector<uint32_t> ExpectedTokens::Take(const BlockKey& key) {
  const auto found = ids_.find(key);
  if (found == ids_.end()) return {};
  std::vector<uint32_t> ids = std::move(found->second);
  bytes_ -= ids.size() * sizeof(uint32_t);
  ids_.erase(found);
  if (ids_.empty()) Clear();
  return ids;
}

void ExpectedTokens::Expire(int64_t now_ms) {
  while (!turns_.empty() && now_ms - turns_.front().since_ms > kMaxWaitMs) DropOldest();
}

void ExpectedTokens::Clear() {
  ids_.clear();
  turns_.clear();
  bytes_ = 0;
}

void ExpectedTokens::DropOldest() {
  const auto found = ids_.find(turns_.front().key);
  bytes_ -= kBytesPerBlock;
  if (found != ids_.end()) {
    bytes_ -= found->second.size() * sizeof(uint32_t);
    ids_.erase(found);
  }
  turns_.pop_front();
  if (ids_.empty()) Clear();
}

}  // namespace kvtier
