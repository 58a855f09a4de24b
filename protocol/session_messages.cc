// SPDX-License-Identifier: Apache-2.0
#include "protocol/session_messages.h"

#include <fmt/format.h>

#include <algorithm>

#include "protocol/message_codec.h"

namespace kvtier::wire {

Result<uint16_t> NegotiateMinor(uint16_t peer_major, uint16_t peer_minor) {
  if (peer_major == kProtocolMajor) return std::min(peer_minor, kProtocolMinor);
  return MakeError(ErrorCode::kUnsupported, "version_mismatch",
                   fmt::format("the other side speaks {}.{}, this side {}.{}", peer_major,
                               peer_minor, kProtocolMajor, kProtocolMinor));
}

void Fields(auto& io, Like<Hello> auto& m) {
  io.Magic(kMagic, "bad_magic");
  io.Number(m.major);
  io.Number(m.minor);
  io.Text(m.client_name, kMaxClientNameBytes);
}
KVT_DEFINE_MESSAGE(Hello);

void Fields(auto& io, Like<HelloReply> auto& m) {
  io.Number(m.major);
  io.Number(m.minor);
  io.Number(m.session);
  io.Number(m.daemon_generation);
  io.Number(m.max_frame_bytes);
  io.Number(m.max_hashes);
  io.Number(m.max_blocks);
  io.Number(m.max_references);
  io.Text(m.tenant, kMaxTenantBytes);
  io.Bytes(m.secret.bytes);
}
KVT_DEFINE_MESSAGE(HelloReply);

void Fields(auto& io, Like<RegisterModel> auto& m) {
  io.Nested(m.record, kMaxModelRecordBytes, "model_record_too_long");
}
KVT_DEFINE_MESSAGE(RegisterModel);

void Fields(auto& io, Like<RegisterModelReply> auto& m) {
  io.Number(m.model);
  io.List(m.groups, kMaxModelGroups, "too_many_groups", [](auto& item_io, auto& group) {
    item_io.Bytes(group.fingerprint.bytes);
    item_io.Number(group.block_bytes);
  });
}
KVT_DEFINE_MESSAGE(RegisterModelReply);

void Fields(auto&, Like<Devices> auto&) {}
KVT_DEFINE_MESSAGE(Devices);

void Fields(auto& io, Like<DevicesReply> auto& m) {
  io.List(m.devices, kMaxDevices, "too_many_devices", [](auto& item_io, auto& device) {
    item_io.OneOf(device.kind, DeviceKind::kHost, DeviceKind::kCuda);
    item_io.Bytes(device.uuid);
    item_io.Number(device.pool_bytes);
    item_io.Text(device.name, kMaxDeviceNameBytes);
  });
  io.Check(!m.devices.empty(), "no_devices", 0);
}
KVT_DEFINE_MESSAGE(DevicesReply);

void Fields(auto& io, Like<Attach> auto& m) {
  io.Number(m.model);
  io.Number(m.group);
  io.Number(m.device);
  io.Number(m.pool_bytes);
}
KVT_DEFINE_MESSAGE(Attach);

void Fields(auto& io, Like<AttachReply> auto& m) {
  io.Number(m.pool);
  io.Number(m.generation);
  io.Number(m.pool_bytes);
  io.Number(m.block_bytes);
  io.Number(m.blocks);
  io.OneOf(m.device_kind, DeviceKind::kHost, DeviceKind::kCuda);
}
KVT_DEFINE_MESSAGE(AttachReply);

void Fields(auto& io, Like<Detach> auto& m) { io.Number(m.pool); }
KVT_DEFINE_MESSAGE(Detach);

void Fields(auto&, Like<Stats> auto&) {}
KVT_DEFINE_MESSAGE(Stats);

void Fields(auto& io, Like<StatsReply> auto& m) {
  io.Number(m.blocks_asked);
  io.Number(m.blocks_pool);
  io.Number(m.blocks_host);
  io.Number(m.blocks_disk);
  io.Number(m.blocks_miss);
  io.Number(m.pool_blocks_total);
  io.Number(m.pool_blocks_free);
  io.Number(m.pool_blocks_private);
  io.Number(m.pool_blocks_cached);
  io.Number(m.session_references);
}
KVT_DEFINE_MESSAGE(StatsReply);

void Fields(auto&, Like<Ping> auto&) {}
KVT_DEFINE_MESSAGE(Ping);

void Fields(auto&, Like<Pong> auto&) {}
KVT_DEFINE_MESSAGE(Pong);

void Fields(auto& io, Like<ErrorReply> auto& m) {
  io.OneOf(m.error.code, ErrorCode::kInvalidArgument, ErrorCode::kInternal);
  io.CutText(m.error.reason, kMaxReasonBytes);
  io.CutText(m.error.context, kMaxContextBytes);
}
KVT_DEFINE_MESSAGE(ErrorReply);

void Fields(auto& io, Like<AdminRequest> auto& m) {
  io.LongText(m.json, kMaxAdminRequestTextBytes, "text_too_long");
}
KVT_DEFINE_MESSAGE(AdminRequest);

void Fields(auto& io, Like<AdminProgress> auto& m) {
  io.LongText(m.json, kMaxAdminReplyTextBytes, "text_too_long");
}
KVT_DEFINE_MESSAGE(AdminProgress);

void Fields(auto& io, Like<AdminReply> auto& m) {
  io.LongText(m.json, kMaxAdminReplyTextBytes, "text_too_long");
}
KVT_DEFINE_MESSAGE(AdminReply);

}  // namespace kvtier::wire
