// SPDX-License-Identifier: Apache-2.0
#include "protocol/session_messages.h"

#include <fmt/format.h>

#include <algorithm>

#include "protocol/frame_writer.h"
#include "protocol/payload_reader.h"

namespace kvtier::wire {

void Hello::Encode(uint64_t request_id, std::vector<std::byte>* out) const {
  FrameWriter writer(kType, 0, request_id, out);
  writer.Write(kMagic);
  writer.Write(version_min);
  writer.Write(version_max);
  writer.Write(features);
  writer.WriteText(client_name, kMaxClientNameBytes);
}

Result<Hello> Hello::Decode(std::span<const std::byte> payload) {
  PayloadReader reader(kType, payload);
  const auto magic = reader.Read<uint32_t>();
  if (magic != kMagic) reader.Fail(ErrorCode::kInvalidArgument, "bad_magic", magic);
  Hello hello;
  hello.version_min = reader.Read<uint16_t>();
  hello.version_max = reader.Read<uint16_t>();
  if (hello.version_min > hello.version_max) {
    reader.Fail(ErrorCode::kInvalidArgument, "bad_version_range", hello.version_min);
  }
  hello.features = reader.Read<uint64_t>();
  hello.client_name = reader.ReadText(kMaxClientNameBytes);
  KVT_RETURN_IF_ERROR(reader.Finish());
  return hello;
}

Result<uint16_t> NegotiateVersion(const Hello& hello) {
  const uint16_t version = std::min(hello.version_max, kProtocolVersionMax);
  if (version >= hello.version_min && version >= kProtocolVersionMin) return version;
  return MakeError(ErrorCode::kUnsupported, "version_mismatch",
                   fmt::format("the client speaks {} to {}, this side {} to {}", hello.version_min,
                               hello.version_max, kProtocolVersionMin, kProtocolVersionMax));
}

void HelloReply::Encode(uint64_t request_id, std::vector<std::byte>* out) const {
  FrameWriter writer(kType, 0, request_id, out);
  writer.Write(version);
  writer.Write(features);
  writer.Write(session.value);
  writer.Write(daemon_generation);
  writer.Write(max_frame_bytes);
  writer.Write(max_hashes);
  writer.Write(max_blocks);
  writer.Write(max_references);
  writer.WriteText(tenant, kMaxTenantBytes);
}

Result<HelloReply> HelloReply::Decode(std::span<const std::byte> payload) {
  PayloadReader reader(kType, payload);
  HelloReply reply;
  reply.version = reader.Read<uint16_t>();
  reply.features = reader.Read<uint64_t>();
  reply.session = SessionId{reader.Read<uint64_t>()};
  reply.daemon_generation = reader.Read<uint64_t>();
  reply.max_frame_bytes = reader.Read<uint32_t>();
  reply.max_hashes = reader.Read<uint32_t>();
  reply.max_blocks = reader.Read<uint32_t>();
  reply.max_references = reader.Read<uint32_t>();
  reply.tenant = reader.ReadText(kMaxTenantBytes);
  KVT_RETURN_IF_ERROR(reader.Finish());
  return reply;
}

void RegisterModel::Encode(uint64_t request_id, std::vector<std::byte>* out) const {
  const std::vector<std::byte> encoded = record.Encode();
  FrameWriter writer(kType, 0, request_id, out);
  writer.WriteCount(encoded.size(), kMaxModelRecordBytes);
  writer.WriteBytes(encoded);
}

Result<RegisterModel> RegisterModel::Decode(std::span<const std::byte> payload) {
  PayloadReader reader(kType, payload);
  const uint32_t length = reader.ReadCount(kMaxModelRecordBytes, 1, "model_record_too_long");
  const std::span<const std::byte> encoded = reader.ReadBytes(length);
  KVT_RETURN_IF_ERROR(reader.Finish());
  KVT_ASSIGN_OR_RETURN(ModelRecord record, ModelRecord::Decode(encoded));
  return RegisterModel{std::move(record)};
}

void RegisterModelReply::Encode(uint64_t request_id, std::vector<std::byte>* out) const {
  FrameWriter writer(kType, 0, request_id, out);
  writer.Write(model.value);
  writer.WriteDigest(fingerprint);
  writer.Write(block_bytes);
}

Result<RegisterModelReply> RegisterModelReply::Decode(std::span<const std::byte> payload) {
  PayloadReader reader(kType, payload);
  RegisterModelReply reply;
  reply.model = ModelId{reader.Read<uint32_t>()};
  reply.fingerprint = reader.ReadDigest<32>();
  reply.block_bytes = reader.Read<uint64_t>();
  KVT_RETURN_IF_ERROR(reader.Finish());
  return reply;
}

void Devices::Encode(uint64_t request_id, std::vector<std::byte>* out) const {
  FrameWriter writer(kType, 0, request_id, out);
}

Result<Devices> Devices::Decode(std::span<const std::byte> payload) {
  KVT_RETURN_IF_ERROR(PayloadReader(kType, payload).Finish());
  return Devices{};
}

void DevicesReply::Encode(uint64_t request_id, std::vector<std::byte>* out) const {
  FrameWriter writer(kType, 0, request_id, out);
  writer.WriteCount(devices.size(), kMaxDevices);
  for (const Device& device : devices) {
    writer.Write(static_cast<uint8_t>(device.kind));
    writer.WriteBytes(std::as_bytes(std::span(device.uuid)));
    writer.Write(device.pool_bytes);
    writer.WriteText(device.name, kMaxDeviceNameBytes);
  }
}

Result<DevicesReply> DevicesReply::Decode(std::span<const std::byte> payload) {
  PayloadReader reader(kType, payload);
  constexpr size_t kLeastDeviceBytes = 1 + 16 + 8 + 2;
  const uint32_t count = reader.ReadCount(kMaxDevices, kLeastDeviceBytes, "too_many_devices");
  if (count == 0) reader.Fail(ErrorCode::kInvalidArgument, "no_devices", count);
  DevicesReply reply;
  reply.devices.resize(count);
  for (Device& device : reply.devices) {
    device.kind = reader.ReadEnum(DeviceKind::kHost, DeviceKind::kCuda);
    std::ranges::transform(reader.ReadBytes(device.uuid.size()), device.uuid.begin(),
                           [](std::byte byte) { return static_cast<uint8_t>(byte); });
    device.pool_bytes = reader.Read<uint64_t>();
    device.name = reader.ReadText(kMaxDeviceNameBytes);
  }
  KVT_RETURN_IF_ERROR(reader.Finish());
  return reply;
}

void Attach::Encode(uint64_t request_id, std::vector<std::byte>* out) const {
  FrameWriter writer(kType, 0, request_id, out);
  writer.Write(model.value);
  writer.Write(device);
  writer.Write(pool_bytes);
}

Result<Attach> Attach::Decode(std::span<const std::byte> payload) {
  PayloadReader reader(kType, payload);
  Attach attach;
  attach.model = ModelId{reader.Read<uint32_t>()};
  attach.device = reader.Read<uint32_t>();
  attach.pool_bytes = reader.Read<uint64_t>();
  KVT_RETURN_IF_ERROR(reader.Finish());
  return attach;
}

void AttachReply::Encode(uint64_t request_id, std::vector<std::byte>* out) const {
  FrameWriter writer(kType, 0, request_id, out);
  writer.Write(pool.value);
  writer.Write(generation);
  writer.Write(pool_bytes);
  writer.Write(block_bytes);
  writer.Write(blocks);
  writer.Write(static_cast<uint8_t>(device_kind));
}

Result<AttachReply> AttachReply::Decode(std::span<const std::byte> payload) {
  PayloadReader reader(kType, payload);
  AttachReply reply;
  reply.pool = PoolId{reader.Read<uint32_t>()};
  reply.generation = reader.Read<uint64_t>();
  reply.pool_bytes = reader.Read<uint64_t>();
  reply.block_bytes = reader.Read<uint64_t>();
  reply.blocks = reader.Read<uint32_t>();
  reply.device_kind = reader.ReadEnum(DeviceKind::kHost, DeviceKind::kCuda);
  KVT_RETURN_IF_ERROR(reader.Finish());
  return reply;
}

void Stats::Encode(uint64_t request_id, std::vector<std::byte>* out) const {
  FrameWriter writer(kType, 0, request_id, out);
}

Result<Stats> Stats::Decode(std::span<const std::byte> payload) {
  KVT_RETURN_IF_ERROR(PayloadReader(kType, payload).Finish());
  return Stats{};
}

namespace {

// The fields in the order of the wire.
constexpr uint64_t StatsReply::*kStatsFields[] = {
    &StatsReply::blocks_asked,       &StatsReply::blocks_pool,
    &StatsReply::blocks_host,        &StatsReply::blocks_disk,
    &StatsReply::blocks_miss,        &StatsReply::pool_blocks_total,
    &StatsReply::pool_blocks_free,   &StatsReply::pool_blocks_private,
    &StatsReply::pool_blocks_cached, &StatsReply::session_references,
};

}  // namespace

void StatsReply::Encode(uint64_t request_id, std::vector<std::byte>* out) const {
  FrameWriter writer(kType, 0, request_id, out);
  for (const auto field : kStatsFields) writer.Write(this->*field);
}

Result<StatsReply> StatsReply::Decode(std::span<const std::byte> payload) {
  PayloadReader reader(kType, payload);
  StatsReply reply;
  for (const auto field : kStatsFields) reply.*field = reader.Read<uint64_t>();
  KVT_RETURN_IF_ERROR(reader.Finish());
  return reply;
}

void Ping::Encode(uint64_t request_id, std::vector<std::byte>* out) const {
  FrameWriter writer(kType, 0, request_id, out);
}

Result<Ping> Ping::Decode(std::span<const std::byte> payload) {
  KVT_RETURN_IF_ERROR(PayloadReader(kType, payload).Finish());
  return Ping{};
}

void Pong::Encode(uint64_t request_id, std::vector<std::byte>* out) const {
  FrameWriter writer(kType, 0, request_id, out);
}

Result<Pong> Pong::Decode(std::span<const std::byte> payload) {
  KVT_RETURN_IF_ERROR(PayloadReader(kType, payload).Finish());
  return Pong{};
}

void ErrorReply::Encode(uint64_t request_id, std::vector<std::byte>* out) const {
  FrameWriter writer(kType, 0, request_id, out);
  writer.Write(static_cast<uint16_t>(error.code));
  writer.WriteCutText(error.reason, kMaxReasonBytes);
  writer.WriteCutText(error.context, kMaxContextBytes);
}

Result<ErrorReply> ErrorReply::Decode(std::span<const std::byte> payload) {
  PayloadReader reader(kType, payload);
  ErrorReply reply;
  reply.error.code = reader.ReadErrorCode();
  reply.error.reason = reader.ReadRawText(kMaxReasonBytes);
  reply.error.context = reader.ReadRawText(kMaxContextBytes);
  KVT_RETURN_IF_ERROR(reader.Finish());
  return reply;
}

}  // namespace kvtier::wire
