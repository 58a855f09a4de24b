// SPDX-License-Identifier: Apache-2.0
#include "protocol/message_codec.h"

#include <fmt/format.h>

namespace kvtier::wire {

static_assert(sizeof(BlockHash) == 32 && alignof(BlockHash) == 1, "hashes are read in place");

Error PassedBound::In(MessageType type) const {
  return {ErrorCode::kLimitExceeded, reason,
          fmt::format("{}: {} of at most {}", MessageTypeName(type), count, most)};
}

void FieldReader::Magic(uint32_t magic, const char* reason) {
  uint32_t number;
  Number(number);
  Check(number == magic, reason, number);
}

void FieldReader::Bits(uint8_t& bits, uint8_t known) {
  Number(bits);
  Check((bits & ~known) == 0, "unknown_bits", bits);
  if (error_) bits = 0;
}

void FieldReader::Bytes(std::span<uint8_t> bytes) {
  const std::span<const std::byte> taken = Take(bytes.size());
  if (!taken.empty()) std::memcpy(bytes.data(), taken.data(), taken.size());
}

void FieldReader::Count(uint32_t& count, uint32_t max_count, const char* too_many) {
  count = CountOf(max_count, 0, too_many);
}

uint32_t FieldReader::CountOf(uint32_t max_count, size_t item_bytes, const char* too_many) {
  uint32_t count;
  Number(count);
  if (count > max_count) {
    error_ = PassedBound{too_many, count, max_count}.In(type_);
  } else if (count * item_bytes > rest_.size()) {
    FailTruncated(count * item_bytes);
  }
  return error_ ? 0 : count;
}

void FieldReader::Hashes(std::span<const BlockHash>& hashes, uint32_t max_count,
                         const char* too_many) {
  const uint32_t count = CountOf(max_count, sizeof(BlockHash), too_many);
  const std::span<const std::byte> bytes = Take(count * sizeof(BlockHash));
  hashes = {reinterpret_cast<const BlockHash*>(bytes.data()), bytes.size() / sizeof(BlockHash)};
}

void FieldReader::Text(std::string& text, size_t max_bytes) {
  CutText(text, max_bytes);
  Check(IsPlainText(text), "bad_text", text.size());
}

void FieldReader::CutText(std::string& text, size_t max_bytes) {
  uint16_t length;
  Number(length);
  if (length > max_bytes && !error_) {
    error_ = PassedBound{"text_too_long", length, max_bytes}.In(type_);
  }
  const std::span<const std::byte> bytes = Take(length);
  text.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

void FieldReader::LongText(std::string& text, uint32_t max_bytes, const char* too_long) {
  const std::span<const std::byte> bytes = Take(CountOf(max_bytes, 1, too_long));
  text.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

void FieldReader::Fail(const char* reason, const std::string& why) {
  error_ = Error{ErrorCode::kInvalidArgument, reason,
                 fmt::format("{}: {}", MessageTypeName(type_), why)};
}

std::string FieldReader::ValueText(double value) const {
  return fmt::format("value {} with {} bytes left", value, rest_.size());
}

void FieldReader::FailTruncated(uint64_t needed) {
  if (error_) return;
  error_ = Error{ErrorCode::kInvalidArgument, "truncated_message",
                 fmt::format("{}: a field needs {} bytes, {} are left", MessageTypeName(type_),
                             needed, rest_.size())};
}

Status FieldReader::Finish() {
  if (!error_ && !rest_.empty()) {
    error_ = Error{ErrorCode::kInvalidArgument, "trailing_bytes",
                   fmt::format("{}: {} bytes too many", MessageTypeName(type_), rest_.size())};
  }
  if (error_) return tl::unexpected<Error>(*error_);
  return {};
}

}  // namespace kvtier::wire
