// SPDX-License-Identifier: Apache-2.0
#include "tiers/state/erasures.h"

namespace kvtier {

bool Erasures::Covers(const Scope& scope, const BlockEntry& entry) const {
  constexpr uint32_t kSecondsPerHour = 3600;
  return entry.created_s <= scope.begun_s &&
         clock_.ToWallS(entry.created_s) / kSecondsPerHour < scope.request.end_hour &&
         blocks_.namespaces[entry.namespace_id.value].identity.tenant == scope.request.tenant;
}

}  // namespace kvtier
