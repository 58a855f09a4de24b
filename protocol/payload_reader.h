// SPDX-License-Identifier: Apache-2.0
// Reads the payload of one message, keeping the first error. Within this room only.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "base/byte_reader.h"
#include "base/ids.h"
#include "base/result.h"
#include "protocol/message_type.h"

namespace kvtier::wire {

// After an error everything reads as zero or empty; ask Finish before using what was read.
class PayloadReader {
 public:
  PayloadReader(MessageType type, std::span<const std::byte> payload)
      : type_(type), reader_(payload) {}

  template <std::unsigned_integral T>
  [[nodiscard]] T Read() {
    Need(sizeof(T));
    return failed() ? T{} : reader_.Read<T>();
  }
  template <size_t kBytes>
  [[nodiscard]] Digest<kBytes> ReadDigest() {
    Need(kBytes);
    return failed() ? Digest<kBytes>{} : reader_.ReadDigest<kBytes>();
  }
  [[nodiscard]] BlockHandle ReadHandle() {
    const BlockIndex index{Read<uint32_t>()};
    return {index, Read<uint32_t>()};
  }
  // One of the enum's values from `first` to `last`, which it must have without gaps; else
  // "bad_enum".
  template <typename Enum>
  [[nodiscard]] Enum ReadEnum(Enum first, Enum last) {
    const auto value = Read<std::underlying_type_t<Enum>>();
    if (value >= static_cast<uint64_t>(first) && value <= static_cast<uint64_t>(last)) {
      return static_cast<Enum>(value);
    }
    Fail(ErrorCode::kInvalidArgument, "bad_enum", value);
    return first;
  }
  [[nodiscard]] ErrorCode ReadErrorCode() {
    return ReadEnum(ErrorCode::kInvalidArgument, ErrorCode::kInternal);
  }
  // A u8 of which only the bits of `known` may be set; else "unknown_bits".
  [[nodiscard]] uint8_t ReadBits(uint8_t known);
  // A u32 count of items of `item_bytes` or more each: more than `max_count` is kLimitExceeded
  // `too_many`, more than can remain is "truncated_message".
  [[nodiscard]] uint32_t ReadCount(uint32_t max_count, size_t item_bytes, const char* too_many);
  // A u32 count, then hashes, as a view into the payload.
  [[nodiscard]] std::span<const BlockHash> ReadHashes(uint32_t max_count, const char* too_many);
  // A u16 length, then plain text.
  [[nodiscard]] std::string ReadText(size_t max_bytes);
  // A u16 length, then any bytes: texts for people, which their reader shows escaped.
  [[nodiscard]] std::string ReadRawText(size_t max_bytes);
  // A view of `count` bytes of the payload.
  [[nodiscard]] std::span<const std::byte> ReadBytes(size_t count);

  // Keeps the first error only.
  void Fail(ErrorCode code, const char* reason, uint64_t offending_value);
  [[nodiscard]] bool failed() const { return error_.has_value(); }
  [[nodiscard]] size_t remaining() const { return reader_.remaining(); }

  // The first error, "trailing_bytes" if something was not read, or success.
  [[nodiscard]] Status Finish();

 private:
  void Need(size_t bytes) {
    if (bytes > reader_.remaining()) [[unlikely]]
      FailTruncated(bytes);
  }
  void FailTruncated(uint64_t needed);

  const MessageType type_;
  ByteReader reader_;
  std::optional<Error> error_;
};

}  // namespace kvtier::wire
