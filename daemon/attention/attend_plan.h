// SPDX-License-Identifier: Apache-2.0
// From an ATTEND to a job: every number that the client gave is checked here. Pure.
//
// A kernel believes its parameters. A wrong offset or block number would read another tenant's KV
// cache or break the GPU's context for all clients, so that this file is the boundary between what
// a client may say and what a kernel is given.
#pragma once

#include <cstdint>
#include <memory>

#include "base/result.h"
#include "daemon/attention/attention_engine.h"
#include "protocol/attend_messages.h"
#include "protocol/model_record.h"

namespace kvtier {

// Where things are, in the address space of the device that computes; nothing is read there.
struct AttendMemory {
  std::byte* pool = nullptr;
  std::byte* workspace = nullptr;
  uint64_t workspace_bytes = 0;
};

// Entries of one job's block table, which has a row of the longest sequence's length for each
// sequence: one long sequence among many short ones could otherwise ask for gigabytes.
inline constexpr uint64_t kMaxAttendTableEntries = uint64_t{4} << 20;

// REQUIRES: the handles in `request` are blocks of the pool that the session may read; `record`
// passed Validate(). Errors: kInvalidArgument "bad_layer", "bad_heads", "bad_sequence",
// "bad_block_count", "bad_range", "bad_scale_count" (neither none, one, nor one for each KV head;
// or some for a cache that is not fp8); kUnsupported "attend_geometry"; kLimitExceeded
// "attend_work" (too many queries, or too long a table).
[[nodiscard]] Result<std::shared_ptr<AttentionJob>> PlanAttend(const wire::Attend& request,
                                                               const KvGroup& group,
                                                               const AttendMemory& memory);

}  // namespace kvtier
