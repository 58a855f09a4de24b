// SPDX-License-Identifier: Apache-2.0
#include "tiers/storage/encrypted_header.h"

#include <cstring>
#include <string_view>

namespace kvtier {
namespace {

constexpr std::string_view kMagic = "KVTSLOT1";

}  // namespace

bool ClaimsSlot(std::span<const std::byte, kSlotHeaderBytes> page) {
  return std::memcmp(page.data(), kMagic.data(), kMagic.size()) == 0;
}

bool ClaimsEncryptedSlot(std::span<const std::byte, kSlotHeaderBytes> page) {
  HeaderPagePrefix prefix;
  std::memcpy(&prefix, page.data(), sizeof(prefix));
  return ClaimsSlot(page) && prefix.version == kEncryptedSlotVersion;
}

// Without what is encrypted it is a plain header, which has a decoder that checks the other fields.
Result<SlotHeader> DecodeEncryptedSlotHeader(std::span<const std::byte, kSlotHeaderBytes> page) {
  KVT_RETURN_IF_ERROR(
      CheckHeaderPage(page, kMagic, kEncryptedSlotVersion, sizeof(SlotFields)));
  SlotFields f;
  std::memcpy(&f, page.data(), sizeof(f));
  if (f.encryption_algorithm != kEncryptionAes256Gcm) {
    return BadField("encryption_algorithm", f.encryption_algorithm);
  }
  if (f.key_id == 0) return BadField("encryption_key_id", 0);
  if (f.has_parent > 1) return BadField("has_parent", f.has_parent);
  f.prefix.version = kSlotFormatVersion;
  f.prefix.checksum = 0;
  f.encryption_algorithm = 0;
  f.has_parent = 0;
  f.hash = {};
  f.parent = {};
  f.payload_checksum = {};
  f.key_id = 0;
  f.nonce = {};
  f.payload_tag = {};
  f.header_tag = {};
  std::array<std::byte, kSlotHeaderBytes> plain;
  SealHeaderPage(std::as_bytes(std::span(&f, 1)), plain);
  return DecodeSlotHeader(plain);
}

}  // namespace kvtier
