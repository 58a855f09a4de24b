// SPDX-License-Identifier: Apache-2.0
#include "protocol/attend_messages.h"

#include <cmath>

#include "protocol/message_codec.h"

namespace kvtier::wire {
namespace {

// The largest ATTEND fits a frame: its numbers, and its four lists.
constexpr size_t kMaxAttendBytes = 64 + kMaxAttendSequences * 8 + kMaxBlocksPerCall * 8 +
                                   2 * (sizeof(uint32_t) + kMaxAttendScales * sizeof(float));
static_assert(kFrameHeaderBytes + kMaxAttendBytes <= kMaxFrameBytes);

bool IsScale(float value) { return std::isfinite(value) && value > 0; }

// A negative zero would be a second encoding of "none".
bool IsCap(float value) { return std::isfinite(value) && !std::signbit(value); }

void CheckNumber(auto& io, uint32_t workspace) {
  io.Check(workspace < kMaxWorkspaces, "bad_workspace", workspace);
}

void Scale(auto& io, auto& value) {
  io.Number(value);
  io.Check(IsScale(value), "bad_scale", value);
}
constexpr auto kScaleFields = [](auto& io, auto& value) { Scale(io, value); };

}  // namespace

void Fields(auto& io, Like<Workspace> auto& m) {
  io.Number(m.pool);
  io.Number(m.number);
  io.Number(m.bytes);
  CheckNumber(io, m.number);
  io.Check(m.bytes > 0 && m.bytes <= kMaxWorkspaceBytes, "bad_workspace", m.bytes);
}
KVT_DEFINE_MESSAGE(Workspace);

void Fields(auto& io, Like<WorkspaceReply> auto& m) {
  io.Number(m.bytes);
  io.OneOf(m.device_kind, DeviceKind::kHost, DeviceKind::kCuda);
}
KVT_DEFINE_MESSAGE(WorkspaceReply);

void Fields(auto& io, Like<WorkspaceClose> auto& m) {
  io.Number(m.number);
  CheckNumber(io, m.number);
}
KVT_DEFINE_MESSAGE(WorkspaceClose);

void Fields(auto& io, Like<Attend> auto& m) {
  io.Number(m.pool);
  io.Number(m.workspace);
  io.Number(m.layer);
  io.Number(m.q_heads);
  io.OneOf(m.query_dtype, KvDtype::kFloat32, KvDtype::kBfloat16);
  Scale(io, m.softmax_scale);
  io.Number(m.soft_cap);
  io.Check(IsCap(m.soft_cap), "bad_scale", m.soft_cap);
  io.Number(m.window_tokens);
  io.Number(m.query_offset);
  io.Number(m.output_offset);
  io.Number(m.lse_offset);
  io.List(m.sequences, kMaxAttendSequences, "too_many_sequences", [](auto& item_io, auto& item) {
    item_io.Number(item.query_tokens);
    item_io.Number(item.kv_tokens);
  });
  io.List(m.blocks, kMaxBlocksPerCall, "too_many_blocks",
          [](auto& item_io, auto& handle) { item_io.Handle(handle); });
  io.List(m.key_scales, kMaxAttendScales, "too_many_scales", kScaleFields);
  io.List(m.value_scales, kMaxAttendScales, "too_many_scales", kScaleFields);
}
KVT_DEFINE_MESSAGE(Attend);

void Fields(auto& io, Like<AttendReply> auto& m) { io.Number(m.compute_ns); }
KVT_DEFINE_MESSAGE(AttendReply);

}  // namespace kvtier::wire
