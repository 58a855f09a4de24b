// SPDX-License-Identifier: Apache-2.0
// The part of MessagePack that events need, in the shortest form of each value.
#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace kvtier {

// Appends to `out`, which is borrowed.
class MsgpackWriter {
 public:
  explicit MsgpackWriter(std::string* out) : out_(*out) {}

  void WriteNull() { Byte(0xc0); }
  void WriteUnsigned(uint64_t value) {
    if (value < 0x80) return Byte(static_cast<uint8_t>(value));
    if (value <= UINT8_MAX) return Number(0xcc, static_cast<uint8_t>(value));
    if (value <= UINT16_MAX) return Number(0xcd, static_cast<uint16_t>(value));
    if (value <= UINT32_MAX) return Number(0xce, static_cast<uint32_t>(value));
    Number(0xcf, value);
  }
  void WriteInteger(int64_t value) {
    if (value >= 0) return WriteUnsigned(static_cast<uint64_t>(value));
    if (value >= -32) return Byte(static_cast<uint8_t>(value));
    if (value >= INT8_MIN) return Number(0xd0, static_cast<uint8_t>(value));
    if (value >= INT16_MIN) return Number(0xd1, static_cast<uint16_t>(value));
    if (value >= INT32_MIN) return Number(0xd2, static_cast<uint32_t>(value));
    Number(0xd3, static_cast<uint64_t>(value));
  }
  void WriteDouble(double value) { Number(0xcb, std::bit_cast<uint64_t>(value)); }
  // REQUIRES: shorter than 4 GiB, as for bytes.
  void WriteText(std::string_view text) {
    if (text.size() < 32) {
      Byte(static_cast<uint8_t>(0xa0 | text.size()));
    } else {
      Length(0xd9, text.size());
    }
    out_.append(text);
  }
  void WriteBytes(std::string_view bytes) {
    Length(0xc4, bytes.size());
    out_.append(bytes);
  }
  // The head of an array; its `count` items follow.
  void WriteArray(uint32_t count) { Count(0x90, 0xdc, count); }
  // The head of a map; `count` pairs of a key and a value follow.
  void WriteMap(uint32_t count) { Count(0x80, 0xde, count); }

 private:
  void Byte(uint8_t byte) { out_.push_back(static_cast<char>(byte)); }
  template <std::unsigned_integral T>
  void Number(uint8_t type, T value) {
    Byte(type);
    for (int shift = 8 * sizeof(T) - 8; shift >= 0; shift -= 8) {
      Byte(static_cast<uint8_t>(value >> shift));
    }
  }
  // `type` is that of a length in one byte; those of two and four bytes follow it.
  void Length(uint8_t type, size_t length) {
    if (length <= UINT8_MAX) return Number(type, static_cast<uint8_t>(length));
    if (length <= UINT16_MAX) return Number(type + 1, static_cast<uint16_t>(length));
    Number(type + 2, static_cast<uint32_t>(length));
  }
  void Count(uint8_t short_type, uint8_t type, uint32_t count) {
    if (count < 16) return Byte(static_cast<uint8_t>(short_type | count));
    if (count <= UINT16_MAX) return Number(type, static_cast<uint16_t>(count));
    Number(type + 1, count);
  }

  std::string& out_;
};

}  // namespace kvtier
