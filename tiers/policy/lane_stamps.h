// SPDX-License-Identifier: Apache-2.0
// When each entry was last young, as far as orders side by side have to be compared with each
// other.
#pragma once

#include <cstdint>

#include "tiers/policy/paged_array.h"
#include "tiers/types/entry_index.h"

namespace kvtier {

// With one order alone nothing is kept: there is nothing to compare. Event loop only.
class LaneStamps {
 public:
  explicit LaneStamps(bool several) : several_(several) {}

  void Renew(EntryIndex entry) {
    if (several_) stamps_.At(entry.value) = ++now_;
  }
  // REQUIRES: several orders; renewed before.
  [[nodiscard]] uint64_t Of(EntryIndex entry) const { return stamps_[entry.value]; }
  [[nodiscard]] size_t memory_bytes() const { return stamps_.memory_bytes(); }

 private:
  const bool several_;
  uint64_t now_ = 0;
  PagedArray<uint64_t> stamps_;
};

}  // namespace kvtier
