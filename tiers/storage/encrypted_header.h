// SPDX-License-Identifier: Apache-2.0
// The bytes of a slot's header, and the header of a slot that is encrypted: the plain header's fields
// in the same places, of another version, with the hashes and the payload's checksum encrypted and
// what is needed to decrypt them beside. docs/DISK_FORMAT.md gives the bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/digest.h"
#include "base/result.h"
#include "tiers/storage/aes.h"
#include "tiers/storage/header_page.h"
#include "tiers/storage/slot_header.h"

namespace kvtier {

inline constexpr uint32_t kEncryptedSlotVersion = 2;
inline constexpr uint8_t kEncryptionAes256Gcm = 1;

// The bytes as they lie in memory and on disk, little-endian. From `key_id` on all are zero in a plain
// header, and `encryption_algorithm` is, too.
struct SlotFields {
  HeaderPagePrefix prefix;
  uint64_t address;
  uint64_t payload_bytes;
  uint32_t generation;
  uint32_t depth;
  uint32_t created_s;
  uint32_t last_use_s;
  uint16_t tokens;
  uint8_t retention;
  uint8_t has_parent;
  uint8_t tenant_bytes;
  uint8_t encryption_algorithm;
  uint8_t zero[2];
  // Encrypted in an encrypted header, with the payload's checksum.
  BlockHash hash;
  BlockHash parent;
  ModelFingerprint model;
  PayloadChecksum payload_checksum;
  char tenant[kMaxTenantBytes];
  uint64_t key_id;
  GcmNonce nonce;
  GcmTag payload_tag;
  uint8_t zero_end[4];
  GcmTag header_tag;
};
static_assert(sizeof(SlotFields) == 296, "no holes: docs/DISK_FORMAT.md lists every byte");
static_assert(offsetof(SlotFields, hash) == 64 && offsetof(SlotFields, parent) == 96);

// Whether the page claims to be the header of a slot, and of an encrypted one. Nothing else is
// looked at.
[[nodiscard]] bool ClaimsSlot(std::span<const std::byte, kSlotHeaderBytes> page);
[[nodiscard]] bool ClaimsEncryptedSlot(std::span<const std::byte, kSlotHeaderBytes> page);

// What can be read without a key: all fields but hash, parent and payload checksum, which are zeros
// and nothing. For bytes that may hold anything; errors as those of DecodeSlotHeader.
[[nodiscard]] Result<SlotHeader> DecodeEncryptedSlotHeader(
    std::span<const std::byte, kSlotHeaderBytes> page);

}  // namespace kvtier
