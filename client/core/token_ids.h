// SPDX-License-Identifier: Apache-2.0
// Tells the daemon which tokens blocks hold, for the events that routers get, if it wants to know.
#pragma once

#include <cstdint>
#include <span>

#include "base/digest.h"
#include "base/ids.h"
#include "base/result.h"
#include "client/core/daemon_session.h"
#include "client/core/unix_socket.h"

namespace kvtier::client {

// Asks for a pool or a region whether the daemon wants token ids. One round trip. A daemon that
// does not know the question wants none.
// Errors: the daemon's; kUnavailable; kTimeout.
[[nodiscard]] Result<bool> AskForTokenIds(DaemonSession* session, PoolId pool, Deadline deadline);

// Only sends. `counts`: how many of `ids` are each block's, one block after the other; empty: each
// has `block_tokens`. Errors: kInvalidArgument "bad_token_count" (none of a block, more than
// `block_tokens`, or not as many as ids); kUnavailable.
[[nodiscard]] Status TellTokenIds(DaemonSession* session, PoolId pool, uint32_t block_tokens,
                                  std::span<const BlockHash> hashes,
                                  std::span<const uint16_t> counts, std::span<const uint32_t> ids);

}  // namespace kvtier::client
