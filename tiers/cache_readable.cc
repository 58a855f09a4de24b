// SPDX-License-Identifier: Apache-2.0
// Which blocks a session may have read on its behalf.
#include <fmt/format.h>

#include "tiers/cache_impl.h"

namespace kvtier {
namespace {

Status CheckReadable(const SessionTable& sessions, SessionId session, const CachePool& pool,
                     BlockHandle handle) {
  if (!pool.blocks.Current(handle)) {
    return MakeError(ErrorCode::kStaleHandle, "stale_generation",
                     fmt::format("block {} generation {}", handle.index.value, handle.generation));
  }
  const PoolBlock& block = pool.blocks[handle.index];
  if (block.state() == PoolBlockState::kPrivate && block.owner == session) return {};
  const bool shared =
      block.state() == PoolBlockState::kCommitted || block.state() == PoolBlockState::kOrphaned;
  if (!shared || !sessions.Holds(session, pool, handle.index)) {
    return MakeError(ErrorCode::kNotOwner, "not_held",
                     fmt::format("the session does not hold block {}", handle.index.value));
  }
  if (block.state() == PoolBlockState::kOrphaned || block.loading()) {
    return MakeError(ErrorCode::kWrongState, "block_not_loaded",
                     fmt::format("block {} has not received its bytes", handle.index.value));
  }
  return {};
}

}  // namespace

Result<const DevicePool*> Cache::ReadableMemory(SessionId session, PoolId pool_id,
                                                std::span<const BlockHandle> blocks) const {
  const CachePool* const pool = impl_->state.FindPool(pool_id);
  if (pool == nullptr) return MakeError(ErrorCode::kNotFound, "unknown_pool");
  if (!impl_->sessions.IsOpen(session)) return MakeError(ErrorCode::kCancelled, "session_closed");
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (Status readable = CheckReadable(impl_->sessions, session, *pool, blocks[i]); !readable) {
      Error error = std::move(readable).error();
      error.context += fmt::format(", item {}", i);
      return tl::unexpected(std::move(error));
    }
  }
  return pool->memory.get();
}

}  // namespace kvtier
