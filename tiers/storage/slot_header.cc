// SPDX-License-Identifier: Apache-2.0
#include "tiers/storage/slot_header.h"

#include <cstring>
#include <string_view>

#include "base/digest.h"
#include "base/result.h"
#include "tiers/storage/block_file.h"
#include "tiers/storage/header_page.h"

namespace kvtier {
namespace {

constexpr std::string_view kMagic = "KVTSLOT1";
static_assert(kSlotHeaderBytes == kHeaderPageBytes && kSlotHeaderBytes == kIoAlignment);

template <typename T>
bool IsZero(const T& field) {
  return IsAllZero(std::as_bytes(std::span(&field, 1)));
}

// An address of all ones belongs to a header that was sealed in host memory and never placed on
// disk. Each field has one encoding only: unused fields must be zero, so that two headers of the
// same content are the same bytes.
Status CheckFields(const SlotFields& f) {
  const bool aligned = f.address % kIoAlignment == 0;
  if (!aligned && f.address != DiskLocation{}.offset) return BadField("address", f.address);
  if (f.payload_bytes == 0 || f.payload_bytes > kMaxPayloadBytes) {
    return BadField("payload_bytes", f.payload_bytes);
  }
  if (f.retention > static_cast<uint8_t>(RetentionClass::kExtended)) {
    return BadField("retention", f.retention);
  }
  if (f.has_parent > 1) return BadField("has_parent", f.has_parent);
  if (f.has_parent == 0 && !IsZero(f.parent)) return BadField("parent", 1);
  if (f.tenant_bytes > kMaxTenantBytes) return BadField("tenant_bytes", f.tenant_bytes);
  if (!IsAllZero(std::as_bytes(std::span(f.tenant)).subspan(f.tenant_bytes))) {
    return BadField("tenant", f.tenant_bytes);
  }
  if (!IsZero(f.zero)) return BadField("zero", 1);
  if (f.encryption_algorithm != 0) {
    return BadField("encryption_algorithm", f.encryption_algorithm);
  }
  if (f.key_id != 0) return BadField("encryption_key_id", f.key_id);
  if (!IsZero(f.nonce)) return BadField("encryption_nonce", 1);
  if (!IsZero(f.payload_tag)) return BadField("encryption_tag", 1);
  if (!IsZero(f.zero_end)) return BadField("zero_end", 1);
  if (!IsZero(f.header_tag)) return BadField("header_tag", 1);
  return {};
}

}  // namespace

void EncodeSlotHeader(const SlotHeader& header, std::span<std::byte, kSlotHeaderBytes> out) {
  KVT_CHECK(header.tenant.size() <= kMaxTenantBytes);
  KVT_CHECK(header.payload_bytes > 0 && header.payload_bytes <= kMaxPayloadBytes);
  SlotFields f{};
  std::memcpy(f.prefix.magic, kMagic.data(), kMagic.size());
  f.prefix.version = kSlotFormatVersion;
  f.address = header.address.offset;
  f.payload_bytes = header.payload_bytes;
  f.generation = header.generation;
  f.depth = header.depth;
  f.created_s = header.created_s;
  f.last_use_s = header.last_use_s;
  f.tokens = header.tokens;
  f.retention = static_cast<uint8_t>(header.retention);
  f.has_parent = header.parent.has_value() ? 1 : 0;
  f.tenant_bytes = static_cast<uint8_t>(header.tenant.size());
  f.hash = header.hash;
  if (header.parent) f.parent = *header.parent;
  f.model = header.model;
  f.payload_checksum = header.payload_checksum;
  std::memcpy(f.tenant, header.tenant.data(), header.tenant.size());
  SealHeaderPage(std::as_bytes(std::span(&f, 1)), out);
}

void PlaceSlotHeader(const SlotPlacement& placement,
                     std::span<std::byte, kSlotHeaderBytes> header) {
  SlotFields f;
  std::memcpy(&f, header.data(), sizeof(f));
  KVT_CHECK(std::string_view(f.prefix.magic, sizeof(f.prefix.magic)) == kMagic);
  // The checksum is made over a page whose checksum field is zero.
  f.prefix.checksum = 0;
  f.address = placement.address.offset;
  f.generation = placement.generation;
  f.created_s = placement.created_s;
  f.last_use_s = placement.last_use_s;
  SealHeaderPage(std::as_bytes(std::span(&f, 1)), header);
}

bool HeaderNames(const NamespaceIdentity& identity, const BlockHash& hash, uint16_t tokens,
                 std::span<const std::byte, kSlotHeaderBytes> in) {
  static_assert(sizeof(SlotFields) <= kSlotIdentityBytes);
  KVT_CHECK(identity.tenant.size() <= kMaxTenantBytes);
  SlotFields f;
  std::memcpy(&f, in.data(), sizeof(f));
  // The lengths of the tenants are compared before their bytes: the header's own length may exceed
  // the field, but then it differs from the expected one, which was checked above.
  return std::string_view(f.prefix.magic, sizeof(f.prefix.magic)) == kMagic &&
         f.prefix.version == kSlotFormatVersion && f.hash == hash && f.model == identity.model &&
         f.tenant_bytes == identity.tenant.size() &&
         std::memcmp(f.tenant, identity.tenant.data(), f.tenant_bytes) == 0 &&
         f.payload_bytes == identity.block_bytes && f.tokens == tokens;
}

Result<SlotHeader> DecodeSlotHeader(std::span<const std::byte, kSlotHeaderBytes> in) {
  KVT_RETURN_IF_ERROR(CheckHeaderPage(in, kMagic, kSlotFormatVersion, sizeof(SlotFields)));
  SlotFields f;
  std::memcpy(&f, in.data(), sizeof(f));
  KVT_RETURN_IF_ERROR(CheckFields(f));
  SlotHeader header;
  header.tenant.assign(f.tenant, f.tenant_bytes);
  header.model = f.model;
  header.hash = f.hash;
  if (f.has_parent == 1) header.parent = f.parent;
  header.address = DiskLocation{f.address};
  header.generation = f.generation;
  header.payload_bytes = f.payload_bytes;
  header.payload_checksum = f.payload_checksum;
  header.tokens = f.tokens;
  header.depth = f.depth;
  header.retention = static_cast<RetentionClass>(f.retention);
  header.created_s = f.created_s;
  header.last_use_s = f.last_use_s;
  return header;
}

namespace {

// The size is compared too, so that the checksum is made over as many bytes as the writer had.
bool SameBlock(const SlotExpectation& expected, const SlotHeader& header) {
  return header.hash == expected.hash && header.model == expected.identity.model &&
         header.tenant == expected.identity.tenant &&
         header.payload_bytes == expected.identity.block_bytes && header.tokens == expected.tokens;
}

}  // namespace

bool ClaimsSlot(std::span<const std::byte, kSlotHeaderBytes> page) {
  return std::memcmp(page.data(), kMagic.data(), kMagic.size()) == 0;
}

bool ClaimsEncryptedSlot(std::span<const std::byte, kSlotHeaderBytes> page) {
  HeaderPagePrefix prefix;
  std::memcpy(&prefix, page.data(), sizeof(prefix));
  return ClaimsSlot(page) && prefix.version == kEncryptedSlotVersion;
}

// Without its encrypted fields it is a plain header, which has a decoder that checks the other
// fields.
Result<SlotHeader> DecodeEncryptedSlotHeader(std::span<const std::byte, kSlotHeaderBytes> page) {
  KVT_RETURN_IF_ERROR(CheckHeaderPage(page, kMagic, kEncryptedSlotVersion, sizeof(SlotFields)));
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

SlotVerdict CheckDiskSlot(const SlotExpectation& expected, std::span<const std::byte> slot) {
  if (ClaimsEncryptedSlot(slot.first<kSlotHeaderBytes>())) return SlotVerdict::kErased;
  const Result<SlotHeader> header = DecodeSlotHeader(slot.first<kSlotHeaderBytes>());
  if (!header) return SlotVerdict::kCorrupt;
  if (!SameBlock(expected, *header) || header->address != expected.location ||
      header->generation != expected.generation) {
    return SlotVerdict::kIdentityMismatch;
  }
  if (expected.authenticated) return SlotVerdict::kGood;
  // The payload comes last: its checksum costs most and means nothing for a slot of another block.
  const auto payload = slot.subspan(kSlotHeaderBytes, expected.identity.block_bytes);
  return ChecksumPayload(payload) == header->payload_checksum ? SlotVerdict::kGood
                                                              : SlotVerdict::kCorrupt;
}

}  // namespace kvtier
