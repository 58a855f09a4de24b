// SPDX-License-Identifier: Apache-2.0
#include "daemon/session/session_client.h"

#include <fmt/format.h>

namespace kvtier {

Result<const AttachedPool*> AttachedPools::Find(PoolId id) const {
  const auto found = pools_.find(id);
  if (found != pools_.end()) return &found->second;
  return MakeError(ErrorCode::kNotFound, "pool_not_attached",
                   fmt::format("this session has not attached pool {}", id.value));
}

Result<const AttachedPool*> AttachedPools::FindPool(PoolId id) const {
  KVT_ASSIGN_OR_RETURN(const AttachedPool* const found, Find(id));
  if (!found->is_region()) return found;
  return MakeError(ErrorCode::kInvalidArgument, "pool_is_region",
                   fmt::format("{} is a region, whose blocks its engine manages", id.value));
}

Result<const AttachedPool*> AttachedPools::FindRegion(PoolId id) const {
  KVT_ASSIGN_OR_RETURN(const AttachedPool* const found, Find(id));
  if (found->is_region()) return found;
  return MakeError(ErrorCode::kInvalidArgument, "not_a_region",
                   fmt::format("{} is a pool", id.value));
}

uint64_t AttachedPools::held() const {
  uint64_t held = 0;
  for (const auto& [id, pool] : pools_) held += pool.held;
  return held;
}

}  // namespace kvtier
