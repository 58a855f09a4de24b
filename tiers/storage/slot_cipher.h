// SPDX-License-Identifier: Apache-2.0
// Encrypts slots on their way to disk and decrypts them on their way back, and encrypts the hashes
// of the index.
//
// A slot's hash, parent and payload checksum are one message of AES-256-GCM, its payload another,
// under the key of its tenant and of the hour in which its block was made. The header's other
// fields are associated data of both: a slot of another block, place or write does not decrypt. In
// the index a hash must be found again, so that one hash is always the same bytes there
// (AES-256-XTS). Token ids there are a message of AES-256-GCM as well.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/digest.h"
#include "base/result.h"
#include "tiers/storage/aes.h"
#include "tiers/storage/key_ring.h"
#include "tiers/storage/slot_header.h"

namespace kvtier {

enum class DecryptOutcome : uint8_t {
  kDecrypted,  // the bytes are a plain slot, as it was before encryption
  kNoKey,      // whole as far as can be told, but its key is gone; the bytes are as they were
  kDamaged,    // not as encrypted; the header is now zeros
};

// Where keys come from: that for a slot of this tenant and hour, and that of one whose header has
// the id; nothing if it is gone.
using ObtainSlotKey = std::function<Result<SlotKey>(std::string_view tenant, uint32_t hour)>;
using FindSlotKey =
    std::function<std::optional<SecretKey>(std::string_view tenant, uint32_t hour, uint64_t id)>;

// The functions of SlotCipher, with keys of any origin. `slot` and `out` as there; errors also
// those of `obtain`. Any thread.
[[nodiscard]] Status EncryptSlot(const AesAlgorithms& aes, const ObtainSlotKey& obtain,
                                 std::span<const std::byte> slot, std::span<std::byte> out);
[[nodiscard]] DecryptOutcome DecryptSlot(const AesAlgorithms& aes, const FindSlotKey& find,
                                         std::span<std::byte> slot);

// Any thread. Owns the keys.
class SlotCipher {
 public:
  // Errors: those of AesAlgorithms::Fetch.
  [[nodiscard]] static Result<std::unique_ptr<SlotCipher>> Create(std::unique_ptr<KeyRing> keys);

  // `slot` is a plain slot as it would be written: a sealed header, its payload, and what fills the
  // slot. `out` has its size. Errors: those of KeyRing::ForSlot; kIoError "encryption"; kCorrupt
  // "slot_header" if it is none.
  [[nodiscard]] Status Encrypt(std::span<const std::byte> slot, std::span<std::byte> out) const;

  // In place; `slot` is one as read, and may hold anything. A plain slot is damage: only slots
  // encrypted here are believed.
  [[nodiscard]] DecryptOutcome Decrypt(std::span<std::byte> slot) const;
  // The same of a header alone, whose payload is then checked by Decrypt when it is read.
  [[nodiscard]] DecryptOutcome DecryptHeader(std::span<std::byte, kSlotHeaderBytes> page) const;

  // Each changes the hashes in place. `parent` may be null.
  // Errors: those of KeyRing::ForIndex; kIoError "encryption".
  [[nodiscard]] Status EncryptHashes(std::string_view tenant, BlockHash* hash,
                                     BlockHash* parent) const;
  // False if there is no key.
  [[nodiscard]] bool DecryptHashes(std::string_view tenant, BlockHash* hash,
                                   BlockHash* parent) const;

  // Encrypts a block's tokens, for the index: under the key that a slot of that hour has, so that
  // the ids go with it. The result is bound to tenant and hash, and longer by kSealedIdsBytes.
  // Errors: those of KeyRing::ForSlot; kIoError "encryption".
  static constexpr size_t kSealedIdsBytes = 8 + 12 + 16;  // key, nonce, tag
  [[nodiscard]] Result<std::vector<std::byte>> EncryptIds(std::string_view tenant, uint32_t hour,
                                                          const BlockHash& hash,
                                                          std::span<const std::byte> ids) const;
  // Empty if the key is gone, or the bytes are not as encrypted.
  [[nodiscard]] std::vector<std::byte> DecryptIds(std::string_view tenant, const BlockHash& hash,
                                                  std::span<const std::byte> sealed) const;

  [[nodiscard]] KeyRing& keys() const { return *keys_; }

 private:
  SlotCipher(std::unique_ptr<KeyRing> keys, AesAlgorithms aes)
      : keys_(std::move(keys)), aes_(std::move(aes)) {}
  [[nodiscard]] FindSlotKey Find() const;
  [[nodiscard]] bool Xts(AesAlgorithms::Direction direction, const SecretKey& key, BlockHash* hash,
                         BlockHash* parent) const;

  const std::unique_ptr<KeyRing> keys_;
  const AesAlgorithms aes_;
};

}  // namespace kvtier
