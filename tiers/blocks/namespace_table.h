// SPDX-License-Identifier: Apache-2.0
// The (tenant, model) pairs that the cache has met, by their numbers.
//
// Event loop only. A pair keeps its number for as long as the daemon runs, because lines, batches
// and messages name pairs by number. The next daemon gives a number to another pair if no record on
// disk has it. The disk and the attaches of one daemon's life bound the table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "tiers/policy/tenant_queues.h"
#include "tiers/policy/tenant_table.h"
#include "tiers/types/block_key.h"

namespace kvtier {

struct CachePool;

struct Namespace {
  NamespaceIdentity identity;  // without a size of blocks: the number is free
  uint64_t slot_bytes = 0;  // header and payload, a multiple of the I/O alignment; 0: no slab fits
  TenantId tenant;
  TenantLine line;
  bool indexed = false;  // the index has the identity under this number
  // Its tenant's number among those of which token ids are kept.
  static constexpr uint32_t kNoTokenShare = UINT32_MAX;
  uint32_t token_share = kNoTokenShare;
  // By PoolSlot; null: none there. Empty while there is none at all, since most namespaces of an
  // engine whose weights change are those of weights that are gone.
  std::vector<CachePool*> pools;

  [[nodiscard]] CachePool* PoolIn(PoolSlot slot) const {
    return pools.empty() ? nullptr : pools[slot.value];
  }
  // The first slot from `first` on that has no pool.
  [[nodiscard]] std::optional<PoolSlot> FreeSlot(uint32_t first) const;
  // REQUIRES: the slot is free.
  void PutPool(PoolSlot slot, CachePool* pool);
  void TakePool(PoolSlot slot);
};

class NamespaceTable {
 public:
  // Without a bound a client could attach models that differ in a byte until the daemon's memory is
  // used up. They take some 200 bytes each.
  static constexpr uint32_t kMaxNamespaces = 1 << 19;

  // REQUIRES: number < size().
  [[nodiscard]] Namespace& operator[](uint32_t number) { return table_[number]; }
  [[nodiscard]] const Namespace& operator[](uint32_t number) const { return table_[number]; }
  // One more than the largest number. Some below it may be free.
  [[nodiscard]] size_t size() const { return table_.size(); }
  [[nodiscard]] auto begin() const { return table_.begin(); }
  [[nodiscard]] auto end() const { return table_.end(); }
  // How many numbers are not free.
  [[nodiscard]] size_t count() const { return count_; }

  [[nodiscard]] std::optional<NamespaceId> Find(const NamespaceIdentity& identity) const;
  // Gives it the smallest free number, which Find() then finds. A tenant gets no more numbers than
  // it leaves to others. Errors: kLimitExceeded "too_many_namespaces".
  [[nodiscard]] Result<NamespaceId> Add(Namespace name_space);
  // The number is free again. REQUIRES: it was added, and nothing has been told of it.
  void TakeBack(NamespaceId id);
  // Gives it the number that it had before. False: the number is too large or taken, as in an index
  // that is damaged.
  bool Restore(NamespaceId id, Namespace name_space);
  // Whether tenants share this row of tenant tables.
  [[nodiscard]] bool IsShared(TenantId tenant) const;

 private:
  struct Sharing {
    std::string first;
    bool shared = false;
  };

  void Put(NamespaceId id, Namespace name_space);

  std::vector<Namespace> table_;
  std::map<NamespaceIdentity, NamespaceId> numbers_;  // no hash: clients choose fingerprints
  std::unordered_map<uint32_t, Sharing> tenants_;     // by TenantId
  std::unordered_map<uint32_t, size_t> counts_;       // by TenantLine
  uint32_t first_free_ = 0;                           // no number below it is free
  size_t count_ = 0;
};

}  // namespace kvtier
