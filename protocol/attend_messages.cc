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
static_assert(kFrameHeaderBytes + kAttendFixedBytes + kMaxAttendSequences * kSequenceBytes +
                  kMaxBlocksPerCall * kHandleBytes <=
              kMaxFrameBytes);

float ReadFloat(PayloadReader* reader) { return std::bit_cast<float>(reader->Read<uint32_t>()); }

void WriteFloat(FrameWriter* writer, float value) { writer->Write(std::bit_cast<uint32_t>(value)); }

void CheckScales(const Attend& attend, PayloadReader* reader) {
  const bool scale = std::isfinite(attend.softmax_scale) && attend.softmax_scale > 0;
  // A negative zero would be a second encoding of "none".
  const bool cap = std::isfinite(attend.soft_cap) && !std::signbit(attend.soft_cap);
  if (!scale || !cap) {
    reader->Fail(ErrorCode::kInvalidArgument, "bad_scale",
                 std::bit_cast<uint32_t>(scale ? attend.soft_cap : attend.softmax_scale));
  }
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
  if (workspace.number >= kMaxWorkspaces) {
    reader.Fail(ErrorCode::kInvalidArgument, "bad_workspace", workspace.number);
  }
  if (workspace.bytes == 0 || workspace.bytes > kMaxWorkspaceBytes) {
    reader.Fail(ErrorCode::kInvalidArgument, "bad_workspace", workspace.bytes);
  }
  KVT_RETURN_IF_ERROR(reader.Finish());
  return workspace;
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
  writer.Reserve(kAttendFixedBytes + sequences.size() * kSequenceBytes +
                 blocks.size() * kHandleBytes);
  writer.Write(pool.value);
  writer.Write(workspace);
  writer.Write(layer);
  writer.Write(q_heads);
  writer.Write(static_cast<uint8_t>(query_dtype));
  WriteFloat(&writer, softmax_scale);
  WriteFloat(&writer, soft_cap);
  writer.Write(window_tokens);
  writer.Write(query_offset);
  writer.Write(output_offset);
  writer.Write(lse_offset);
  writer.WriteCount(sequences.size(), kMaxAttendSequences);
  writer.WriteRows(sequences.size(), [this](size_t i) {
    return std::tuple(sequences[i].query_tokens, sequences[i].kv_tokens);
  });
  writer.WriteCount(blocks.size(), kMaxBlocksPerCall);
  writer.WriteHandles(blocks);
}

Result<Attend> Attend::Decode(std::span<const std::byte> payload) {
  PayloadReader reader(kType, payload);
  Attend attend;
  attend.pool = PoolId{reader.Read<uint32_t>()};
  attend.workspace = reader.Read<uint32_t>();
  attend.layer = reader.Read<uint32_t>();
  attend.q_heads = reader.Read<uint32_t>();
  attend.query_dtype = reader.ReadEnum(KvDtype::kFloat32, KvDtype::kBfloat16);
  attend.softmax_scale = ReadFloat(&reader);
  attend.soft_cap = ReadFloat(&reader);
  if (!reader.failed()) CheckScales(attend, &reader);
  attend.window_tokens = reader.Read<uint32_t>();
  attend.query_offset = reader.Read<uint64_t>();
  attend.output_offset = reader.Read<uint64_t>();
  attend.lse_offset = reader.Read<uint64_t>();
  attend.sequences.resize(
      reader.ReadCount(kMaxAttendSequences, kSequenceBytes, "too_many_sequences"));
  for (AttendSequence& sequence : attend.sequences) {
    sequence.query_tokens = reader.Read<uint32_t>();
    sequence.kv_tokens = reader.Read<uint32_t>();
  }
  attend.blocks.resize(reader.ReadCount(kMaxBlocksPerCall, kHandleBytes, "too_many_blocks"));
  for (BlockHandle& handle : attend.blocks) handle = reader.ReadHandle();
  KVT_RETURN_IF_ERROR(reader.Finish());
  return attend;
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
