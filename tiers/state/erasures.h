// SPDX-License-Identifier: Apache-2.0
// Which blocks are being erased.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tiers/policy/age_clock.h"
#include "tiers/types/block_key.h"
#include "tiers/types/cache_requests.h"

namespace kvtier {

// Blocks that Erasure has to erase: none of them is written to disk any more. Event loop only.
class Erasures {
 public:
  struct Scope {
    EraseRequest request;
    uint32_t begun_s = 0;  // of the age clock; blocks that are made later stay
  };
  // `clock` is borrowed and outlives this.
  explicit Erasures(const AgeClock* clock) : clock_(*clock) {}

  // Erasures under way, in the order in which they began.
  std::vector<Scope> scopes;
  struct Object {
    int64_t give_up_ms = 0;  // on the monotonic clock
    size_t most = 64;        // so many go in one call with it
    bool by_hand = false;    // an operator was told, or will be, that it is gone
    std::vector<std::shared_ptr<ObjectEviction>> evictions = {};
  };
  // Blocks evicted by hand, or whose objects were no good, while the cold store is yet to delete
  // these: meanwhile this host neither writes them there nor takes them from there.
  std::map<BlockKey, Object> objects;
  // Until then the store may yet carry out an earlier daemon's puts.
  int64_t puts_may_come_until_ms = 0;  // on the monotonic clock

  // Whether a block of the tenant that was created then, on the age clock, is to be erased.
  [[nodiscard]] bool Covers(const Scope& scope, const std::string& tenant,
                            uint32_t created_s) const {
    constexpr uint32_t kSecondsPerHour = 3600;
    return created_s <= scope.begun_s &&
           clock_.ToWallS(created_s) / kSecondsPerHour < scope.request.end_hour &&
           tenant == scope.request.tenant;
  }
  [[nodiscard]] bool AnyCovers(const std::string& tenant, uint32_t created_s) const {
    return std::ranges::any_of(
        scopes, [&](const Scope& scope) { return Covers(scope, tenant, created_s); });
  }

 private:
  const AgeClock& clock_;
};

}  // namespace kvtier
