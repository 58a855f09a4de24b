// SPDX-License-Identifier: Apache-2.0
// AES-256 as the disk tier uses it: GCM for slots, XTS for the hashes in the index. Through
// OpenSSL, whose headers stay in the source file.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "base/result.h"

namespace kvtier {

using GcmNonce = std::array<std::byte, 12>;
using GcmTag = std::array<std::byte, 16>;
inline constexpr size_t kGcmKeyBytes = 32;
inline constexpr size_t kXtsKeyBytes = 64;

// Overwrites the bytes; the compiler does not leave it out.
void WipeBytes(std::span<std::byte> bytes);

// The algorithms, looked up once: a lookup costs more than a header's encryption. Move-only; used
// from any thread.
class AesAlgorithms {
 public:
  // Errors: kUnsupported "no_aes" if OpenSSL does not have both.
  [[nodiscard]] static Result<AesAlgorithms> Fetch();

  // One key, set up for several messages in one direction; the key's schedule is wiped with it.
  // One thread at a time.
  class Gcm {
   public:
    ~Gcm();
    Gcm(const Gcm&) = delete;
    Gcm& operator=(const Gcm&) = delete;

    // Each false only if OpenSSL fails. `out` has the size of `in` and may be the same bytes.
    // REQUIRES: made for encryption; no two messages under one key have the same nonce.
    [[nodiscard]] bool Encrypt(const GcmNonce& nonce, std::span<const std::byte> associated,
                               std::span<const std::byte> in, std::span<std::byte> out,
                               GcmTag* tag);
    // False, too, if any bit of nonce, associated data, input or tag differs from the encryption's:
    // the bytes in `out` are then not to be used. REQUIRES: made for decryption.
    [[nodiscard]] bool Decrypt(const GcmNonce& nonce, std::span<const std::byte> associated,
                               std::span<const std::byte> in, std::span<std::byte> out,
                               const GcmTag& tag);

   private:
    friend class AesAlgorithms;
    struct Context;
    explicit Gcm(std::unique_ptr<Context> context);
    std::unique_ptr<Context> context_;
  };

  enum class Direction : uint8_t { kEncrypt, kDecrypt };
  [[nodiscard]] Gcm WithKey(Direction direction,
                            std::span<const std::byte, kGcmKeyBytes> key) const;

  // The same input gives the same output, and a wrong key gives other bytes instead of an error.
  // False only if OpenSSL fails.
  [[nodiscard]] bool Xts(Direction direction, std::span<const std::byte, kXtsKeyBytes> key,
                         std::span<const std::byte, 16> tweak, std::span<const std::byte> in,
                         std::span<std::byte> out) const;

 private:
  struct Ciphers;
  explicit AesAlgorithms(std::shared_ptr<const Ciphers> ciphers) : ciphers_(std::move(ciphers)) {}
  std::shared_ptr<const Ciphers> ciphers_;
};

}  // namespace kvtier
