// SPDX-License-Identifier: Apache-2.0
#include "protocol/text.h"

#include <cstdint>

namespace kvtier {
namespace {

bool IsContinuation(char c) { return (static_cast<uint8_t>(c) & 0xc0) == 0x80; }

// The bytes of the sequence that `lead` begins; 0 if it begins none.
size_t SequenceBytes(uint8_t lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xc2 && lead <= 0xdf) return 2;
  if (lead >= 0xe0 && lead <= 0xef) return 3;
  if (lead >= 0xf0 && lead <= 0xf4) return 4;
  return 0;
}

// REQUIRES: text holds `bytes` bytes, of which the first is a lead of such a sequence.
bool IsPlainSequence(std::string_view text, size_t bytes) {
  const auto lead = static_cast<uint8_t>(text[0]);
  if (bytes == 1) return lead >= 0x20 && lead != 0x7f;
  uint32_t code_point = lead & (0x7fu >> bytes);
  for (size_t i = 1; i < bytes; ++i) {
    if (!IsContinuation(text[i])) return false;
    code_point = code_point << 6 | (static_cast<uint8_t>(text[i]) & 0x3fu);
  }
  if (code_point < 0xa0) return false;  // C1 control characters
  if (bytes == 3 && code_point < 0x800) return false;
  if (bytes == 4 && code_point < 0x10000) return false;
  if (code_point >= 0xd800 && code_point <= 0xdfff) return false;  // surrogates
  return code_point <= 0x10ffff;
}

}  // namespace

bool IsPlainText(std::string_view text) {
  while (!text.empty()) {
    const size_t bytes = SequenceBytes(static_cast<uint8_t>(text[0]));
    if (bytes == 0 || bytes > text.size() || !IsPlainSequence(text, bytes)) return false;
    text.remove_prefix(bytes);
  }
  return true;
}

std::string_view CutText(std::string_view text, size_t max_bytes) {
  if (text.size() <= max_bytes) return text;
  size_t end = max_bytes;
  while (end > 0 && IsContinuation(text[end])) --end;
  return text.substr(0, end);
}

}  // namespace kvtier
