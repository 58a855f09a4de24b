// SPDX-License-Identifier: Apache-2.0
// Messages by which the daemon computes attention for clients that launch no kernels themselves;
// messages.h has the rules common to all, docs/PROTOCOL.md describes the fields.
#pragma once

#include <cstdint>
#include <vector>

#include "base/ids.h"
#include "protocol/limits.h"
#include "protocol/message_type.h"
#include "protocol/model_record.h"
#include "protocol/session_messages.h"

namespace kvtier::wire {

// Asks for memory that daemon and client share: queries go in, results come out. It takes the place
// of the session's earlier workspace of that number.
struct Workspace {
  static constexpr MessageType kType = MessageType::kWorkspace;
  // The workspace is on this pool's device.
  PoolId pool;
  uint32_t number = 0;  // below kMaxWorkspaces: checked by Decode, kInvalidArgument "bad_workspace"
  uint64_t bytes = 0;   // 1 to kMaxWorkspaceBytes, likewise
};

// The memory's descriptor travels with this frame's first byte, as ATTACH_REPLY's does.
struct WorkspaceReply {
  static constexpr MessageType kType = MessageType::kWorkspaceReply;
  uint64_t bytes = 0;  // the requested size, rounded up
  DeviceKind device_kind = DeviceKind::kHost;
};

// Gives back the memory of the session's workspace of that number, if there is one. Not answered.
struct WorkspaceClose {
  static constexpr MessageType kType = MessageType::kWorkspaceClose;
  uint32_t number = 0;  // as in Workspace
};

struct AttendSequence {
  uint32_t query_tokens = 0;  // the sequence's last so many tokens are queries
  uint32_t kv_tokens = 0;     // cached, those included
  friend bool operator==(const AttendSequence&, const AttendSequence&) = default;
};

inline constexpr uint64_t kNoLse = UINT64_MAX;

// Attention of one layer, causal, over blocks that the session holds.
struct Attend {
  static constexpr MessageType kType = MessageType::kAttend;
  PoolId pool;
  uint32_t workspace = 0;
  uint32_t layer = 0;
  uint32_t q_heads = 0;
  KvDtype query_dtype = KvDtype::kBfloat16;
  // Finite, and above 0 and not below 0: checked by Decode, kInvalidArgument "bad_scale".
  float softmax_scale = 1;
  float soft_cap = 0;  // 0: none
  uint32_t window_tokens = 0;
  // In the workspace: [query tokens, q_heads, head_dim] of query_dtype, one sequence after another.
  uint64_t query_offset = 0;
  uint64_t output_offset = 0;
  uint64_t lse_offset = kNoLse;  // [query tokens, q_heads] of f32
  std::vector<AttendSequence> sequences;
  // The blocks of all sequences, one after another; each has as many as its kv_tokens need.
  std::vector<BlockHandle> blocks;
  // The factors of an fp8 cache's numbers: one for each KV head, or one for all; none stands for 1.
  // Finite and above 0: checked by Decode, kInvalidArgument "bad_scale".
  std::vector<float> key_scales;
  std::vector<float> value_scales;
};

// The results are in the workspace.
struct AttendReply {
  static constexpr MessageType kType = MessageType::kAttendReply;
  uint64_t compute_ns = 0;  // the time to compute, without waiting for its turn
};

}  // namespace kvtier::wire
