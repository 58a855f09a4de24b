// SPDX-License-Identifier: Apache-2.0
#include "protocol/attend_messages.h"

#include <bit>
#include <cmath>
#include <tuple>

#include "protocol/frame.h"
#include "protocol/frame_writer.h"
#include "protocol/payload_reader.h"

namespace kvtier::wire {
namespace {

constexpr size_t kHandleBytes = 8;
constexpr size_t kSequenceBytes = 8;
// Everything but the two lists.
constexpr size_t kAttendFixedBytes = 64;
constexpr size_t kMaxScalesBytes = sizeof(uint32_t) + kMaxAttendScales * sizeof(float);
static_assert(kFrameHeaderBytes + kAttendFixedBytes + kMaxAttendSequences * kSequenceBytes +
                  kMaxBlocksPerCall * kHandleBytes + 2 * kMaxScalesBytes <=
              kMaxFrameBytes);

float ReadFloat(PayloadReader* reader) { return std::bit_cast<float>(reader->Read<uint32_t>()); }

void WriteFloat(FrameWriter* writer, float value) { writer->Write(std::bit_cast<uint32_t>(value)); }

bool IsScale(float value) { return std::isfinite(value) && value > 0; }

void CheckScales(const Attend& attend, PayloadReader* reader) {
  const bool scale = IsScale(attend.softmax_scale);
  // A negative zero would be a second encoding of "none".
  const bool cap = std::isfinite(attend.soft_cap) && !std::signbit(attend.soft_cap);
  if (!scale || !cap) {
    reader->Fail(ErrorCode::kInvalidArgument, "bad_scale",
                 std::bit_cast<uint32_t>(scale ? attend.soft_cap : attend.softmax_scale));
  }
}

void WriteAttend(const Attend& attend, FrameWriter* writer) {
  writer->Reserve(kAttendFixedBytes + attend.sequences.size() * kSequenceBytes +
                  attend.blocks.size() * kHandleBytes);
  writer->Write(attend.pool.value);
  writer->Write(attend.workspace);
  writer->Write(attend.layer);
  writer->Write(attend.q_heads);
  writer->Write(static_cast<uint8_t>(attend.query_dtype));
  WriteFloat(writer, attend.softmax_scale);
  WriteFloat(writer, attend.soft_cap);
  writer->Write(attend.window_tokens);
  writer->Write(attend.query_offset);
  writer->Write(attend.output_offset);
  writer->Write(attend.lse_offset);
  writer->WriteCount(attend.sequences.size(), kMaxAttendSequences);
  writer->WriteRows(attend.sequences.size(), [&attend](size_t i) {
    return std::tuple(attend.sequences[i].query_tokens, attend.sequences[i].kv_tokens);
  });
  writer->WriteCount(attend.blocks.size(), kMaxBlocksPerCall);
  writer->WriteHandles(attend.blocks);
}

Attend ReadAttend(PayloadReader* reader) {
  Attend attend;
  attend.pool = PoolId{reader->Read<uint32_t>()};
  attend.workspace = reader->Read<uint32_t>();
  attend.layer = reader->Read<uint32_t>();
  attend.q_heads = reader->Read<uint32_t>();
  attend.query_dtype = reader->ReadEnum(KvDtype::kFloat32, KvDtype::kBfloat16);
  attend.softmax_scale = ReadFloat(reader);
  attend.soft_cap = ReadFloat(reader);
  if (!reader->failed()) CheckScales(attend, reader);
  attend.window_tokens = reader->Read<uint32_t>();
  attend.query_offset = reader->Read<uint64_t>();
  attend.output_offset = reader->Read<uint64_t>();
  attend.lse_offset = reader->Read<uint64_t>();
  attend.sequences.resize(
      reader->ReadCount(kMaxAttendSequences, kSequenceBytes, "too_many_sequences"));
  for (AttendSequence& sequence : attend.sequences) {
    sequence.query_tokens = reader->Read<uint32_t>();
    sequence.kv_tokens = reader->Read<uint32_t>();
  }
  attend.blocks.resize(reader->ReadCount(kMaxBlocksPerCall, kHandleBytes, "too_many_blocks"));
  for (BlockHandle& handle : attend.blocks) handle = reader->ReadHandle();
  return attend;
}

void WriteScales(const std::vector<float>& scales, FrameWriter* writer) {
  writer->WriteCount(scales.size(), kMaxAttendScales);
  for (const float scale : scales) WriteFloat(writer, scale);
}

std::vector<float> ReadScales(PayloadReader* reader) {
  std::vector<float> scales(reader->ReadCount(kMaxAttendScales, sizeof(float), "too_many_scales"));
  for (float& scale : scales) {
    scale = ReadFloat(reader);
    if (reader->failed() || IsScale(scale)) continue;
    reader->Fail(ErrorCode::kInvalidArgument, "bad_scale", std::bit_cast<uint32_t>(scale));
  }
  return scales;
}

void CheckNumber(uint32_t workspace, PayloadReader* reader) {
  if (workspace < kMaxWorkspaces) return;
  reader->Fail(ErrorCode::kInvalidArgument, "bad_workspace", workspace);
}

}  // namespace

void Workspace::Encode(uint64_t request_id, std::vector<std::byte>* out) const {
  FrameWriter writer(kType, 0, request_id, out);
  writer.Write(pool.value);
  writer.Write(number);
  writer.Write(bytes);
}

Result<Workspace> Workspace::Decode(std::span<const std::byte> payload) {
  PayloadReader reader(kType, payload);
  Workspace workspace;
  workspace.pool = PoolId{reader.Read<uint32_t>()};
  workspace.number = reader.Read<uint32_t>();
  workspace.bytes = reader.Read<uint64_t>();
  KVT_RETURN_IF_ERROR(reader.Finish());
  CheckNumber(workspace.number, &reader);
  if (workspace.bytes == 0 || workspace.bytes > kMaxWorkspaceBytes) {
    reader.Fail(ErrorCode::kInvalidArgument, "bad_workspace", workspace.bytes);
  }
  KVT_RETURN_IF_ERROR(reader.Finish());
  return workspace;
}

void WorkspaceClose::Encode(uint64_t request_id, std::vector<std::byte>* out) const {
  FrameWriter writer(kType, 0, request_id, out);
  writer.Write(number);
}

Result<WorkspaceClose> WorkspaceClose::Decode(std::span<const std::byte> payload) {
  PayloadReader reader(kType, payload);
  WorkspaceClose close;
  close.number = reader.Read<uint32_t>();
  KVT_RETURN_IF_ERROR(reader.Finish());
  CheckNumber(close.number, &reader);
  KVT_RETURN_IF_ERROR(reader.Finish());
  return close;
}

void WorkspaceReply::Encode(uint64_t request_id, std::vector<std::byte>* out) const {
  FrameWriter writer(kType, 0, request_id, out);
  writer.Write(bytes);
  writer.Write(static_cast<uint8_t>(device_kind));
}

Result<WorkspaceReply> WorkspaceReply::Decode(std::span<const std::byte> payload) {
  PayloadReader reader(kType, payload);
  WorkspaceReply reply;
  reply.bytes = reader.Read<uint64_t>();
  reply.device_kind = reader.ReadEnum(DeviceKind::kHost, DeviceKind::kCuda);
  KVT_RETURN_IF_ERROR(reader.Finish());
  return reply;
}

void Attend::Encode(uint64_t request_id, std::vector<std::byte>* out) const {
  FrameWriter writer(kType, 0, request_id, out);
  WriteAttend(*this, &writer);
}

Result<Attend> Attend::Decode(std::span<const std::byte> payload) {
  PayloadReader reader(kType, payload);
  Attend attend = ReadAttend(&reader);
  KVT_RETURN_IF_ERROR(reader.Finish());
  return attend;
}

void AttendScaled::Encode(uint64_t request_id, std::vector<std::byte>* out) const {
  FrameWriter writer(kType, 0, request_id, out);
  WriteAttend(attend, &writer);
  WriteScales(key_scales, &writer);
  WriteScales(value_scales, &writer);
}

Result<AttendScaled> AttendScaled::Decode(std::span<const std::byte> payload) {
  PayloadReader reader(kType, payload);
  AttendScaled scaled;
  scaled.attend = ReadAttend(&reader);
  scaled.key_scales = ReadScales(&reader);
  scaled.value_scales = ReadScales(&reader);
  KVT_RETURN_IF_ERROR(reader.Finish());
  return scaled;
}

void AttendReply::Encode(uint64_t request_id, std::vector<std::byte>* out) const {
  FrameWriter(kType, 0, request_id, out).Write(compute_ns);
}

Result<AttendReply> AttendReply::Decode(std::span<const std::byte> payload) {
  PayloadReader reader(kType, payload);
  AttendReply reply;
  reply.compute_ns = reader.Read<uint64_t>();
  KVT_RETURN_IF_ERROR(reader.Finish());
  return reply;
}

}  // namespace kvtier::wire
