// SPDX-License-Identifier: Apache-2.0
// The part of canonical CBOR (RFC 8949, section 4.2.1) that block hashes need: shortest heads,
// definite lengths.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace kvtier {

// Writes to a buffer within itself as long as that suffices, so that hashing a block of usual size
// allocates nothing.
class CborWriter {
 public:
  CborWriter() = default;
  CborWriter(const CborWriter&) = delete;
  CborWriter& operator=(const CborWriter&) = delete;

  void WriteUnsigned(uint64_t value) { WriteHead(kUnsigned, value); }
  void WriteInteger(int64_t value) {
    if (value >= 0) {
      WriteHead(kUnsigned, static_cast<uint64_t>(value));
    } else {
      WriteHead(kNegative, ~static_cast<uint64_t>(value));  // -1 - value
    }
  }
  void WriteBytes(std::span<const std::byte> bytes) {
    WriteHead(kBytes, bytes.size());
    std::ranges::copy(bytes, Extend(bytes.size()));
  }
  void WriteText(std::string_view text) {
    WriteHead(kText, text.size());
    std::ranges::copy(std::as_bytes(std::span(text)), Extend(text.size()));
  }
  // The head of an array; its `count` items follow.
  void WriteArray(uint64_t count) { WriteHead(kArray, count); }
  void WriteNull() { *Extend(1) = std::byte{0xf6}; }

  // Valid until the next write.
  [[nodiscard]] std::span<const std::byte> data() const { return {begin_, size_}; }

 private:
  enum MajorType : uint8_t { kUnsigned = 0, kNegative = 1, kBytes = 2, kText = 3, kArray = 4 };

  // Inline: a block's tokens go through here one by one.
  void WriteHead(MajorType type, uint64_t argument) {
    std::byte* const head = Reserve(9);
    const auto type_bits = static_cast<uint8_t>(type << 5);
    if (argument < 24) {
      head[0] = static_cast<std::byte>(type_bits | argument);
      size_ += 1;
    } else if (argument <= UINT8_MAX) {
      head[0] = static_cast<std::byte>(type_bits | 24);
      head[1] = static_cast<std::byte>(argument);
      size_ += 2;
    } else if (argument <= UINT16_MAX) {
      head[0] = static_cast<std::byte>(type_bits | 25);
      StoreBigEndian(head + 1, __builtin_bswap16(static_cast<uint16_t>(argument)));
      size_ += 3;
    } else if (argument <= UINT32_MAX) {
      head[0] = static_cast<std::byte>(type_bits | 26);
      StoreBigEndian(head + 1, __builtin_bswap32(static_cast<uint32_t>(argument)));
      size_ += 5;
    } else {
      head[0] = static_cast<std::byte>(type_bits | 27);
      StoreBigEndian(head + 1, __builtin_bswap64(argument));
      size_ += 9;
    }
  }

  static_assert(std::endian::native == std::endian::little);
  template <typename T>
  static void StoreBigEndian(std::byte* at, T swapped) {
    std::memcpy(at, &swapped, sizeof(swapped));
  }

  // Space for `bytes` behind the written ones.
  std::byte* Reserve(size_t bytes) {
    if (bytes > capacity_ - size_) [[unlikely]]
      Grow(bytes);
    return begin_ + size_;
  }
  std::byte* Extend(size_t bytes) {
    std::byte* const at = Reserve(bytes);
    size_ += bytes;
    return at;
  }
  void Grow(size_t bytes) {
    std::vector<std::byte> larger(2 * (size_ + bytes));
    std::memcpy(larger.data(), begin_, size_);
    spill_ = std::move(larger);
    begin_ = spill_.data();
    capacity_ = spill_.size();
  }

  // Enough for a block of 256 tokens of any ids.
  std::byte inline_[1536];  // uninitialised: clearing it would cost as much as filling it
  std::vector<std::byte> spill_;
  std::byte* begin_ = inline_;
  size_t capacity_ = sizeof(inline_);
  size_t size_ = 0;
};

}  // namespace kvtier
