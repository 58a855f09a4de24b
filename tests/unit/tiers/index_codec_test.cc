// SPDX-License-Identifier: Apache-2.0
#include "tiers/index/index_codec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "base/digest.h"
#include "tests/fakes/derived_bytes.h"
#include "tests/fakes/seeded_random.h"

namespace kvtier {
namespace {

using Bytes = std::vector<std::byte>;

IndexRecord SomeRecord() {
  return IndexRecord{.key = {NamespaceId(0x01020304), TestHash(1, 2)},
                     .location = DiskLocation{0x123456789000},
                     .generation = 77,
                     .depth = 12345,
                     .created_s = 1'748'736'000,
                     .last_use_s = 1'748'736'111,
                     .tokens = 16,
                     .retention = RetentionClass::kExtended,
                     .parent = TestHash(1, 1)};
}

IndexMeta SomeMeta() {
  IndexMeta meta{.epoch = 0xFFFFFFFFFFFFFFFE};
  meta.file_set.bytes.fill(0xA7);
  return meta;
}

NamespaceIdentity SomeNamespace() {
  return {.tenant = "uid:1000", .model = TestHash(9, 9), .block_bytes = 2 << 20};
}

bool operator==(const IndexRecord& a, const IndexRecord& b) {
  return a.key == b.key && a.location == b.location && a.generation == b.generation &&
         a.depth == b.depth && a.created_s == b.created_s && a.last_use_s == b.last_use_s &&
         a.tokens == b.tokens && a.retention == b.retention && a.verified == b.verified &&
         a.parent == b.parent && a.pinned_until_s == b.pinned_until_s;
}

template <typename Array>
Bytes ToBytes(const Array& bytes) {
  return Bytes(bytes.begin(), bytes.end());
}

// Calls `decode(key, value)` with every single-byte change and every truncation of either, and
// with a byte more; none may be accepted. Every value of every byte is tried.
template <typename Decode>
void ExpectEveryChangeIsRejected(const Bytes& key, const Bytes& value, Decode decode) {
  ASSERT_TRUE(decode(key, value));
  for (size_t i = 0; i < key.size() + value.size(); ++i) {
    for (int change = 1; change < 256; ++change) {
      Bytes bad_key = key;
      Bytes bad_value = value;
      std::byte& byte = i < key.size() ? bad_key[i] : bad_value[i - key.size()];
      byte ^= static_cast<std::byte>(change);
      const auto decoded = decode(bad_key, bad_value);
      ASSERT_FALSE(decoded) << "byte " << i << " changed by " << change;
      ASSERT_EQ(decoded.error().code, ErrorCode::kCorrupt);
    }
  }
  for (size_t size = 0; size < value.size(); ++size) {
    ASSERT_FALSE(decode(key, Bytes(value.begin(), value.begin() + static_cast<long>(size))));
  }
  for (size_t size = 0; size < key.size(); ++size) {
    ASSERT_FALSE(decode(Bytes(key.begin(), key.begin() + static_cast<long>(size)), value));
  }
  Bytes longer = value;
  longer.push_back(std::byte{0});
  ASSERT_FALSE(decode(key, longer));
}

TEST(IndexCodecTest, RecordSurvivesTheRoundTrip) {
  const IndexRecord record = SomeRecord();
  const RecordKey key = EncodeRecordKey(record.key);
  const auto decoded = DecodeRecord(key, EncodeRecord(key, record));
  ASSERT_TRUE(decoded) << decoded.error().ToString();
  EXPECT_TRUE(*decoded == record);
}

TEST(IndexCodecTest, RandomRecordsSurviveTheRoundTrip) {
  SeededRandom random(1);
  for (int i = 0; i < 10'000; ++i) {
    const IndexRecord record{
        .key = {NamespaceId(static_cast<uint32_t>(random.Next())), TestHash(random.Next(), 0)},
        .location = DiskLocation{random.Below(uint64_t{1} << 52) * 4096},
        .generation = static_cast<uint32_t>(random.Next()),
        .depth = static_cast<uint32_t>(random.Next()),
        .created_s = static_cast<uint32_t>(random.Next()),
        .last_use_s = static_cast<uint32_t>(random.Next()),
        .tokens = static_cast<uint16_t>(random.Next()),
        .retention = random.Chance(0.5) ? RetentionClass::kMemory : RetentionClass::kExtended,
        .verified = random.Chance(0.5),
        .parent = random.Chance(0.5) ? std::optional(TestHash(random.Next(), 1)) : std::nullopt,
        .pinned_until_s = static_cast<uint32_t>(random.Next())};
    const RecordKey key = EncodeRecordKey(record.key);
    const auto decoded = DecodeRecord(key, EncodeRecord(key, record));
    ASSERT_TRUE(decoded && *decoded == record);
  }
}

TEST(IndexCodecTest, EveryFlippedByteOfARecordIsRejected) {
  const RecordKey key = EncodeRecordKey(SomeRecord().key);
  ExpectEveryChangeIsRejected(ToBytes(key), ToBytes(EncodeRecord(key, SomeRecord())),
                              [](const Bytes& k, const Bytes& v) { return DecodeRecord(k, v); });
}

TEST(IndexCodecTest, AValueUnderAnotherBlocksKeyIsRejected) {
  const IndexRecord record = SomeRecord();
  const RecordKey key = EncodeRecordKey(record.key);
  const RecordKey other = EncodeRecordKey({record.key.namespace_id, TestHash(1, 3)});
  EXPECT_FALSE(DecodeRecord(other, EncodeRecord(key, record)));
}

TEST(IndexCodecTest, ARecordThatCannotBeIsRejectedThoughItsChecksumHolds) {
  IndexRecord record = SomeRecord();
  const RecordKey key = EncodeRecordKey(record.key);
  record.location.offset += 1;
  EXPECT_FALSE(DecodeRecord(key, EncodeRecord(key, record)));
  record = SomeRecord();
  record.location = DiskLocation{};
  EXPECT_FALSE(DecodeRecord(key, EncodeRecord(key, record)));
}

TEST(IndexCodecTest, ABlockWithoutAParentSurvivesTheRoundTrip) {
  IndexRecord record = SomeRecord();
  record.parent.reset();
  const RecordKey key = EncodeRecordKey(record.key);
  const auto decoded = DecodeRecord(key, EncodeRecord(key, record));
  ASSERT_TRUE(decoded) << decoded.error().ToString();
  EXPECT_TRUE(*decoded == record);
}

TEST(IndexCodecTest, UnknownFlagsOfARecordAreRejectedThoughItsChecksumHolds) {
  IndexRecord record = SomeRecord();
  record.parent.reset();
  const RecordKey key = EncodeRecordKey(record.key);
  for (int bit = 0; bit < 8; ++bit) {
    RecordValue value = EncodeRecord(key, record);
    value[1] = static_cast<std::byte>(1 << bit);
    Bytes sealed = ToBytes(key);
    sealed.insert(sealed.end(), value.begin(), value.end() - 4);
    const auto checksum = static_cast<uint32_t>(ChecksumHeader(sealed));
    std::memcpy(value.end() - 4, &checksum, sizeof(checksum));
    EXPECT_EQ(DecodeRecord(key, value).has_value(), bit < 3) << "bit " << bit;
  }
}

TEST(IndexCodecTest, SpaceSurvivesTheRoundTripWithTheLongestTenant) {
  NamespaceIdentity identity = SomeNamespace();
  identity.tenant.assign(kMaxTenantBytes, 't');
  const NamespaceId namespace_id(42);
  const auto decoded =
      DecodeNamespace(EncodeNamespaceKey(namespace_id), EncodeNamespace(namespace_id, identity));
  ASSERT_TRUE(decoded) << decoded.error().ToString();
  EXPECT_EQ(decoded->first, namespace_id);
  EXPECT_EQ(decoded->second, identity);
}

TEST(IndexCodecTest, EveryFlippedByteOfASpaceIsRejected) {
  ExpectEveryChangeIsRejected(ToBytes(EncodeNamespaceKey(NamespaceId(3))),
                              EncodeNamespace(NamespaceId(3), SomeNamespace()),
                              [](const Bytes& k, const Bytes& v) { return DecodeNamespace(k, v); });
}

TEST(IndexCodecTest, ASpaceOfEmptyBlocksIsRejected) {
  NamespaceIdentity identity = SomeNamespace();
  identity.block_bytes = 0;
  EXPECT_FALSE(DecodeNamespace(EncodeNamespaceKey(NamespaceId(3)),
                               EncodeNamespace(NamespaceId(3), identity)));
}

TEST(IndexCodecTest, ErasureSurvivesTheRoundTripAndNoFlippedByte) {
  const ErasureRecord erasure{
      .number = 300, .tenant = "uid:1000", .end_hour = 489'000, .begun_s = 1'748'736'000};
  const Bytes key = ToBytes(EncodeErasureKey(erasure.number));
  const auto decoded = DecodeErasure(key, EncodeErasure(erasure));
  ASSERT_TRUE(decoded) << decoded.error().ToString();
  EXPECT_EQ(*decoded, erasure);
  ExpectEveryChangeIsRejected(key, EncodeErasure(erasure),
                              [](const Bytes& k, const Bytes& v) { return DecodeErasure(k, v); });
}

TEST(IndexCodecTest, MetaSurvivesTheRoundTripAndNoFlippedByte) {
  const auto decoded = DecodeMeta(EncodeMeta(SomeMeta()));
  ASSERT_TRUE(decoded);
  EXPECT_EQ(*decoded, SomeMeta());
  ExpectEveryChangeIsRejected({}, EncodeMeta(SomeMeta()),
                              [](const Bytes&, const Bytes& v) { return DecodeMeta(v); });
}

TEST(IndexCodecTest, BudgetSurvivesTheRoundTripAndNoFlippedByte) {
  const WriteBudgetState budget{.day = 20'000, .spent_bytes = 1'000'000'007};
  const auto decoded = DecodeBudget(EncodeBudget(budget));
  ASSERT_TRUE(decoded);
  EXPECT_EQ(*decoded, budget);
  ExpectEveryChangeIsRejected({}, EncodeBudget(budget),
                              [](const Bytes&, const Bytes& v) { return DecodeBudget(v); });
}

TEST(IndexCodecTest, TokenIdsSurviveTheRoundTripAndNoFlippedByte) {
  const std::vector<uint32_t> ids{0, 9906, UINT32_MAX};
  const TokensRecord record{.key = SomeRecord().key, .ids = BytesOfTokenIds(ids)};
  const RecordKey key = EncodeTokensKey(record.key);
  const Bytes value = EncodeTokens(key, record);
  EXPECT_EQ(value.size(), 1u + 3 * 4 + 4);
  const auto decoded = DecodeTokens(key, value);
  ASSERT_TRUE(decoded);
  EXPECT_EQ(decoded->key, record.key);
  EXPECT_EQ(TokenIdsOf(decoded->ids), ids);
  ExpectEveryChangeIsRejected(ToBytes(key), value,
                              [](const Bytes& k, const Bytes& v) { return DecodeTokens(k, v); });
}

TEST(IndexCodecTest, TokenIdsOfTheLargestBlockFitAndMoreAreRejected) {
  TokensRecord record{.key = SomeRecord().key, .ids = Bytes(kMaxTokensBytes, std::byte{1})};
  const RecordKey key = EncodeTokensKey(record.key);
  Bytes value = EncodeTokens(key, record);
  EXPECT_TRUE(DecodeTokens(key, value));
  value.push_back(std::byte{1});
  EXPECT_FALSE(DecodeTokens(key, value));
  record.ids = Bytes(1, std::byte{1});
  value = EncodeTokens(key, record);
  value.erase(value.begin() + 1);
  EXPECT_FALSE(DecodeTokens(key, value));
}

TEST(IndexCodecTest, BytesThatAreNoTokenIdsAreNone) {
  EXPECT_EQ(TokenIdsOf({}), std::nullopt);
  EXPECT_EQ(TokenIdsOf(Bytes(6)), std::nullopt);
  EXPECT_EQ(TokenIdsOf(Bytes(8)), (std::vector<uint32_t>{0, 0}));
}

TEST(IndexCodecTest, ValuesOfOneKindAreNotTakenForAnother) {
  EXPECT_FALSE(DecodeBudget(EncodeMeta(SomeMeta())));
  EXPECT_FALSE(DecodeMeta(EncodeBudget({})));
}

TEST(IndexCodecTest, KeysAreOrderedByKindThenSpaceThenHash) {
  const auto as_bytes = [](const auto& array) { return ToBytes(array); };
  const std::vector<Bytes> keys = {
      as_bytes(kMetaKey),
      as_bytes(kBudgetKey),
      as_bytes(EncodeNamespaceKey(NamespaceId(0))),
      as_bytes(EncodeNamespaceKey(NamespaceId(255))),
      as_bytes(EncodeNamespaceKey(NamespaceId(256))),
      as_bytes(EncodeRecordKey({NamespaceId(255), BlockHash{}})),
      as_bytes(EncodeRecordKey({NamespaceId(256), BlockHash{}})),
      as_bytes(EncodeRecordKey({NamespaceId(256), TestHash(0, 0)})),
      as_bytes(EncodeErasureKey(255)),
      as_bytes(EncodeErasureKey(256)),
      as_bytes(EncodeTokensKey({NamespaceId(0), BlockHash{}})),
      as_bytes(EncodeTokensKey({NamespaceId(1), TestHash(0, 0)})),
  };
  EXPECT_TRUE(std::ranges::is_sorted(keys));
  for (const Bytes& key : keys) EXPECT_TRUE(DecodeKeyKind(key));
}

TEST(IndexCodecTest, UnknownKindsOfKeysAreRejected) {
  EXPECT_FALSE(DecodeKeyKind({}));
  for (const int kind : {0, 8, 255}) {
    const Bytes key = {static_cast<std::byte>(kind)};
    EXPECT_FALSE(DecodeKeyKind(key)) << kind;
  }
}

TEST(IndexCodecTest, RandomBytesAreRejectedWithoutHarm) {
  SeededRandom random(2);
  for (int i = 0; i < 100'000; ++i) {
    Bytes key(random.Below(80));
    Bytes value(random.Below(300));
    for (std::byte& byte : key) byte = static_cast<std::byte>(random.Next());
    for (std::byte& byte : value) byte = static_cast<std::byte>(random.Next());
    if (!key.empty()) key[0] = static_cast<std::byte>(random.Below(7));
    EXPECT_FALSE(DecodeTokens(key, value));
    EXPECT_FALSE(DecodeRecord(key, value));
    EXPECT_FALSE(DecodeNamespace(key, value));
    EXPECT_FALSE(DecodeMeta(value));
    EXPECT_FALSE(DecodeBudget(value));
  }
}

}  // namespace
}  // namespace kvtier
