// SPDX-License-Identifier: Apache-2.0
// Takes over, when the daemon starts, the blocks that the index says are on disk.
#pragma once

#include <cstdint>
#include <vector>

#include "tiers/index/index.h"
#include "tiers/space/disk_slots.h"
#include "tiers/state/cache_state.h"

namespace kvtier {

// Event loop only. Lives for the one call.
class DiskRestore {
 public:
  // Both are borrowed.
  DiskRestore(CacheState* state, DiskSlots* disk) : state_(*state), disk_(*disk) {}

  // Adds an entry for each record that fits, coldest first.
  void Restore(IndexSnapshot snapshot);

 private:
  void RestoreNamespaces(const IndexSnapshot& snapshot);
  // Which group each slab belongs to.
  [[nodiscard]] std::vector<uint32_t> GroupsOfSlabs(const IndexSnapshot& snapshot) const;
  void RestoreRecord(const IndexRecord& record, const std::vector<uint32_t>& groups);
  void RestoreParent(const IndexRecord& record);
  void RestoreTokens(const TokensRecord& tokens);

  CacheState& state_;
  DiskSlots& disk_;
};

}  // namespace kvtier
