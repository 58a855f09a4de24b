// SPDX-License-Identifier: Apache-2.0
// Acquires of all groups of a model in one round trip. A model with one group is asked by the same
// function.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/digest.h"
#include "base/hit_plan.h"
#include "base/result.h"
#include "client/core/unix_socket.h"
#include "protocol/block_messages.h"

namespace kvtier::client {

class Attachment;

using AcquiredPart = wire::AcquireReply::Part;

// The request for one group, in the attachment to its pool.
struct GroupRequest {
  const Attachment* attachment = nullptr;
  std::span<const BlockHash> hashes;  // the sequence's blocks, from block 0 on
  std::span<const BlockHash> partial_blocks;
  uint32_t new_blocks = 0;
  bool holds_load = false;  // the caller makes a LoadHold of the load that the acquire begins
};

// Thread-safe, as the attachments. One round trip; the reply is checked against the request. The
// answer has a part for each group asked; with a wish, which one group alone can have, it has the
// forecast. See Cache::Acquire and
// daemon/session/group_acquire.h. Errors: the daemon's;
// kInvalidArgument "no_group"; kStaleHandle "other_session" (an attachment was made over another
// connection, or before it was lost); kLimitExceeded "too_many_hashes", "frame_too_long", those of
// the channel; kUnavailable; kTimeout (a later grant is released).
[[nodiscard]] Result<std::vector<AcquiredPart>> AcquireGroups(std::span<const GroupRequest> groups,
                                                              wire::LoadOrder order,
                                                              Deadline deadline,
                                                              const LoadWish& wish = {});

}  // namespace kvtier::client
