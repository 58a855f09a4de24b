// SPDX-License-Identifier: Apache-2.0
#include "protocol/lookup_messages.h"

#include "protocol/frame_writer.h"
#include "protocol/payload_reader.h"

namespace kvtier::wire {
namespace {

constexpr uint8_t kPresenceBits = kPresentInPool | kPresentInHost | kPersistedOnDisk;

}  // namespace

void Prefetch::Encode(uint64_t request_id, std::vector<std::byte>* out) const {
  FrameWriter writer(kType, 0, request_id, out);
  writer.Reserve(8 + hashes.size_bytes());
  writer.Write(pool.value);
  writer.WriteHashes(hashes, kMaxHashesPerCall);
}

Result<Prefetch> Prefetch::Decode(std::span<const std::byte> payload) {
  PayloadReader reader(kType, payload);
  Prefetch prefetch;
  prefetch.pool = PoolId{reader.Read<uint32_t>()};
  prefetch.hashes = reader.ReadHashes(kMaxHashesPerCall, "too_many_hashes");
  KVT_RETURN_IF_ERROR(reader.Finish());
  return prefetch;
}

void PrefetchReply::Encode(uint64_t request_id, std::vector<std::byte>* out) const {
  FrameWriter writer(kType, 0, request_id, out);
  writer.Write(count);
}

Result<PrefetchReply> PrefetchReply::Decode(std::span<const std::byte> payload) {
  PayloadReader reader(kType, payload);
  PrefetchReply reply;
  reply.count = reader.Read<uint32_t>();
  KVT_RETURN_IF_ERROR(reader.Finish());
  return reply;
}

void Lookup::Encode(uint64_t request_id, std::vector<std::byte>* out) const {
  FrameWriter writer(kType, 0, request_id, out);
  writer.Reserve(8 + hashes.size_bytes());
  writer.Write(pool.value);
  writer.WriteHashes(hashes, kMaxHashesPerCall);
}

Result<Lookup> Lookup::Decode(std::span<const std::byte> payload) {
  PayloadReader reader(kType, payload);
  Lookup lookup;
  lookup.pool = PoolId{reader.Read<uint32_t>()};
  lookup.hashes = reader.ReadHashes(kMaxHashesPerCall, "too_many_hashes");
  KVT_RETURN_IF_ERROR(reader.Finish());
  return lookup;
}

void LookupReply::Encode(uint64_t request_id, std::vector<std::byte>* out) const {
  FrameWriter writer(kType, 0, request_id, out);
  writer.WriteCount(presence.size(), kMaxHashesPerCall);
  writer.WriteBytes(std::as_bytes(std::span(presence)));
}

Result<LookupReply> LookupReply::Decode(std::span<const std::byte> payload) {
  PayloadReader reader(kType, payload);
  LookupReply reply;
  reply.presence.resize(reader.ReadCount(kMaxHashesPerCall, 1, "too_many_hashes"));
  for (uint8_t& bits : reply.presence) bits = reader.ReadBits(kPresenceBits);
  KVT_RETURN_IF_ERROR(reader.Finish());
  return reply;
}

void Pin::Encode(uint64_t request_id, std::vector<std::byte>* out) const {
  FrameWriter writer(kType, 0, request_id, out);
  writer.Reserve(16 + hashes.size_bytes());
  writer.Write(pool.value);
  writer.Write(static_cast<uint64_t>(ttl_ms));
  writer.WriteHashes(hashes, kMaxHashesPerCall);
}

Result<Pin> Pin::Decode(std::span<const std::byte> payload) {
  PayloadReader reader(kType, payload);
  Pin pin;
  pin.pool = PoolId{reader.Read<uint32_t>()};
  const auto ttl_ms = reader.Read<uint64_t>();
  if (ttl_ms > INT64_MAX) reader.Fail(ErrorCode::kInvalidArgument, "bad_ttl", ttl_ms);
  pin.ttl_ms = static_cast<int64_t>(ttl_ms);
  pin.hashes = reader.ReadHashes(kMaxHashesPerCall, "too_many_hashes");
  KVT_RETURN_IF_ERROR(reader.Finish());
  return pin;
}

void PinReply::Encode(uint64_t request_id, std::vector<std::byte>* out) const {
  FrameWriter writer(kType, 0, request_id, out);
  writer.Write(count);
}

Result<PinReply> PinReply::Decode(std::span<const std::byte> payload) {
  PayloadReader reader(kType, payload);
  PinReply reply;
  reply.count = reader.Read<uint32_t>();
  KVT_RETURN_IF_ERROR(reader.Finish());
  return reply;
}

}  // namespace kvtier::wire
