// SPDX-License-Identifier: Apache-2.0
#include "tiers/index/index_codec.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/bytes.h"
#include "base/digest.h"
#include "base/result.h"
#include "tiers/storage/block_file.h"

namespace kvtier {
namespace {

using Bytes = std::span<const std::byte>;

constexpr size_t kChecksumBytes = sizeof(uint32_t);
// The longest are a block's token ids.
constexpr size_t kMaxCheckedBytes = sizeof(RecordKey) + 1 + kMaxTokensBytes;

// The key is part of the sum, so that a value under another block's key is found to be wrong.
uint32_t Checksum(Bytes key, Bytes body) {
  std::array<std::byte, kMaxCheckedBytes> joined;
  KVT_CHECK(key.size() + body.size() <= joined.size());
  std::memcpy(joined.data(), key.data(), key.size());
  std::memcpy(joined.data() + key.size(), body.data(), body.size());
  return static_cast<uint32_t>(ChecksumHeader(std::span(joined).first(key.size() + body.size())));
}

tl::unexpected<Error> BadKey() {
  return MakeError(ErrorCode::kCorrupt, "index_key", "malformed key in the index");
}

tl::unexpected<Error> BadValue() {
  return MakeError(ErrorCode::kCorrupt, "index_value", "malformed value in the index");
}

std::vector<std::byte> Seal(Bytes key, ByteWriter* body) {
  body->Write(Checksum(key, body->data()));
  return body->Take();
}

// The fields between version and checksum, both of which have been checked.
Result<Bytes> Unseal(Bytes key, Bytes value) {
  if (value.size() < 1 + kChecksumBytes ||
      key.size() + value.size() > kMaxCheckedBytes + kChecksumBytes) {
    return BadValue();
  }
  const Bytes body = value.first(value.size() - kChecksumBytes);
  uint32_t checksum;
  std::memcpy(&checksum, value.data() + body.size(), sizeof(checksum));
  if (checksum != Checksum(key, body)) return BadValue();
  const auto version = static_cast<uint8_t>(body[0]);
  if (version != kIndexVersion) {
    return MakeError(ErrorCode::kCorrupt, "index_version",
                     "index version " + std::to_string(version) + ", this program reads " +
                         std::to_string(kIndexVersion));
  }
  return body.subspan(1);
}

// Keys compare as bytes in RocksDB: big-endian numbers keep a namespace's records together and the
// namespaces in the order of their numbers.
void PutBigEndian(uint32_t value, std::byte* out) {
  for (int i = 0; i < 4; ++i) out[i] = static_cast<std::byte>(value >> (24 - 8 * i));
}

uint32_t GetBigEndian(const std::byte* in) {
  uint32_t value = 0;
  for (int i = 0; i < 4; ++i) value = value << 8 | static_cast<uint8_t>(in[i]);
  return value;
}

// True if `key` has the kind and the size of `Key`.
template <typename Key>
bool IsKey(Bytes key, IndexKeyKind kind) {
  return key.size() == sizeof(Key) && key[0] == static_cast<std::byte>(kind);
}

RecordKey EncodeBlockKey(IndexKeyKind kind, const BlockKey& block) {
  RecordKey key{static_cast<std::byte>(kind)};
  PutBigEndian(block.namespace_id.value, &key[1]);
  std::memcpy(&key[5], block.hash.bytes.data(), block.hash.bytes.size());
  return key;
}

constexpr uint8_t kFlagExtended = 1;
constexpr uint8_t kFlagVerified = 2;
constexpr uint8_t kFlagParent = 4;

uint8_t EncodeFlags(const IndexRecord& record) {
  const int extended = record.retention == RetentionClass::kExtended ? kFlagExtended : 0;
  const int verified = record.verified ? kFlagVerified : 0;
  return static_cast<uint8_t>(extended | verified | (record.parent ? kFlagParent : 0));
}

template <typename T>
void Put(std::byte*& out, T value) {
  std::memcpy(out, &value, sizeof(value));
  out += sizeof(value);
}

template <typename T>
T Take(const std::byte*& in) {
  T value;
  std::memcpy(&value, in, sizeof(value));
  in += sizeof(value);
  return value;
}

}  // namespace

Result<IndexKeyKind> DecodeKeyKind(Bytes key) {
  if (key.empty()) return BadKey();
  const auto kind = static_cast<IndexKeyKind>(key[0]);
  if (kind < IndexKeyKind::kMeta || kind > IndexKeyKind::kDistrust) return BadKey();
  return kind;
}

NamespaceKey EncodeNamespaceKey(NamespaceId namespace_id) {
  NamespaceKey key{static_cast<std::byte>(IndexKeyKind::kNamespace)};
  PutBigEndian(namespace_id.value, &key[1]);
  return key;
}

RecordKey EncodeRecordKey(const BlockKey& block) {
  return EncodeBlockKey(IndexKeyKind::kRecord, block);
}

RecordKey EncodeTokensKey(const BlockKey& block) {
  return EncodeBlockKey(IndexKeyKind::kTokens, block);
}

ErasureKey EncodeErasureKey(uint32_t number) {
  ErasureKey key{static_cast<std::byte>(IndexKeyKind::kErasure)};
  PutBigEndian(number, &key[1]);
  return key;
}

std::vector<std::byte> EncodeMeta(const IndexMeta& meta) {
  ByteWriter body;
  body.Write(kIndexVersion);
  body.WriteDigest(meta.file_set);
  body.Write(meta.epoch);
  for (const uint64_t epoch : meta.covers) body.Write(epoch);
  return Seal(kMetaKey, &body);
}

Result<IndexMeta> DecodeMeta(Bytes value) {
  KVT_ASSIGN_OR_RETURN(const Bytes body, Unseal(kMetaKey, value));
  ByteReader reader(body);
  IndexMeta meta;
  meta.file_set = reader.ReadDigest<16>();
  meta.epoch = reader.Read<uint64_t>();
  for (uint64_t& epoch : meta.covers) epoch = reader.Read<uint64_t>();
  if (!reader.AtEnd()) return BadValue();
  return meta;
}

std::vector<std::byte> EncodeBudget(const WriteBudgetState& budget) {
  ByteWriter body;
  body.Write(kIndexVersion);
  body.Write(budget.day);
  body.Write(budget.spent_bytes);
  return Seal(kBudgetKey, &body);
}

Result<WriteBudgetState> DecodeBudget(Bytes value) {
  KVT_ASSIGN_OR_RETURN(const Bytes body, Unseal(kBudgetKey, value));
  ByteReader reader(body);
  WriteBudgetState budget;
  budget.day = reader.Read<uint32_t>();
  budget.spent_bytes = reader.Read<uint64_t>();
  if (!reader.AtEnd()) return BadValue();
  return budget;
}

std::vector<std::byte> EncodeNamespace(NamespaceId namespace_id,
                                       const NamespaceIdentity& identity) {
  KVT_CHECK(identity.tenant.size() <= kMaxTenantBytes);
  ByteWriter body;
  body.Write(kIndexVersion);
  body.Write(identity.block_bytes);
  body.WriteDigest(identity.model);
  body.WriteString(identity.tenant);
  return Seal(EncodeNamespaceKey(namespace_id), &body);
}

Result<std::pair<NamespaceId, NamespaceIdentity>> DecodeNamespace(Bytes key, Bytes value) {
  if (!IsKey<NamespaceKey>(key, IndexKeyKind::kNamespace)) return BadKey();
  KVT_ASSIGN_OR_RETURN(const Bytes body, Unseal(key, value));
  ByteReader reader(body);
  NamespaceIdentity identity;
  identity.block_bytes = reader.Read<uint64_t>();
  identity.model = reader.ReadDigest<32>();
  identity.tenant = reader.ReadString(kMaxTenantBytes);
  if (!reader.AtEnd() || identity.block_bytes == 0) return BadValue();
  return std::pair(NamespaceId(GetBigEndian(&key[1])), std::move(identity));
}

// Written out by hand: encoded on every persisted block, decoded a million times before the daemon
// can serve.
RecordValue EncodeRecord(const RecordKey& key, const IndexRecord& record) {
  RecordValue value;
  std::byte* out = value.data();
  Put(out, kIndexVersion);
  Put(out, EncodeFlags(record));
  Put(out, record.tokens);
  Put(out, record.generation);
  Put(out, record.location.offset);
  Put(out, record.depth);
  Put(out, record.created_s);
  Put(out, record.last_use_s);
  Put(out, record.parent.value_or(BlockHash{}));
  Put(out, record.pinned_until_s);
  Put(out, Checksum(key, std::span(value).first(value.size() - kChecksumBytes)));
  KVT_CHECK(out == value.data() + value.size());
  return value;
}

Result<IndexRecord> DecodeRecord(Bytes key, Bytes value) {
  if (!IsKey<RecordKey>(key, IndexKeyKind::kRecord)) return BadKey();
  if (value.size() != sizeof(RecordValue)) return BadValue();
  KVT_ASSIGN_OR_RETURN(const Bytes body, Unseal(key, value));
  IndexRecord record;
  record.key.namespace_id = NamespaceId(GetBigEndian(&key[1]));
  std::memcpy(record.key.hash.bytes.data(), &key[5], record.key.hash.bytes.size());
  const std::byte* in = body.data();
  const auto flags = Take<uint8_t>(in);
  record.tokens = Take<uint16_t>(in);
  record.generation = Take<uint32_t>(in);
  record.location.offset = Take<uint64_t>(in);
  record.depth = Take<uint32_t>(in);
  record.created_s = Take<uint32_t>(in);
  record.last_use_s = Take<uint32_t>(in);
  const auto parent = Take<BlockHash>(in);
  record.pinned_until_s = Take<uint32_t>(in);
  // The checksum was good, but a later program may have set what this one does not know.
  if ((flags & ~(kFlagExtended | kFlagVerified | kFlagParent)) != 0) return BadValue();
  if (record.location.offset % kIoAlignment != 0) return BadValue();
  record.retention =
      (flags & kFlagExtended) != 0 ? RetentionClass::kExtended : RetentionClass::kMemory;
  record.verified = (flags & kFlagVerified) != 0;
  if ((flags & kFlagParent) != 0) {
    record.parent = parent;
  } else if (parent != BlockHash{}) {
    return BadValue();
  }
  return record;
}

std::vector<std::byte> EncodeErasure(const ErasureRecord& erasure) {
  KVT_CHECK(erasure.tenant.size() <= kMaxTenantBytes);
  ByteWriter body;
  body.Write(kIndexVersion);
  body.Write(erasure.end_hour);
  body.Write(erasure.begun_s);
  body.WriteString(erasure.tenant);
  return Seal(EncodeErasureKey(erasure.number), &body);
}

Result<ErasureRecord> DecodeErasure(Bytes key, Bytes value) {
  if (!IsKey<ErasureKey>(key, IndexKeyKind::kErasure)) return BadKey();
  KVT_ASSIGN_OR_RETURN(const Bytes body, Unseal(key, value));
  ByteReader reader(body);
  ErasureRecord erasure;
  erasure.number = GetBigEndian(&key[1]);
  erasure.end_hour = reader.Read<uint32_t>();
  erasure.begun_s = reader.Read<uint32_t>();
  erasure.tenant = reader.ReadString(kMaxTenantBytes);
  if (!reader.AtEnd()) return BadValue();
  return erasure;
}

std::vector<std::byte> EncodeTokens(const RecordKey& key, const TokensRecord& record) {
  KVT_CHECK(!record.ids.empty() && record.ids.size() <= kMaxTokensBytes);
  ByteWriter body;
  body.Write(kIndexVersion);
  body.WriteBytes(record.ids);
  return Seal(key, &body);
}

Result<TokensRecord> DecodeTokens(Bytes key, Bytes value) {
  if (!IsKey<RecordKey>(key, IndexKeyKind::kTokens)) return BadKey();
  KVT_ASSIGN_OR_RETURN(const Bytes body, Unseal(key, value));
  if (body.empty() || body.size() > kMaxTokensBytes) return BadValue();
  TokensRecord record;
  record.key.namespace_id = NamespaceId(GetBigEndian(&key[1]));
  std::memcpy(record.key.hash.bytes.data(), &key[5], record.key.hash.bytes.size());
  record.ids.assign(body.begin(), body.end());
  return record;
}

NamespaceKey EncodeDistrustKey(NamespaceId namespace_id) {
  NamespaceKey key{static_cast<std::byte>(IndexKeyKind::kDistrust)};
  PutBigEndian(namespace_id.value, &key[1]);
  return key;
}

std::vector<std::byte> EncodeDistrust(NamespaceId namespace_id) {
  ByteWriter body;
  body.Write(kIndexVersion);
  return Seal(EncodeDistrustKey(namespace_id), &body);
}

Result<NamespaceId> DecodeDistrust(Bytes key, Bytes value) {
  if (!IsKey<NamespaceKey>(key, IndexKeyKind::kDistrust)) return BadKey();
  KVT_ASSIGN_OR_RETURN(const Bytes body, Unseal(key, value));
  if (!body.empty()) return BadValue();
  return NamespaceId(GetBigEndian(&key[1]));
}

std::vector<std::byte> BytesOfTokenIds(std::span<const uint32_t> ids) {
  const Bytes bytes = std::as_bytes(ids);
  return {bytes.begin(), bytes.end()};
}

std::optional<std::vector<uint32_t>> TokenIdsOf(Bytes bytes) {
  if (bytes.empty() || bytes.size() % sizeof(uint32_t) != 0) return std::nullopt;
  std::vector<uint32_t> ids(bytes.size() / sizeof(uint32_t));
  std::memcpy(ids.data(), bytes.data(), bytes.size());
  return ids;
}

}  // namespace kvtier
