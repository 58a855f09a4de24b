// SPDX-License-Identifier: Apache-2.0
#include "protocol/cbor_writer.h"

#include <algorithm>

namespace kvtier {

void CborWriter::WriteInteger(int64_t value) {
  if (value >= 0) {
    WriteHead(kUnsigned, static_cast<uint64_t>(value));
  } else {
    WriteHead(kNegative, ~static_cast<uint64_t>(value));  // -1 - value
  }
}

void CborWriter::WriteBytes(std::span<const std::byte> bytes) {
  WriteHead(kBytes, bytes.size());
  std::ranges::copy(bytes, Extend(bytes.size()));
}

void CborWriter::WriteText(std::string_view text) {
  WriteHead(kText, text.size());
  std::ranges::copy(std::as_bytes(std::span(text)), Extend(text.size()));
}

void CborWriter::Grow(size_t bytes) {
  std::vector<std::byte> larger(2 * (size_ + bytes));
  std::memcpy(larger.data(), begin_, size_);
  spill_ = std::move(larger);
  begin_ = spill_.data();
  capacity_ = spill_.size();
}

}  // namespace kvtier
