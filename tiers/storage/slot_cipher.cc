// SPDX-License-Identifier: Apache-2.0
#include "tiers/storage/slot_cipher.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/bytes.h"
#include "tiers/storage/header_page.h"
#include "tiers/storage/slot_header.h"

namespace kvtier {
namespace {

using Fields = SlotFields;
// Hash, parent and payload checksum.
constexpr size_t kHashesBytes = sizeof(Fields::hash) + sizeof(Fields::parent);
using Secrets = std::array<std::byte, kHashesBytes + sizeof(Fields::payload_checksum)>;
using Direction = AesAlgorithms::Direction;

constexpr uint32_t kSecondsPerHour = 3600;

// A parent's bytes differ from those of the same hash as a block's own.
constexpr std::array<std::byte, 16> kHashTweak{std::byte{1}};
constexpr std::array<std::byte, 16> kParentTweak{std::byte{2}};

Secrets SecretsOf(const Fields& fields) {
  Secrets secrets;
  std::memcpy(secrets.data(), &fields.hash, sizeof(fields.hash));
  std::memcpy(secrets.data() + sizeof(fields.hash), &fields.parent, sizeof(fields.parent));
  std::memcpy(secrets.data() + kHashesBytes, &fields.payload_checksum,
              sizeof(fields.payload_checksum));
  return secrets;
}

void PutSecrets(const Secrets& secrets, Fields* fields) {
  std::memcpy(&fields->hash, secrets.data(), sizeof(fields->hash));
  std::memcpy(&fields->parent, secrets.data() + sizeof(fields->hash), sizeof(fields->parent));
  std::memcpy(&fields->payload_checksum, secrets.data() + kHashesBytes,
              sizeof(fields->payload_checksum));
}

// Everything that stands in the open.
Fields AssociatedData(const Fields& fields) {
  Fields associated = fields;
  associated.prefix.checksum = 0;
  PutSecrets(Secrets{}, &associated);
  associated.payload_tag = {};
  associated.header_tag = {};
  return associated;
}

// The associated data of token ids. The label keeps them apart from slots under the same key.
std::vector<std::byte> AssociatedData(std::string_view tenant, const BlockHash& hash) {
  ByteWriter associated;
  associated.WriteString("token ids");
  associated.WriteString(tenant);
  associated.WriteDigest(hash);
  return associated.Take();
}

struct SealedIds {
  std::span<std::byte> key;
  std::span<std::byte> nonce;
  std::span<std::byte> tag;
  std::span<std::byte> ids;
};

// REQUIRES: sealed.size() >= SlotCipher::kSealedIdsBytes.
SealedIds PartsOf(std::span<std::byte> sealed) {
  constexpr size_t kKey = sizeof(uint64_t), kNonce = sizeof(GcmNonce), kTag = sizeof(GcmTag);
  static_assert(kKey + kNonce + kTag == SlotCipher::kSealedIdsBytes);
  return {sealed.first(kKey), sealed.subspan(kKey, kNonce), sealed.subspan(kKey + kNonce, kTag),
          sealed.subspan(kKey + kNonce + kTag)};
}

std::span<const std::byte> BytesOf(const Fields& fields) {
  return std::as_bytes(std::span(&fields, 1));
}

std::string_view TenantOf(const Fields& fields) {
  return {fields.tenant, std::min<size_t>(fields.tenant_bytes, sizeof(fields.tenant))};
}

uint32_t HourOf(const Fields& fields) { return fields.created_s / kSecondsPerHour; }

DecryptOutcome Damaged(std::span<std::byte, kSlotHeaderBytes> page) {
  std::ranges::fill(page, std::byte{0});
  return DecryptOutcome::kDamaged;
}

tl::unexpected<Error> Failed() {
  return MakeError(ErrorCode::kIoError, "encryption", "OpenSSL failed");
}

// `payload` is empty for a header alone.
DecryptOutcome DecryptParts(const AesAlgorithms& aes, const FindSlotKey& find,
                            std::span<std::byte, kSlotHeaderBytes> page,
                            std::span<std::byte> payload, bool with_payload) {
  if (!DecodeEncryptedSlotHeader(page)) return Damaged(page);
  Fields fields;
  std::memcpy(&fields, page.data(), sizeof(fields));
  if (with_payload && fields.payload_bytes > payload.size()) return Damaged(page);
  const std::optional<SecretKey> key = find(TenantOf(fields), HourOf(fields), fields.key_id);
  if (!key) return DecryptOutcome::kNoKey;
  AesAlgorithms::Gcm gcm = aes.WithKey(Direction::kDecrypt, key->gcm());
  const Fields associated = AssociatedData(fields);
  Secrets plain;
  if (!gcm.Decrypt(fields.nonce, BytesOf(associated), SecretsOf(fields), plain,
                   fields.header_tag)) {
    return Damaged(page);
  }
  if (with_payload) {
    const auto bytes = payload.first(fields.payload_bytes);
    if (!gcm.Decrypt(NonceAfter(fields.nonce), BytesOf(associated), bytes, bytes,
                     fields.payload_tag)) {
      return Damaged(page);
    }
  }
  PutSecrets(plain, &fields);
  fields.prefix.version = kSlotFormatVersion;
  fields.prefix.checksum = 0;
  fields.encryption_algorithm = 0;
  fields.key_id = 0;
  fields.nonce = {};
  fields.payload_tag = {};
  fields.header_tag = {};
  SealHeaderPage(BytesOf(fields), page);
  return DecryptOutcome::kDecrypted;
}

}  // namespace

Status EncryptSlot(const AesAlgorithms& aes, const ObtainSlotKey& obtain,
                   std::span<const std::byte> slot, std::span<std::byte> out) {
  KVT_CHECK(slot.size() > kSlotHeaderBytes && out.size() == slot.size());
  Fields fields;
  std::memcpy(&fields, slot.data(), sizeof(fields));
  const auto payload = slot.subspan(kSlotHeaderBytes);
  if (fields.prefix.version != kSlotFormatVersion ||
      fields.payload_bytes > slot.size() - kSlotHeaderBytes) {
    return MakeError(ErrorCode::kCorrupt, "slot_header", "a slot in host memory was damaged");
  }
  KVT_ASSIGN_OR_RETURN(const SlotKey key, obtain(TenantOf(fields), HourOf(fields)));
  AesAlgorithms::Gcm gcm = aes.WithKey(Direction::kEncrypt, key.key.gcm());

  const Secrets plain = SecretsOf(fields);
  fields.prefix.version = kEncryptedSlotVersion;
  fields.prefix.checksum = 0;
  fields.encryption_algorithm = kEncryptionAes256Gcm;
  fields.key_id = key.id;
  fields.nonce = key.nonce;
  const Fields associated = AssociatedData(fields);
  Secrets secrets;
  const auto out_payload = out.subspan(kSlotHeaderBytes);
  const bool encrypted =
      gcm.Encrypt(key.nonce, BytesOf(associated), plain, secrets, &fields.header_tag) &&
      gcm.Encrypt(NonceAfter(key.nonce), BytesOf(associated), payload.first(fields.payload_bytes),
                  out_payload.first(fields.payload_bytes), &fields.payload_tag);
  if (!encrypted) return Failed();
  // The rest of the slot is not the payload's, and may be an earlier one's.
  std::ranges::fill(out_payload.subspan(fields.payload_bytes), std::byte{0});
  PutSecrets(secrets, &fields);
  SealHeaderPage(BytesOf(fields), out.first<kSlotHeaderBytes>());
  return {};
}

DecryptOutcome DecryptSlot(const AesAlgorithms& aes, const FindSlotKey& find,
                           std::span<std::byte> slot) {
  KVT_CHECK(slot.size() > kSlotHeaderBytes);
  return DecryptParts(aes, find, slot.first<kSlotHeaderBytes>(), slot.subspan(kSlotHeaderBytes),
                      true);
}

Result<std::unique_ptr<SlotCipher>> SlotCipher::Create(std::unique_ptr<KeyRing> keys) {
  KVT_ASSIGN_OR_RETURN(AesAlgorithms aes, AesAlgorithms::Fetch());
  return std::unique_ptr<SlotCipher>(new SlotCipher(std::move(keys), std::move(aes)));
}

Status SlotCipher::Encrypt(std::span<const std::byte> slot, std::span<std::byte> out) const {
  const auto obtain = [this](std::string_view tenant, uint32_t hour) {
    return keys_->ForSlot(tenant, hour);
  };
  return EncryptSlot(aes_, obtain, slot, out);
}

// The id alone says which key it is.
FindSlotKey SlotCipher::Find() const {
  return [this](std::string_view tenant, uint32_t, uint64_t id) { return keys_->Find(tenant, id); };
}

DecryptOutcome SlotCipher::Decrypt(std::span<std::byte> slot) const {
  return DecryptSlot(aes_, Find(), slot);
}

DecryptOutcome SlotCipher::DecryptHeader(std::span<std::byte, kSlotHeaderBytes> page) const {
  return DecryptParts(aes_, Find(), page, {}, false);
}

Status SlotCipher::EncryptHashes(std::string_view tenant, BlockHash* hash,
                                 BlockHash* parent) const {
  KVT_ASSIGN_OR_RETURN(const SecretKey key, keys_->ForIndex(tenant));
  if (!Xts(Direction::kEncrypt, key, hash, parent)) return Failed();
  return {};
}

bool SlotCipher::DecryptHashes(std::string_view tenant, BlockHash* hash, BlockHash* parent) const {
  const std::optional<SecretKey> key = keys_->FindForIndex(tenant);
  return key.has_value() && Xts(Direction::kDecrypt, *key, hash, parent);
}

Result<std::vector<std::byte>> SlotCipher::EncryptIds(std::string_view tenant, uint32_t hour,
                                                      const BlockHash& hash,
                                                      std::span<const std::byte> ids) const {
  KVT_ASSIGN_OR_RETURN(const SlotKey key, keys_->ForSlot(tenant, hour));
  const std::vector<std::byte> associated = AssociatedData(tenant, hash);
  std::vector<std::byte> sealed(kSealedIdsBytes + ids.size());
  const SealedIds parts = PartsOf(std::span(sealed));
  GcmTag tag{};
  AesAlgorithms::Gcm gcm = aes_.WithKey(Direction::kEncrypt, key.key.gcm());
  if (!gcm.Encrypt(key.nonce, associated, ids, parts.ids, &tag)) return Failed();
  std::memcpy(parts.key.data(), &key.id, sizeof(key.id));
  std::ranges::copy(key.nonce, parts.nonce.begin());
  std::ranges::copy(tag, parts.tag.begin());
  return sealed;
}

std::vector<std::byte> SlotCipher::DecryptIds(std::string_view tenant, const BlockHash& hash,
                                              std::span<const std::byte> sealed) const {
  if (sealed.size() <= kSealedIdsBytes) return {};
  std::vector<std::byte> copy(sealed.begin(), sealed.end());
  const SealedIds parts = PartsOf(std::span(copy));
  uint64_t id = 0;
  std::memcpy(&id, parts.key.data(), sizeof(id));
  const std::optional<SecretKey> key = keys_->Find(tenant, id);
  if (!key) return {};
  GcmNonce nonce{};
  GcmTag tag{};
  std::ranges::copy(parts.nonce, nonce.begin());
  std::ranges::copy(parts.tag, tag.begin());
  std::vector<std::byte> ids(parts.ids.size());
  AesAlgorithms::Gcm gcm = aes_.WithKey(Direction::kDecrypt, key->gcm());
  if (!gcm.Decrypt(nonce, AssociatedData(tenant, hash), parts.ids, ids, tag)) return {};
  return ids;
}

bool SlotCipher::Xts(Direction direction, const SecretKey& key, BlockHash* hash,
                     BlockHash* parent) const {
  const auto change = [&](BlockHash* bytes, std::span<const std::byte, 16> tweak) {
    const BlockHash before = *bytes;
    return aes_.Xts(direction, key.xts(), tweak, std::as_bytes(std::span(before.bytes)),
                    std::as_writable_bytes(std::span(bytes->bytes)));
  };
  return change(hash, kHashTweak) && (parent == nullptr || change(parent, kParentTweak));
}

}  // namespace kvtier
