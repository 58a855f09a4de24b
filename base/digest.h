// SPDX-License-Identifier: Apache-2.0
// Digests as values, and the functions that make them: SHA-256 for identity, xxh3 for accidents.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace kvtier {

template <size_t kBytes>
struct Digest {
  std::array<uint8_t, kBytes> bytes{};

  friend constexpr auto operator<=>(const Digest&, const Digest&) = default;

  // The first eight bytes; a digest is already uniform, so this serves as its hash-table hash.
  [[nodiscard]] uint64_t Prefix64() const {
    uint64_t prefix;
    std::memcpy(&prefix, bytes.data(), sizeof(prefix));
    return prefix;
  }

  // Lower-case hexadecimal.
  [[nodiscard]] std::string Hex() const {
    static constexpr char kDigits[] = "0123456789abcdef";
    std::string text;
    text.reserve(2 * kBytes);
    for (uint8_t byte : bytes) {
      text.push_back(kDigits[byte >> 4]);
      text.push_back(kDigits[byte & 15]);
    }
    return text;
  }

  // Exactly 2 * kBytes hexadecimal digits of either case, else nothing.
  [[nodiscard]] static std::optional<Digest> FromHex(std::string_view text) {
    if (text.size() != 2 * kBytes) return std::nullopt;
    Digest digest;
    for (size_t i = 0; i < text.size(); ++i) {
      const char c = text[i];
      int nibble;
      if (c >= '0' && c <= '9') {
        nibble = c - '0';
      } else if (c >= 'a' && c <= 'f') {
        nibble = c - 'a' + 10;
      } else if (c >= 'A' && c <= 'F') {
        nibble = c - 'A' + 10;
      } else {
        return std::nullopt;
      }
      digest.bytes[i / 2] = static_cast<uint8_t>(digest.bytes[i / 2] << 4 | nibble);
    }
    return digest;
  }
};

using Digest256 = Digest<32>;
using Digest128 = Digest<16>;

// The content identity of a block: covers its tokens, its parent's hash and the extra keys.
using BlockHash = Digest256;
// The identity of a model record.
using ModelFingerprint = Digest256;
// xxh3-128 of a block's payload.
using PayloadChecksum = Digest128;

// SHA-256 through OpenSSL, which names a block by its tokens: two different blocks must not get the
// same name even if a client tries. Any thread.
[[nodiscard]] Digest256 Sha256(std::span<const std::byte> data);

// xxh3 (https://xxhash.com, dispatched to the widest vectors that the machine has) catches
// accidents of disks and memory, not an attacker. Canonical (big-endian) xxh3-128. Any thread.
[[nodiscard]] PayloadChecksum ChecksumPayload(std::span<const std::byte> payload);

// xxh3-64. Any thread.
[[nodiscard]] uint64_t ChecksumHeader(std::span<const std::byte> header);

}  // namespace kvtier

template <size_t kBytes>
struct std::hash<kvtier::Digest<kBytes>> {
  size_t operator()(const kvtier::Digest<kBytes>& digest) const noexcept {
    return digest.Prefix64();
  }
};
