// SPDX-License-Identifier: Apache-2.0
// Which tokens cached blocks hold, for events (docs/EVENTS.md): in memory for blocks of all tiers,
// and in the index for those that are on disk.
//
// Ids are prompts. They are kept for no tenant but those that the configuration names, they go with
// the block's last tier, and an erasure takes them at once. On disk they are where the block's own
// record is and nowhere else, so that a block of the class `memory` leaves none there: what memory
// alone holds has lost its ids after a restart, until a client tells them again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "tiers/policy/eviction_policy.h"
#include "tiers/types/block_key.h"
#include "tiers/types/block_key_hash.h"

namespace kvtier {

class CacheState;

// Token ids of blocks that are not cached yet: they come a little before the blocks do. Bounded in
// bytes and in time: what no block claims is forgotten, the oldest first. One for each tenant, so
// that none takes another's room. Event loop only.
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

// Part of CacheState. Event loop only. Where no tenant is named, it holds nothing and costs
// nothing.
class TokenIds {
 public:
  static constexpr uint32_t kNoShare = UINT32_MAX;

  // `bytes` are shared equally among the tenants. `state` is borrowed and outlives this.
  TokenIds(CacheState* state, std::vector<std::string> tenants, uint64_t bytes);

  // The tenant's number here; kNoShare: no ids of its blocks are kept.
  [[nodiscard]] uint32_t ShareOf(const std::string& tenant) const;
  [[nodiscard]] bool Keeps(NamespaceId namespace_id) const;

  // A client tells the ids of a block, cached or about to be. The first ones stay; a block that was
  // told of without them is told of again. Returns whether it has ids, or will.
  bool Give(const BlockKey& key, std::span<const uint32_t> ids);
  // The block is cached from now on.
  void NoteAdded(EntryIndex entry);
  // Takes the index's ids of a block that it names. False if they are not to be kept.
  bool Restore(const BlockKey& key, std::span<const uint32_t> ids);

  // For events: empty if they are not known, or the block is being erased.
  [[nodiscard]] std::span<const uint32_t> Of(EntryIndex entry) const;
  // The row becomes another block's, or its block is lost.
  void Forget(EntryIndex entry);
  // Forgets the ids of a block that is being erased. Returns whether the index may have them.
  [[nodiscard]] bool Erase(EntryIndex entry);
  // Forgets the ids of the tenant's blocks that are not cached.
  void EraseExpected(const std::string& tenant);
  void Tick();

  // For the index, whose record of the block is being written. The ids that it does not have yet,
  // and from now on may have; NoteStored says that it does. Empty if there are none.
  [[nodiscard]] std::span<const uint32_t> TakeUnstored(EntryIndex entry);
  [[nodiscard]] bool Unstored(EntryIndex entry) const;
  void NoteStored(EntryIndex entry);
  // The index's record of the block goes: whether it may have ids to go with it.
  [[nodiscard]] bool TakeStored(const BlockKey& key);

  [[nodiscard]] uint64_t blocks() const { return blocks_; }
  [[nodiscard]] uint64_t bytes() const;

 private:
  enum class Stored : uint8_t { kNo, kMaybe, kYes };
  struct Row {
    std::unique_ptr<uint32_t[]> ids;
    uint16_t count = 0;
    Stored stored = Stored::kNo;
  };
  struct Share {
    std::string tenant;
    uint64_t bytes = 0;
    ExpectedTokens expected;
  };

  // False if the tenant has no room left for them, or they are not the block's.
  bool Add(EntryIndex entry, std::span<const uint32_t> ids);
  [[nodiscard]] Share& ShareOf(EntryIndex entry);
  [[nodiscard]] const Row* Find(EntryIndex entry) const;
  void Drop(EntryIndex entry);

  CacheState& state_;
  std::vector<Share> shares_;
  const uint64_t share_bytes_;
  PagedArray<Row> rows_;  // by the row of the directory
  uint64_t blocks_ = 0;
};

}  // namespace kvtier
