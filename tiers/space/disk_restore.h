// SPDX-License-Identifier: Apache-2.0
// Takes over, when the daemon starts, the blocks that the index says are on disk.
#pragma once

#include <cstdint>
#include <unordered_set>

#include "tiers/index/index.h"
#include "tiers/space/disk_slots.h"
#include "tiers/space/key_expiry.h"
#include "tiers/state/cache_state.h"
#include "tiers/storage/disk_geometry.h"
#include "tiers/types/block_key_hash.h"

namespace kvtier {

// Event loop only. Lives for the one call.
class DiskRestore {
 public:
  // All are borrowed.
  DiskRestore(CacheState* state, DiskSlots* disk, KeyExpiry* keys)
      : state_(*state), disk_(*disk), keys_(*keys) {}

  // Adds an entry for each record that fits, coldest first.
  void Restore(IndexSnapshot snapshot);

 private:
  [[nodiscard]] bool IsAway(const IndexRecord& record) const;
  void NoteAway(const IndexSnapshot& snapshot);
  void KeepKey(const IndexRecord& record);
  void RestoreNamespaces(const IndexSnapshot& snapshot);
  // The group that most blocks of a slab belong to, as far as they have been counted.
  struct Vote {
    uint32_t group = 0;
    uint32_t lead = 0;
  };

  [[nodiscard]] BySlab<Vote> GroupsOfSlabs(const IndexSnapshot& snapshot) const;
  void RestoreRecord(const IndexRecord& record, const BySlab<Vote>& groups);
  void RestoreParent(const IndexRecord& record);
  void RestoreTokens(const TokensRecord& tokens);

  CacheState& state_;
  DiskSlots& disk_;
  KeyExpiry& keys_;
  std::unordered_set<BlockKey, BlockKeyHash> away_;  // blocks on drives that are away
};

}  // namespace kvtier
