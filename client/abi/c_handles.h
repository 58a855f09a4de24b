// SPDX-License-Identifier: Apache-2.0
// What the C ABI's opaque handles are, and its values in the library's types.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "base/digest.h"
#include "base/ids.h"
#include "client/core/connection.h"
#include "client/core/pool.h"
#include "client/core/sequence.h"
#include "kvtier/kvtier.h"

struct kvt_connection {
  std::unique_ptr<kvtier::client::Connection> connection;
};

struct kvt_pool {
  std::unique_ptr<kvtier::client::Pool> pool;
};

struct kvt_sequence {
  // For its time-outs; outlives it.
  const kvtier::client::Connection* connection = nullptr;
  std::unique_ptr<kvtier::client::Sequence> sequence;
};

namespace kvtier::client {

static_assert(sizeof(kvt_hash) == sizeof(BlockHash) && alignof(kvt_hash) == alignof(BlockHash));

// The same bytes: both are 32 plain bytes.
[[nodiscard]] inline std::span<const BlockHash> ToHashes(const kvt_hash* hashes, size_t count) {
  return {reinterpret_cast<const BlockHash*>(hashes), count};
}

[[nodiscard]] inline BlockHandle ToHandle(const kvt_block& block) {
  return {BlockIndex{block.index}, block.generation};
}

[[nodiscard]] inline kvt_block ToBlock(const BlockHandle& handle, uint64_t attachment) {
  return {handle.index.value, handle.generation, attachment};
}

// KVT_DEFAULT_TIMEOUT, or any negative number, is the connection's.
[[nodiscard]] inline Deadline ToDeadline(int64_t timeout_ms, const Connection& connection) {
  return timeout_ms < 0 ? connection.RequestDeadline() : DeadlineIn(timeout_ms);
}

}  // namespace kvtier::client
