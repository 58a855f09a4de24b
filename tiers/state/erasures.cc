// SPDX-License-Identifier: Apache-2.0
#include "tiers/state/erasures.h"

#include <algorithm>

namespace kvtier {

bool Erasures::Covers(const Scope& scope, const std::string& tenant, uint32_t created_s) const {
  constexpr uint32_t kSecondsPerHour = 3600;
  return created_s <= scope.begun_s &&
         clock_.ToWallS(created_s) / kSecondsPerHour < scope.request.end_hour &&
         tenant == scope.request.tenant;
}

bool Erasures::AnyCovers(const std::string& tenant, uint32_t created_s) const {
  return std::ranges::any_of(scopes,
                             [&](const Scope& scope) { return Covers(scope, tenant, created_s); });
}

}  // namespace kvtier
