// SPDX-License-Identifier: Apache-2.0
// Keys and values of the persistent index as bytes. Integers are little-endian, except that the
// number in a key is big-endian, so that iteration yields meta, budget, spaces, records by space,
// erasures, tokens by space, distrusted spaces.
//
//   kind    key                 value
//   meta    01                  version 1, file_set 16, epoch 8, checksum 4
//   budget  02                  version 1, day 4, spent_bytes 8, checksum 4
//   space   03 space 4          version 1, block_bytes 8, model 32, length 2, tenant, checksum 4
//   record  04 space 4 hash 32  version 1, flags 1, tokens 2, generation 4, address 8,
//                               depth 4, created_s 4, last_use_s 4, parent 32, pinned_until_s 4,
//                               checksum 4
//   erasure 05 number 4         version 1, end_hour 4, begun_s 4, length 2, tenant, checksum 4
//   tokens  06 space 4 hash 32  version 1, ids, checksum 4
//   distrust 07 space 4         version 1, checksum 4
//
// Flags: bit 0 retention `extended`, bit 1 payload verified, bit 2 the parent is known (else 0).
//
// The checksum is the lower half of the xxh3-64 of the key and the value before it: a value under
// another's key is as bad as a flipped one.
//
// Pure functions; any thread. Decoders take any bytes: what they accept is exactly what an encoder
// produces. Errors: kCorrupt "index_key", "index_value", "index_version".
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/digest.h"
#include "base/result.h"
#include "tiers/index/index.h"
#include "tiers/storage/superblock.h"

namespace kvtier {

// Raised when any encoding below changes; an index of another version is rebuilt from the headers.
inline constexpr uint8_t kIndexVersion = 4;

// Which disk files an index describes, and as of when.
struct IndexMeta {
  Digest128 file_set;  // the drive set's uuid
  uint64_t epoch = 0;  // the set's start in which the index was last opened
  // By drive: the last such start that had the drive; 0: the index knows nothing of it.
  std::array<uint64_t, kMaxDrives> covers{};
  friend bool operator==(const IndexMeta&, const IndexMeta&) = default;
};

// Key kinds, in the order of iteration.
enum class IndexKeyKind : uint8_t {
  kMeta = 1,
  kBudget = 2,
  kNamespace = 3,
  kRecord = 4,
  kErasure = 5,
  kTokens = 6,
  kDistrust = 7
};

// An empty key or an unknown kind is an error.
[[nodiscard]] Result<IndexKeyKind> DecodeKeyKind(std::span<const std::byte> key);

using SingleKey = std::array<std::byte, 1>;
using NamespaceKey = std::array<std::byte, 1 + 4>;
using RecordKey = std::array<std::byte, 1 + 4 + 32>;
using ErasureKey = std::array<std::byte, 1 + 4>;
using RecordValue = std::array<std::byte, 68>;

// The limit for the ids of one block: those of the largest, and the bytes that encryption adds.
inline constexpr size_t kMaxTokensBytes = 1024 * sizeof(uint32_t) + 64;

inline constexpr SingleKey kMetaKey{std::byte{1}};
inline constexpr SingleKey kBudgetKey{std::byte{2}};
[[nodiscard]] NamespaceKey EncodeNamespaceKey(NamespaceId namespace_id);
[[nodiscard]] RecordKey EncodeRecordKey(const BlockKey& key);
[[nodiscard]] ErasureKey EncodeErasureKey(uint32_t number);
[[nodiscard]] RecordKey EncodeTokensKey(const BlockKey& key);

[[nodiscard]] std::vector<std::byte> EncodeMeta(const IndexMeta& meta);
[[nodiscard]] Result<IndexMeta> DecodeMeta(std::span<const std::byte> value);

[[nodiscard]] std::vector<std::byte> EncodeBudget(const WriteBudgetState& budget);
[[nodiscard]] Result<WriteBudgetState> DecodeBudget(std::span<const std::byte> value);

// REQUIRES: identity.tenant.size() <= kMaxTenantBytes.
[[nodiscard]] std::vector<std::byte> EncodeNamespace(NamespaceId namespace_id,
                                                     const NamespaceIdentity& identity);
[[nodiscard]] Result<std::pair<NamespaceId, NamespaceIdentity>> DecodeNamespace(
    std::span<const std::byte> key, std::span<const std::byte> value);

// `key` is EncodeRecordKey(record.key).
[[nodiscard]] RecordValue EncodeRecord(const RecordKey& key, const IndexRecord& record);
[[nodiscard]] Result<IndexRecord> DecodeRecord(std::span<const std::byte> key,
                                               std::span<const std::byte> value);

// REQUIRES: erasure.tenant.size() <= kMaxTenantBytes.
[[nodiscard]] std::vector<std::byte> EncodeErasure(const ErasureRecord& erasure);
[[nodiscard]] Result<ErasureRecord> DecodeErasure(std::span<const std::byte> key,
                                                  std::span<const std::byte> value);

// `key` is EncodeTokensKey(record.key). REQUIRES: record.ids.size() <= kMaxTokensBytes, and some.
[[nodiscard]] std::vector<std::byte> EncodeTokens(const RecordKey& key, const TokensRecord& record);
[[nodiscard]] Result<TokensRecord> DecodeTokens(std::span<const std::byte> key,
                                                std::span<const std::byte> value);

// The key alone says which space is distrusted.
[[nodiscard]] NamespaceKey EncodeDistrustKey(NamespaceId namespace_id);
[[nodiscard]] std::vector<std::byte> EncodeDistrust(NamespaceId namespace_id);
[[nodiscard]] Result<NamespaceId> DecodeDistrust(std::span<const std::byte> key,
                                                 std::span<const std::byte> value);

// Ids as TokensRecord has them, and back; nothing if the bytes are no such.
[[nodiscard]] std::vector<std::byte> BytesOfTokenIds(std::span<const uint32_t> ids);
[[nodiscard]] std::optional<std::vector<uint32_t>> TokenIdsOf(std::span<const std::byte> bytes);

}  // namespace kvtier
