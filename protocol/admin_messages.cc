// SPDX-License-Identifier: Apache-2.0
#include "protocol/admin_messages.h"

#include "protocol/frame_writer.h"
#include "protocol/payload_reader.h"

namespace kvtier::wire {
namespace {

// A u32 length, then the text.
void EncodeText(MessageType type, uint64_t request_id, const std::string& text, uint32_t max_bytes,
                std::vector<std::byte>* out) {
  FrameWriter writer(type, 0, request_id, out);
  writer.WriteCount(text.size(), max_bytes);
  writer.WriteBytes(std::as_bytes(std::span(text)));
}

template <typename Message>
Result<Message> DecodeText(std::span<const std::byte> payload, uint32_t max_bytes) {
  PayloadReader reader(Message::kType, payload);
  const uint32_t length = reader.ReadCount(max_bytes, 1, "text_too_long");
  const std::span<const std::byte> bytes = reader.ReadBytes(length);
  KVT_RETURN_IF_ERROR(reader.Finish());
  return Message{std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size())};
}

}  // namespace

void AdminRequest::Encode(uint64_t request_id, std::vector<std::byte>* out) const {
  EncodeText(kType, request_id, json, kMaxAdminRequestTextBytes, out);
}

Result<AdminRequest> AdminRequest::Decode(std::span<const std::byte> payload) {
  return DecodeText<AdminRequest>(payload, kMaxAdminRequestTextBytes);
}

void AdminProgress::Encode(uint64_t request_id, std::vector<std::byte>* out) const {
  EncodeText(kType, request_id, json, kMaxAdminReplyTextBytes, out);
}

Result<AdminProgress> AdminProgress::Decode(std::span<const std::byte> payload) {
  return DecodeText<AdminProgress>(payload, kMaxAdminReplyTextBytes);
}

void AdminReply::Encode(uint64_t request_id, std::vector<std::byte>* out) const {
  EncodeText(kType, request_id, json, kMaxAdminReplyTextBytes, out);
}

Result<AdminReply> AdminReply::Decode(std::span<const std::byte> payload) {
  return DecodeText<AdminReply>(payload, kMaxAdminReplyTextBytes);
}

}  // namespace kvtier::wire
