// SPDX-License-Identifier: Apache-2.0
// Which blocks are being erased.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "tiers/blocks/blocks.h"
#include "tiers/policy/age_clock.h"
#include "tiers/types/cache_requests.h"

namespace kvtier {

// What has to be erased (Erasure): nothing of it is written to disk any more. Event loop only.
class Erasures {
 public:
  struct Scope {
    EraseRequest request;
    uint32_t begun_s = 0;  // of the age clock; blocks that are made later stay
  };
  Erasures(const Blocks* blocks, const AgeClock* clock) : blocks_(*blocks), clock_(*clock) {}

  // Those under way, in the order in which they began.
  std::vector<Scope> scopes;

  [[nodiscard]] bool Covers(const Scope& scope, const BlockEntry& entry) const;
  [[nodiscard]] bool AnyCovers(const BlockEntry& entry) const {
    return std::ranges::any_of(scopes, [&](const Scope& scope) { return Covers(scope, entry); });
  }

 private:
  const Blocks& blocks_;
  const AgeClock& clock_;
};

}  // namespace kvtier
