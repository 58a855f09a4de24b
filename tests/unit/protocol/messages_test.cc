// SPDX-License-Identifier: Apache-2.0
#include "protocol/messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "base/byte_reader.h"
#include "protocol/frame.h"
#include "tests/fuzz/reencode.h"
#include "tests/fuzz/sample_messages.h"

namespace kvtier::wire {
namespace {

using ::testing::ElementsAre;

BlockHash HashOf(uint32_t number) {
  BlockHash hash;
  std::memcpy(hash.bytes.data(), &number, sizeof(number));
  return hash;
}

std::vector<BlockHash> ManyHashes(uint32_t count) {
  std::vector<BlockHash> hashes;
  for (uint32_t i = 0; i < count; ++i) hashes.push_back(HashOf(i));
  return hashes;
}

// `bytes` must hold one frame, which must outlive the result.
Frame FrameIn(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  Frame frame;
  const size_t payload_bytes = reader.Read<uint32_t>();
  frame.type = reader.Read<uint16_t>();
  frame.flags = reader.Read<uint16_t>();
  frame.request_id = reader.Read<uint64_t>();
  frame.payload = reader.ReadBytes(payload_bytes);
  EXPECT_TRUE(reader.AtEnd());
  return frame;
}

template <typename Message>
std::vector<std::byte> PayloadOf(const Message& message) {
  std::vector<std::byte> bytes;
  if constexpr (requires { message.Encode(0, &bytes); }) {
    message.Encode(0, &bytes);
  } else {
    message.Encode(0, false, &bytes);
  }
  return {bytes.begin() + kFrameHeaderBytes, bytes.end()};
}

// --- what holds for all messages ---

TEST(Messages, EverySampleComesBackTheSame) {
  for (const Sample& sample : SampleMessages()) {
    const auto again = Reencode(FrameIn(sample.frame));
    ASSERT_TRUE(again.has_value()) << sample.name << ": " << again.error().ToString();
    EXPECT_EQ(*again, sample.frame) << sample.name;
  }
}

TEST(Messages, EveryTypeHasASampleAndAName) {
  std::set<uint16_t> types;
  for (const Sample& sample : SampleMessages()) types.insert(FrameIn(sample.frame).type);
  for (uint16_t type = 0; type < 100; ++type) {
    EXPECT_EQ(MessageTypeName(type) != "unknown", types.contains(type)) << type;
  }
}

TEST(Messages, EveryTruncationIsAnError) {
  for (const Sample& sample : SampleMessages()) {
    Frame frame = FrameIn(sample.frame);
    for (size_t bytes = 0; bytes < frame.payload.size(); ++bytes) {
      Frame cut = frame;
      cut.payload = frame.payload.first(bytes);
      ASSERT_FALSE(Reencode(cut).has_value()) << sample.name << " cut to " << bytes;
    }
  }
}

TEST(Messages, ATrailingByteIsAnError) {
  for (const Sample& sample : SampleMessages()) {
    Frame frame = FrameIn(sample.frame);
    std::vector<std::byte> longer(frame.payload.begin(), frame.payload.end());
    longer.push_back(std::byte{0});
    frame.payload = longer;
    const auto again = Reencode(frame);
    ASSERT_FALSE(again.has_value()) << sample.name;
    EXPECT_EQ(again.error().reason, "trailing_bytes") << sample.name;
  }
}

TEST(Messages, AFlippedBitIsAnErrorOrAnotherMessage) {
  for (const Sample& sample : SampleMessages()) {
    for (size_t bit = 8 * kFrameHeaderBytes; bit < 8 * sample.frame.size(); ++bit) {
      std::vector<std::byte> bytes = sample.frame;
      bytes[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
      const auto again = Reencode(FrameIn(bytes));
      if (!again.has_value()) continue;
      ASSERT_EQ(*again, bytes) << sample.name << " bit " << bit;
    }
  }
}

TEST(Messages, ErrorsNameTheMessage) {
  const auto attach = Attach::Decode({});
  ASSERT_FALSE(attach.has_value());
  EXPECT_EQ(attach.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(attach.error().reason, "truncated_message");
  EXPECT_THAT(attach.error().context, ::testing::HasSubstr("ATTACH"));
}

TEST(Messages, EncodeAppendsBehindEarlierFrames) {
  std::vector<std::byte> bytes;
  Ping{}.Encode(1, &bytes);
  PinReply{9}.Encode(2, &bytes);
  Ping{}.Encode(3, &bytes);
  FrameDecoder decoder;
  decoder.Feed(bytes);
  EXPECT_EQ((*decoder.Next())->request_id, 1u);
  EXPECT_EQ(PinReply::Decode((*decoder.Next())->payload)->count, 9u);
  EXPECT_EQ((*decoder.Next())->request_id, 3u);
}

// --- HELLO ---

TEST(Hello, WrongMagicIsToldFromAWrongLength) {
  std::vector<std::byte> payload = PayloadOf(Hello{});
  payload[0] ^= std::byte{1};
  EXPECT_EQ(Hello::Decode(payload).error().reason, "bad_magic");
  EXPECT_EQ(Hello::Decode(std::span(payload).first(8)).error().reason, "bad_magic");
  EXPECT_EQ(Hello::Decode({}).error().reason, "truncated_message");
}

TEST(Hello, ReversedVersionRangeIsRefused) {
  EXPECT_EQ(Hello::Decode(PayloadOf(Hello{3, 2, 0, ""})).error().reason, "bad_version_range");
}

TEST(Hello, NameMustBePlainText) {
  for (const char* name : {"a\nb", "\x7f", "\xff", "\xc0\x80", "\xed\xa0\x80"}) {
    EXPECT_EQ(Hello::Decode(PayloadOf(Hello{1, 1, 0, name})).error().reason, "bad_text") << name;
  }
  EXPECT_EQ(Hello::Decode(PayloadOf(Hello{1, 1, 0, "Größe 漢"}))->client_name, "Größe 漢");
}

TEST(Hello, HighestCommonVersionIsNegotiated) {
  EXPECT_EQ(*NegotiateVersion(Hello{1, 1, 0, ""}), 1);
  EXPECT_EQ(*NegotiateVersion(Hello{0, 9, 0, ""}), kProtocolVersionMax);
  EXPECT_EQ(NegotiateVersion(Hello{2, 9, 0, ""}).error().reason, "version_mismatch");
  EXPECT_EQ(NegotiateVersion(Hello{0, 0, 0, ""}).error().code, ErrorCode::kUnsupported);
}

// --- REGISTER_MODEL ---

TEST(RegisterModel, CarriesTheRecord) {
  const ModelRecord record = SampleModelRecord();
  EXPECT_EQ(RegisterModel::Decode(PayloadOf(RegisterModel{record}))->record, record);
}

TEST(RegisterModel, GivesTheRecordsOwnErrors) {
  ModelRecord record = SampleModelRecord();
  record.layers = 0;
  EXPECT_EQ(RegisterModel::Decode(PayloadOf(RegisterModel{record})).error().reason, "bad_layers");
}

TEST(RegisterModel, RefusesAnEndlessRecord) {
  ByteWriter payload;
  payload.Write(static_cast<uint32_t>(kMaxModelRecordBytes + 1));
  EXPECT_EQ(RegisterModel::Decode(payload.data()).error().reason, "model_record_too_long");
}

// --- ACQUIRE ---

TEST(Acquire, HashesAreReadInPlace) {
  const std::vector<BlockHash> hashes = ManyHashes(8192), partial_blocks = ManyHashes(3);
  const std::vector<std::byte> payload = PayloadOf(Acquire{PoolId{7}, 9, hashes, partial_blocks});
  const auto acquire = Acquire::Decode(payload);
  ASSERT_TRUE(acquire.has_value());
  EXPECT_EQ(acquire->pool, PoolId{7});
  EXPECT_EQ(acquire->new_blocks, 9u);
  EXPECT_TRUE(std::ranges::equal(acquire->hashes, hashes));
  EXPECT_TRUE(std::ranges::equal(acquire->partial_blocks, partial_blocks));
  EXPECT_EQ(static_cast<const void*>(acquire->hashes.data()), payload.data() + 12);
}

TEST(Acquire, LargestCallFitsAFrame) {
  const std::vector<BlockHash> hashes = ManyHashes(kMaxHashesPerCall);
  const std::vector<BlockHash> partial_blocks = ManyHashes(kMaxPartialBlocksPerCall);
  std::vector<std::byte> bytes;
  Acquire{PoolId{1}, kMaxBlocksPerCall, hashes, partial_blocks}.Encode(1, &bytes);
  EXPECT_LE(bytes.size(), kMaxFrameBytes);
  EXPECT_TRUE(Reencode(FrameIn(bytes)).has_value());
}

// pool, new_blocks, count of hashes, no hashes, no partial_blocks.
std::vector<std::byte> AcquireClaiming(uint32_t new_blocks, uint32_t hashes,
                                       uint32_t partial_blocks) {
  ByteWriter payload;
  for (const uint32_t field : {1u, new_blocks, hashes, partial_blocks}) payload.Write(field);
  return payload.Take();
}

TEST(Acquire, CountsAreBoundedBeforeAnythingElse) {
  for (const uint32_t count : {kMaxHashesPerCall + 1, UINT32_MAX}) {
    EXPECT_EQ(Acquire::Decode(AcquireClaiming(0, count, 0)).error().reason, "too_many_hashes");
    EXPECT_EQ(Acquire::Decode(AcquireClaiming(0, 0, count)).error().reason,
              "too_many_partial_blocks");
    EXPECT_EQ(Acquire::Decode(AcquireClaiming(count, 0, 0)).error().reason, "too_many_blocks");
  }
}

TEST(Acquire, CountsAreComparedWithWhatIsThere) {
  const auto acquire = Acquire::Decode(AcquireClaiming(0, 1000, 0));
  ASSERT_FALSE(acquire.has_value());
  EXPECT_EQ(acquire.error().reason, "truncated_message");
}

TEST(Acquire, HashesOfTheWrongSizeAreRefused) {
  ByteWriter payload;
  for (const uint32_t field : {1u, 0u, 2u}) payload.Write(field);
  payload.WriteBytes(std::vector<std::byte>(2 * 20));  // 20 bytes each, as SHA-1 gives
  payload.Write(uint32_t{0});
  EXPECT_EQ(Acquire::Decode(payload.data()).error().reason, "truncated_message");
}

// --- ACQUIRE_REPLY ---

TEST(AcquireReply, CarriesHitsTailAndFreshBlocks) {
  AcquireReply reply;
  reply.load = LoadId{99};
  reply.miss_reason = 200;  // of a later version
  reply.partial_block = 2;
  reply.hits = {{{BlockIndex{5}, 6}, 16, Tier::kHost}, {{BlockIndex{7}, 8}, 3, Tier::kDisk}};
  reply.new_blocks = {{BlockIndex{1}, 2}};
  const auto decoded = AcquireReply::Decode(PayloadOf(reply));
  ASSERT_TRUE(decoded.has_value());
  EXPECT_EQ(decoded->load, LoadId{99});
  EXPECT_EQ(decoded->miss_reason, 200);
  EXPECT_EQ(decoded->partial_block, 2u);
  EXPECT_EQ(decoded->hits, reply.hits);
  EXPECT_EQ(decoded->new_blocks, reply.new_blocks);
}

TEST(AcquireReply, EveryHashAndATailMayHit) {
  AcquireReply reply;
  reply.hits.resize(kMaxHashesPerCall + 1);
  reply.new_blocks.resize(kMaxBlocksPerCall);
  std::vector<std::byte> bytes;
  reply.Encode(1, &bytes);
  EXPECT_LE(bytes.size(), kMaxFrameBytes);
  EXPECT_TRUE(AcquireReply::Decode(FrameIn(bytes).payload).has_value());
}

TEST(AcquireReply, HitsArePackedInElevenBytes) {
  AcquireReply reply;
  const size_t empty = PayloadOf(reply).size();
  reply.hits.resize(8192);
  EXPECT_EQ(PayloadOf(reply).size() - empty, 8192 * 11u);
}

TEST(AcquireReply, UnknownTierIsRefused) {
  AcquireReply reply;
  reply.hits.resize(1);
  std::vector<std::byte> payload = PayloadOf(reply);
  payload.back() = std::byte{3};
  EXPECT_EQ(AcquireReply::Decode(payload).error().reason, "bad_enum");
}

TEST(AcquireReply, ATailThatNobodyCouldHaveAskedForIsRefused) {
  AcquireReply reply;
  reply.partial_block = kMaxPartialBlocksPerCall;
  EXPECT_EQ(AcquireReply::Decode(PayloadOf(reply)).error().reason, "bad_partial_block");
  reply.partial_block = kMaxPartialBlocksPerCall - 1;
  EXPECT_EQ(AcquireReply::Decode(PayloadOf(reply))->partial_block, kMaxPartialBlocksPerCall - 1);
}

TEST(LoadProgress, CarriesItsFields) {
  const auto progress = LoadProgress::Decode(PayloadOf(LoadProgress{LoadId{3}, 4, true, 5}));
  ASSERT_TRUE(progress.has_value());
  EXPECT_EQ(progress->load, LoadId{3});
  EXPECT_EQ(progress->ready, 4u);
  EXPECT_TRUE(progress->finished);
  EXPECT_EQ(progress->miss_reason, 5);
}

// --- COMMIT, RELEASE ---

CommitItem FullItem() {
  CommitItem item{{BlockIndex{1}, 2}, HashOf(3), HashOf(4), 16, 5, RetentionClass::kMemory, {}};
  item.checksum.emplace().bytes.fill(6);
  return item;
}

TEST(Commit, OptionalFieldsTravelOnlyIfPresent) {
  CommitItem bare = FullItem();
  bare.parent.reset();
  bare.checksum.reset();
  const std::vector<std::byte> payload = PayloadOf(Commit{PoolId{1}, {bare, FullItem(), bare}});
  const auto commit = Commit::Decode(payload);
  ASSERT_TRUE(commit.has_value());
  EXPECT_THAT(commit->items, ElementsAre(bare, FullItem(), bare));
  EXPECT_EQ(payload.size(), 8u + 3 * 48 + 32 + 16);
}

TEST(Commit, LargestCallFitsAFrame) {
  const Commit commit{PoolId{1}, std::vector<CommitItem>(kMaxCommitsPerCall, FullItem())};
  std::vector<std::byte> bytes;
  commit.Encode(1, true, &bytes);
  EXPECT_LE(bytes.size(), kMaxFrameBytes);
  EXPECT_EQ(*Reencode(FrameIn(bytes)), bytes);
}

TEST(Commit, ClaimedItemsAreComparedWithWhatIsThere) {
  ByteWriter payload;
  payload.Write(uint32_t{1});
  payload.Write(kMaxCommitsPerCall);
  EXPECT_EQ(Commit::Decode(payload.data()).error().reason, "truncated_message");
}

TEST(Commit, UnknownBitsAndRetentionAreRefused) {
  std::vector<std::byte> payload = PayloadOf(Commit{PoolId{1}, {FullItem()}});
  payload[8 + 40] |= std::byte{4};
  EXPECT_EQ(Commit::Decode(payload).error().reason, "unknown_bits");
  payload[8 + 40] = std::byte{3};
  payload[8 + 47] = std::byte{2};
  EXPECT_EQ(Commit::Decode(payload).error().reason, "bad_enum");
}

TEST(CommitReply, TellsDuplicatesFromFailures) {
  const CommitReply reply{{{3, CommitOutcome::kDuplicate, ErrorCode::kInternal, ""},
                           {9, CommitOutcome::kFailed, ErrorCode::kNotOwner, "not_owner"}}};
  EXPECT_EQ(CommitReply::Decode(PayloadOf(reply))->items, reply.items);
}

TEST(ItemErrors, LargestRepliesFitAFrame) {
  const std::string reason(100, 'r');  // is cut
  const CommitReply::Item failed{1, CommitOutcome::kFailed, ErrorCode::kInternal, reason};
  std::vector<std::byte> bytes;
  CommitReply{std::vector(kMaxCommitsPerCall, failed)}.Encode(1, &bytes);
  EXPECT_LE(bytes.size(), kMaxFrameBytes);
  bytes.clear();
  const ReleaseReply::Item error{1, ErrorCode::kInternal, reason};
  ReleaseReply{std::vector(kMaxBlocksPerCall, error)}.Encode(1, &bytes);
  EXPECT_LE(bytes.size(), kMaxFrameBytes);
  EXPECT_EQ(ReleaseReply::Decode(FrameIn(bytes).payload)->errors[5].reason,
            reason.substr(0, kMaxReasonBytes));
}

TEST(FireAndForget, WantReplyIsAFlagOfTheFrame) {
  std::vector<std::byte> bytes;
  Release{PoolId{1}, {}}.Encode(1, true, &bytes);
  EXPECT_EQ(FrameIn(bytes).flags, kFlagWantReply);
  bytes.clear();
  Commit{PoolId{1}, {}}.Encode(1, false, &bytes);
  EXPECT_EQ(FrameIn(bytes).flags, 0);
}

TEST(Release, TooManyHandlesAreRefused) {
  ByteWriter payload;
  payload.Write(uint32_t{1});
  payload.Write(kMaxBlocksPerCall + 1);
  const auto release = Release::Decode(payload.data());
  ASSERT_FALSE(release.has_value());
  EXPECT_EQ(release.error().code, ErrorCode::kLimitExceeded);
  EXPECT_EQ(release.error().reason, "too_many_blocks");
}

// --- the rest ---

TEST(Pin, NegativeLifeIsRefused) {
  EXPECT_EQ(Pin::Decode(PayloadOf(Pin{PoolId{1}, -1, {}})).error().reason, "bad_ttl");
  EXPECT_EQ(Pin::Decode(PayloadOf(Pin{PoolId{1}, INT64_MAX, {}}))->ttl_ms, INT64_MAX);
}

TEST(LookupReply, UnknownTiersAreRefused) {
  EXPECT_EQ(LookupReply::Decode(PayloadOf(LookupReply{{7, 8}})).error().reason, "unknown_bits");
}

TEST(ErrorReply, LongTextsAreCutBetweenCharacters) {
  ErrorReply reply{{ErrorCode::kIoError, "disk", std::string(kMaxContextBytes - 1, 'x') + "ß"}};
  const auto decoded = ErrorReply::Decode(PayloadOf(reply));
  ASSERT_TRUE(decoded.has_value());
  EXPECT_EQ(decoded->error.context, std::string(kMaxContextBytes - 1, 'x'));
}

TEST(ErrorReply, CodesThatNobodyDefinedAreRefused) {
  for (const uint16_t code : {0, 17, 65535}) {
    std::vector<std::byte> payload = PayloadOf(ErrorReply{{ErrorCode::kInternal, "r", ""}});
    std::memcpy(payload.data(), &code, sizeof(code));
    EXPECT_EQ(ErrorReply::Decode(payload).error().reason, "bad_enum");
  }
}

TEST(AdminMessages, LongestTextsFitTheirFrames) {
  std::vector<std::byte> bytes;
  AdminRequest{std::string(kMaxAdminRequestTextBytes, ' ')}.Encode(1, &bytes);
  EXPECT_EQ(bytes.size(), kMaxAdminRequestFrameBytes);
  bytes.clear();
  AdminReply{std::string(kMaxAdminReplyTextBytes, ' ')}.Encode(1, &bytes);
  EXPECT_EQ(bytes.size(), kMaxAdminReplyFrameBytes);
  EXPECT_TRUE(AdminReply::Decode(FrameIn(bytes).payload).has_value());
}

TEST(AdminMessages, LongerTextsAreRefused) {
  ByteWriter payload;
  payload.Write(kMaxAdminRequestTextBytes + 1);
  EXPECT_EQ(AdminRequest::Decode(payload.data()).error().reason, "text_too_long");
}

}  // namespace
}  // namespace kvtier::wire
