// SPDX-License-Identifier: Apache-2.0
#include "protocol/payload_reader.h"

#include <fmt/format.h>

#include "protocol/text.h"

namespace kvtier::wire {

static_assert(sizeof(BlockHash) == 32 && alignof(BlockHash) == 1, "hashes are read in place");

uint8_t PayloadReader::ReadBits(uint8_t known) {
  const auto bits = Read<uint8_t>();
  if ((bits & ~known) == 0) return bits;
  Fail(ErrorCode::kInvalidArgument, "unknown_bits", bits);
  return 0;
}

uint32_t PayloadReader::ReadCount(uint32_t max_count, size_t item_bytes, const char* too_many) {
  const auto count = Read<uint32_t>();
  if (count > max_count) {
    if (!failed()) {
      error_ = Error{ErrorCode::kLimitExceeded, too_many,
                     fmt::format("{}: {} of at most {}", MessageTypeName(type_), count, max_count)};
    }
    return 0;
  }
  Need(count * item_bytes);
  return failed() ? 0 : count;
}

std::span<const BlockHash> PayloadReader::ReadHashes(uint32_t max_count, const char* too_many) {
  const uint32_t count = ReadCount(max_count, sizeof(BlockHash), too_many);
  const std::span<const std::byte> bytes = ReadBytes(count * sizeof(BlockHash));
  return {reinterpret_cast<const BlockHash*>(bytes.data()), bytes.size() / sizeof(BlockHash)};
}

std::string PayloadReader::ReadText(size_t max_bytes) {
  std::string text = ReadRawText(max_bytes);
  if (!IsPlainText(text)) {
    Fail(ErrorCode::kInvalidArgument, "bad_text", text.size());
    return {};
  }
  return text;
}

std::string PayloadReader::ReadRawText(size_t max_bytes) {
  const auto length = Read<uint16_t>();
  if (length > max_bytes) {
    Fail(ErrorCode::kLimitExceeded, "text_too_long", length);
    return {};
  }
  const std::span<const std::byte> bytes = ReadBytes(length);
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

std::span<const std::byte> PayloadReader::ReadBytes(size_t count) {
  Need(count);
  if (failed()) return {};
  return reader_.ReadBytes(count);
}

void PayloadReader::Fail(ErrorCode code, const char* reason, uint64_t offending_value) {
  if (failed()) return;
  error_ = Error{code, reason,
                 fmt::format("{}: value {} with {} bytes left", MessageTypeName(type_),
                             offending_value, reader_.remaining())};
}

void PayloadReader::FailTruncated(uint64_t needed) {
  if (failed()) return;
  error_ = Error{ErrorCode::kInvalidArgument, "truncated_message",
                 fmt::format("{}: a field needs {} bytes, {} are left", MessageTypeName(type_),
                             needed, reader_.remaining())};
}

Status PayloadReader::Finish() {
  if (!failed() && reader_.remaining() > 0) {
    error_ =
        Error{ErrorCode::kInvalidArgument, "trailing_bytes",
              fmt::format("{}: {} bytes too many", MessageTypeName(type_), reader_.remaining())};
  }
  if (failed()) return tl::unexpected<Error>(*error_);
  return {};
}

}  // namespace kvtier::wire
