// SPDX-License-Identifier: Apache-2.0
#include "daemon/events/zmtp.h"

#include <fmt/format.h>

namespace kvtier {
namespace {

constexpr uint8_t kMore = 1, kLong = 2, kCommand = 4;
constexpr std::string_view kMechanism("NULL\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 20);
constexpr size_t kVersionAt = 10, kMechanismAt = 12;

uint8_t ByteAt(std::string_view bytes, size_t at) { return static_cast<uint8_t>(bytes[at]); }

uint64_t BigEndian(std::string_view bytes) {
  uint64_t value = 0;
  for (const char byte : bytes) value = value << 8 | static_cast<uint8_t>(byte);
  return value;
}

void AppendBigEndian(uint64_t value, int bytes, std::string* out) {
  for (int shift = 8 * bytes - 8; shift >= 0; shift -= 8) {
    out->push_back(static_cast<char>(value >> shift & 0xff));
  }
}

void AppendFrame(uint8_t flags, std::string_view body, std::string* out) {
  if (body.size() <= UINT8_MAX) {
    out->push_back(static_cast<char>(flags));
    AppendBigEndian(body.size(), 1, out);
  } else {
    out->push_back(static_cast<char>(flags | kLong));
    AppendBigEndian(body.size(), 8, out);
  }
  out->append(body);
}

}  // namespace

std::optional<ZmtpCommand> ParseZmtpCommand(std::string_view body) {
  if (body.empty()) return std::nullopt;
  const size_t name_bytes = ByteAt(body, 0);
  if (name_bytes == 0 || body.size() < 1 + name_bytes) return std::nullopt;
  return ZmtpCommand{body.substr(1, name_bytes), body.substr(1 + name_bytes)};
}

// A row of properties: a name with its length in one byte, a value with its length in four.
std::string_view ZmtpSocketType(std::string_view rest) {
  while (!rest.empty()) {
    const size_t name_bytes = ByteAt(rest, 0);
    if (rest.size() < 1 + name_bytes + 4) return {};
    const std::string_view name = rest.substr(1, name_bytes);
    const uint64_t value_bytes = BigEndian(rest.substr(1 + name_bytes, 4));
    rest.remove_prefix(1 + name_bytes + 4);
    if (rest.size() < value_bytes) return {};
    if (name == "Socket-Type") return rest.substr(0, value_bytes);
    rest.remove_prefix(value_bytes);
  }
  return {};
}

void ZmtpDecoder::Feed(std::span<const std::byte> bytes) {
  buffer_.erase(0, position_);
  position_ = 0;
  buffer_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

Result<bool> ZmtpDecoder::ReadGreeting() {
  const std::string_view bytes = rest();
  // Refuses a wrong beginning at once: a peer of another protocol sends less than a greeting and
  // waits.
  if ((!bytes.empty() && ByteAt(bytes, 0) != 0xff) ||
      (bytes.size() >= kVersionAt && (ByteAt(bytes, 9) & 1) == 0)) {
    return MakeError(ErrorCode::kInvalidArgument, "zmtp_greeting", "not a ZMTP peer");
  }
  if (bytes.size() > kVersionAt && ByteAt(bytes, kVersionAt) < 3) {
    return MakeError(ErrorCode::kUnsupported, "zmtp_version",
                     fmt::format("version {}, 3 or later is needed", ByteAt(bytes, kVersionAt)));
  }
  if (bytes.size() < kZmtpGreetingBytes) return false;
  if (bytes.substr(kMechanismAt, kMechanism.size()) != kMechanism) {
    return MakeError(ErrorCode::kUnsupported, "zmtp_mechanism", "only NULL is spoken");
  }
  position_ += kZmtpGreetingBytes;
  greeted_ = true;
  return true;
}

Result<std::optional<ZmtpFrame>> ZmtpDecoder::Next() {
  if (!greeted_) {
    KVT_ASSIGN_OR_RETURN(const bool complete, ReadGreeting());
    if (!complete) return std::nullopt;
  }
  const std::string_view bytes = rest();
  if (bytes.empty()) return std::nullopt;
  const uint8_t flags = ByteAt(bytes, 0);
  if ((flags & ~(kMore | kLong | kCommand)) != 0 || (flags & kMore && flags & kCommand)) {
    return MakeError(ErrorCode::kInvalidArgument, "zmtp_flags", fmt::format("{:#x}", flags));
  }
  const size_t length_bytes = (flags & kLong) != 0 ? 8 : 1;
  if (bytes.size() < 1 + length_bytes) return std::nullopt;
  const uint64_t length = BigEndian(bytes.substr(1, length_bytes));
  if (length > kMaxZmtpFrameBytes) {
    return MakeError(ErrorCode::kLimitExceeded, "zmtp_frame_too_long",
                     fmt::format("{} bytes, {} at most", length, kMaxZmtpFrameBytes));
  }
  if (bytes.size() < 1 + length_bytes + length) return std::nullopt;
  position_ += 1 + length_bytes + length;
  return ZmtpFrame{.more = (flags & kMore) != 0,
                   .command = (flags & kCommand) != 0,
                   .body = bytes.substr(1 + length_bytes, length)};
}

// All of it at once. A peer of version 2 or 1 would have to be asked first, and is not served.
void AppendZmtpGreeting(std::string* out) {
  constexpr std::string_view kSignatureAndVersion("\xff\0\0\0\0\0\0\0\0\x7f\x03\0", 12);
  out->append(kSignatureAndVersion).append(kMechanism);
  out->append(kZmtpGreetingBytes - kMechanismAt - kMechanism.size(), '\0');
}

void AppendZmtpReady(std::string_view socket_type, std::string* out) {
  constexpr std::string_view kName = "Socket-Type";
  std::string data;
  AppendBigEndian(kName.size(), 1, &data);
  data.append(kName);
  AppendBigEndian(socket_type.size(), 4, &data);
  data.append(socket_type);
  AppendZmtpCommand("READY", data, out);
}

void AppendZmtpCommand(std::string_view name, std::string_view data, std::string* out) {
  std::string body;
  AppendBigEndian(name.size(), 1, &body);
  AppendFrame(kCommand, body.append(name).append(data), out);
}

void AppendZmtpPart(std::string_view body, bool more, std::string* out) {
  AppendFrame(more ? kMore : 0, body, out);
}

}  // namespace kvtier
