// SPDX-License-Identifier: Apache-2.0
// Decides the order in which a tier forgets. One instance per tier (and pool); LRU is the default.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/ids.h"
#include "tiers/types/entry_index.h"

namespace kvtier {

// What a policy may base its choice on.
struct BlockFacts {
  uint32_t uses = 0;
  uint32_t first_use_s = 0;  // Unix time
  uint32_t last_use_s = 0;
  uint32_t depth = 0;  // blocks before this one in its sequence
  RetentionClass retention = RetentionClass::kExtended;
};

// Holds the evictable blocks of one tier. Among blocks inserted by one release the deeper comes
// first (the caller inserts them in that order). Event loop only.
class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;
  // REQUIRES: not held.
  virtual void Insert(EntryIndex entry, const BlockFacts& facts) = 0;
  // The block was used while held. Inserts it if it is not held.
  virtual void Touch(EntryIndex entry, const BlockFacts& facts) = 0;
  // Does nothing if not held.
  virtual void Remove(EntryIndex entry) = 0;
  [[nodiscard]] virtual bool Contains(EntryIndex entry) const = 0;
  // The block to forget first, or kNoEntry.
  [[nodiscard]] virtual EntryIndex Victim() const = 0;
  // The victim if `entry` (which is held) were not there to be taken, or kNoEntry.
  [[nodiscard]] virtual EntryIndex VictimAfter(EntryIndex entry) const = 0;
  [[nodiscard]] virtual size_t size() const = 0;
  [[nodiscard]] virtual size_t memory_bytes() const = 0;
};

[[nodiscard]] std::unique_ptr<EvictionPolicy> MakeLruPolicy();

}  // namespace kvtier
