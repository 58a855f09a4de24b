// SPDX-License-Identifier: Apache-2.0
// The first steps of most tests of the server.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/unit/daemon/wire_client.h"

namespace kvtier {

// TestHash of first, first + 1, ...
[[nodiscard]] std::vector<BlockHash> Hashes(uint64_t first, uint32_t count);

[[nodiscard]] wire::AcquireReply::Part Acquire(WireClient* client, PoolId pool,
                                               const std::vector<BlockHash>& hashes,
                                               uint32_t new_blocks);

// A commit of `blocks` as the prefix `hashes`.
[[nodiscard]] wire::Commit CommitOf(PoolId pool, const std::vector<BlockHandle>& blocks,
                                    const std::vector<BlockHash>& hashes);

// Allocates, commits and keeps blocks for `hashes`.
std::vector<BlockHandle> Fill(WireClient* client, PoolId pool,
                              const std::vector<BlockHash>& hashes);

}  // namespace kvtier
