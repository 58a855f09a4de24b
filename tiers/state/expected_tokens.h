// SPDX-License-Identifier: Apache-2.0
// Token ids of blocks that are not cached yet: they come a little before the blocks do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <unordered_map>
#include <vector>

#include "tiers/types/block_key.h"
#include "tiers/types/block_key_hash.h"

namespace kvtier {

// Bounded in bytes and in time: what no block claims is forgotten, the oldest first. One for each
// tenant, so that none takes another's room. Event loop only.
class ExpectedTokens {
 public:
  static constexpr size_t kMaxBytes = 8u << 20;
  // Longer than a store may wait for its client.
  static constexpr int64_t kMaxWaitMs = 30'000;

  // The first ids of a block stay.
  void Add(const BlockKey& key, std::span<const uint32_t> ids, int64_t now_ms);
  // The block is cached now; empty if nothing was known of it.
  [[nodiscard]] std::vector<uint32_t> Take(const BlockKey& key);
  // Forgets entries that have waited too long.
  void Expire(int64_t now_ms);
  void Clear();
  [[nodiscard]] bool empty() const { return ids_.empty(); }
  [[nodiscard]] size_t bytes() const { return bytes_; }

 private:
  struct Turn {
    BlockKey key;
    int64_t since_ms = 0;
  };
  [[nodiscard]] static size_t CostOf(size_t ids) { return ids * sizeof(uint32_t) + kBytesPerBlock; }
  void DropOldest();

  static constexpr size_t kBytesPerBlock = 160;  // of map and queue, rounded up

  std::unordered_map<BlockKey, std::vector<uint32_t>, BlockKeyHash> ids_;
  // In the order in which they came, those that were taken among them.
  std::deque<Turn> turns_;
  size_t bytes_ = 0;
};

}  // namespace kvtier
