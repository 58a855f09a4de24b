// SPDX-License-Identifier: Apache-2.0
#include "protocol/messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <set>

#include "base/bytes.h"
#include "protocol/frame.h"
#include "tests/fuzz/reencode.h"
#include "tests/fuzz/sample_messages.h"
#include "tests/unit/protocol/payload.h"

namespace kvtier::wire {
namespace {

using ::testing::ElementsAre;

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
  const auto attach = Decode<Attach>({});
  ASSERT_FALSE(attach.has_value());
  EXPECT_EQ(attach.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(attach.error().reason, "truncated_message");
  EXPECT_THAT(attach.error().context, ::testing::HasSubstr("ATTACH"));
}

TEST(Messages, EncodeAppendsBehindEarlierFrames) {
  std::vector<std::byte> bytes;
  Encode(Ping{}, 1, &bytes);
  Encode(PinReply{9}, 2, &bytes);
  Encode(Ping{}, 3, &bytes);
  FrameDecoder decoder;
  decoder.Feed(bytes);
  EXPECT_EQ((*decoder.Next())->request_id, 1u);
  EXPECT_EQ(Decode<PinReply>((*decoder.Next())->payload)->count, 9u);
  EXPECT_EQ((*decoder.Next())->request_id, 3u);
}

// --- HELLO ---

TEST(Hello, WrongMagicIsToldFromAWrongLength) {
  std::vector<std::byte> payload = PayloadOf(Hello{});
  payload[0] ^= std::byte{1};
  EXPECT_EQ(Decode<Hello>(payload).error().reason, "bad_magic");
  EXPECT_EQ(Decode<Hello>(std::span(payload).first(8)).error().reason, "bad_magic");
  EXPECT_EQ(Decode<Hello>({}).error().reason, "truncated_message");
}

TEST(Hello, NameMustBePlainText) {
  for (const char* name : {"a\nb", "\x7f", "\xff", "\xc0\x80", "\xed\xa0\x80"}) {
    EXPECT_EQ(Decode<Hello>(PayloadOf(Hello{1, 0, name})).error().reason, "bad_text") << name;
  }
  EXPECT_EQ(Decode<Hello>(PayloadOf(Hello{1, 0, "Größe 漢"}))->client_name, "Größe 漢");
}

TEST(Hello, TheLowerMinorVersionIsSpokenByBothSides) {
  EXPECT_EQ(*NegotiateMinor(kProtocolMajor, kProtocolMinor), kProtocolMinor);
  EXPECT_EQ(*NegotiateMinor(kProtocolMajor, kProtocolMinor + 7), kProtocolMinor);
}

TEST(Hello, AnotherMajorVersionIsRefused) {
  EXPECT_EQ(NegotiateMinor(kProtocolMajor + 1, 0).error().reason, "version_mismatch");
  EXPECT_EQ(NegotiateMinor(kProtocolMajor - 1, 9).error().code, ErrorCode::kUnsupported);
}

// --- REGISTER_MODEL ---

TEST(RegisterModel, CarriesTheRecord) {
  const ModelRecord record = SampleModelRecord();
  EXPECT_EQ(Decode<RegisterModel>(PayloadOf(RegisterModel{record}))->record, record);
}

TEST(RegisterModel, GivesTheRecordsOwnErrors) {
  ModelRecord record = SampleModelRecord();
  record.groups[0].layers = 0;
  EXPECT_EQ(Decode<RegisterModel>(PayloadOf(RegisterModel{record})).error().reason, "bad_layers");
}

TEST(RegisterModel, RefusesAnEndlessRecord) {
  ByteWriter payload;
  payload.Write(static_cast<uint32_t>(kMaxModelRecordBytes + 1));
  EXPECT_EQ(Decode<RegisterModel>(payload.data()).error().reason, "model_record_too_long");
}

// --- ACQUIRE ---

TEST(Acquire, HashesAreReadInPlace) {
  const std::vector<BlockHash> hashes = ManyHashes(8192), partial_blocks = ManyHashes(3);
  const std::vector<std::byte> payload =
      PayloadOf(Acquire{LoadOrder::kLayers, {{PoolId{7}, 9, hashes, partial_blocks}}});
  const auto acquire = Decode<Acquire>(payload);
  ASSERT_TRUE(acquire.has_value());
  ASSERT_EQ(acquire->parts.size(), 1u);
  const Acquire::Part& part = acquire->parts[0];
  EXPECT_EQ(part.pool, PoolId{7});
  EXPECT_EQ(part.new_blocks, 9u);
  EXPECT_TRUE(std::ranges::equal(part.hashes, hashes));
  EXPECT_TRUE(std::ranges::equal(part.partial_blocks, partial_blocks));
  EXPECT_EQ(static_cast<const void*>(part.hashes.data()), payload.data() + 18);
  EXPECT_EQ(acquire->order, LoadOrder::kLayers);
}

TEST(Acquire, LargestCallFitsAFrame) {
  const std::vector<BlockHash> hashes = ManyHashes(kMaxHashesPerCall);
  const std::vector<BlockHash> partial_blocks = ManyHashes(kMaxPartialBlocksPerCall);
  std::vector<std::byte> bytes;
  Encode(Acquire{LoadOrder::kBlocks, {{PoolId{1}, kMaxBlocksPerCall, hashes, partial_blocks}}}, 1,
         &bytes);
  EXPECT_LE(bytes.size(), kMaxFrameBytes);
  EXPECT_TRUE(Reencode(FrameIn(bytes)).has_value());
}

// order, no wish, one group: pool, new_blocks, count of hashes, no hashes, no partial_blocks.
std::vector<std::byte> AcquireClaiming(uint32_t new_blocks, uint32_t hashes,
                                       uint32_t partial_blocks) {
  ByteWriter payload;
  payload.Write(uint16_t{0});
  payload.Write(uint32_t{1});
  payload.Write(uint32_t{1});
  payload.Write(new_blocks);
  payload.Write(hashes);
  payload.Write(partial_blocks);
  return payload.Take();
}

TEST(Acquire, CountsAreBoundedBeforeAnythingElse) {
  for (const uint32_t count : {kMaxHashesPerCall + 1, UINT32_MAX}) {
    EXPECT_EQ(Decode<Acquire>(AcquireClaiming(0, count, 0)).error().reason, "too_many_hashes");
    EXPECT_EQ(Decode<Acquire>(AcquireClaiming(0, 0, count)).error().reason,
              "too_many_partial_blocks");
    EXPECT_EQ(Decode<Acquire>(AcquireClaiming(count, 0, 0)).error().reason, "too_many_blocks");
  }
}

TEST(Acquire, GroupsAreBounded) {
  ByteWriter payload;
  payload.Write(uint16_t{0});  // order, no wish
  payload.Write(uint32_t{kMaxModelGroups + 1});
  EXPECT_EQ(Decode<Acquire>(payload.data()).error().reason, "too_many_groups");
}

TEST(Acquire, CountsAreComparedWithWhatIsThere) {
  const auto acquire = Decode<Acquire>(AcquireClaiming(0, 1000, 0));
  ASSERT_FALSE(acquire.has_value());
  EXPECT_EQ(acquire.error().reason, "truncated_message");
}

TEST(Acquire, HashesOfTheWrongSizeAreRefused) {
  ByteWriter payload;
  payload.Write(uint16_t{0});                                          // order, no wish
  for (const uint32_t field : {1u, 1u, 0u, 2u}) payload.Write(field);  // of one group two hashes
  payload.WriteBytes(std::vector<std::byte>(2 * 20));  // 20 bytes each, as SHA-1 gives
  payload.Write(uint32_t{0});
  EXPECT_EQ(Decode<Acquire>(payload.data()).error().reason, "truncated_message");
}

// --- ACQUIRE_REPLY ---

TEST(AcquireReply, CarriesHitsPartialBlockCounterAndNewBlocks) {
  AcquireReply message{.parts = {{}}};
  AcquireReply::Part& reply = message.parts[0];
  reply.load = LoadId{99};
  reply.miss = static_cast<MissReason>(200);  // of a later minor version
  reply.counter = LoadCounter{.offset = 64, .base = 3, .steps = 2};
  reply.partial_block = 2;
  reply.hits = {{{BlockIndex{5}, 6}, Tier::kHost, 16}, {{BlockIndex{7}, 8}, Tier::kDisk, 3}};
  reply.new_blocks = {{BlockIndex{1}, 2}};
  const auto decoded = Decode<AcquireReply>(PayloadOf(message));
  ASSERT_TRUE(decoded.has_value());
  EXPECT_EQ(decoded->parts[0].load, LoadId{99});
  EXPECT_EQ(decoded->parts[0].miss, reply.miss);
  EXPECT_EQ(MissReasonName(decoded->parts[0].miss), "invalid");
  EXPECT_EQ(decoded->parts[0].counter, reply.counter);
  EXPECT_EQ(decoded->parts[0].partial_block, 2u);
  EXPECT_EQ(decoded->parts[0].hits, reply.hits);
  EXPECT_EQ(decoded->parts[0].new_blocks, reply.new_blocks);
}

TEST(AcquireReply, EveryHashAndAPartialBlockMayHit) {
  AcquireReply message{.parts = {{}}};
  AcquireReply::Part& reply = message.parts[0];
  reply.hits.resize(kMaxHashesPerCall + 1);
  reply.new_blocks.resize(kMaxBlocksPerCall);
  std::vector<std::byte> bytes;
  Encode(message, 1, &bytes);
  EXPECT_LE(bytes.size(), kMaxFrameBytes);
  EXPECT_TRUE(Decode<AcquireReply>(FrameIn(bytes).payload).has_value());
}

TEST(AcquireReply, HitsArePackedInElevenBytes) {
  AcquireReply message{.parts = {{}}};
  AcquireReply::Part& reply = message.parts[0];
  const size_t empty = PayloadOf(message).size();
  reply.hits.resize(8192);
  EXPECT_EQ(PayloadOf(message).size() - empty, 8192 * 11u);
}

TEST(AcquireReply, UnknownTierIsRefused) {
  AcquireReply message{.parts = {{}}};
  AcquireReply::Part& reply = message.parts[0];
  reply.hits.resize(1);
  std::vector<std::byte> payload = PayloadOf(message);
  payload[payload.size() - 5] = std::byte{3};  // before the count of new blocks
  EXPECT_EQ(Decode<AcquireReply>(payload).error().reason, "bad_enum");
}

TEST(AcquireReply, APartialBlockBeyondTheLongestListIsRefused) {
  AcquireReply message{.parts = {{}}};
  AcquireReply::Part& reply = message.parts[0];
  reply.partial_block = kMaxPartialBlocksPerCall;
  EXPECT_EQ(Decode<AcquireReply>(PayloadOf(message)).error().reason, "bad_partial_block");
  reply.partial_block = kMaxPartialBlocksPerCall - 1;
  EXPECT_EQ(Decode<AcquireReply>(PayloadOf(message))->parts[0].partial_block,
            kMaxPartialBlocksPerCall - 1);
}

TEST(AcquireReply, ACounterThatCountsNothingIsRefused) {
  AcquireReply message{.parts = {{}}};
  AcquireReply::Part& reply = message.parts[0];
  reply.counter = LoadCounter{.offset = 64, .base = 3, .steps = 0};
  EXPECT_EQ(Decode<AcquireReply>(PayloadOf(message)).error().reason, "bad_counter");
  reply.counter = LoadCounter{.offset = 62, .base = 3, .steps = 1};
  EXPECT_EQ(Decode<AcquireReply>(PayloadOf(message)).error().reason, "bad_counter");
}

TEST(LoadProgress, CarriesItsFields) {
  const kvtier::LoadProgress sent{LoadId{3}, 4, true, MissReason::kReadError};
  const auto progress = Decode<LoadProgress>(PayloadOf(LoadProgress{sent}));
  ASSERT_TRUE(progress.has_value());
  EXPECT_EQ(progress->progress, sent);
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
  const auto commit = Decode<Commit>(payload);
  ASSERT_TRUE(commit.has_value());
  EXPECT_THAT(commit->items, ElementsAre(bare, FullItem(), bare));
  EXPECT_EQ(payload.size(), 8u + 3 * 48 + 32 + 16);
}

TEST(Commit, LargestCallFitsAFrame) {
  const Commit commit{PoolId{1}, std::vector<CommitItem>(kMaxCommitsPerCall, FullItem())};
  std::vector<std::byte> bytes;
  Encode(commit, 1, &bytes, kFlagWantReply);
  EXPECT_LE(bytes.size(), kMaxFrameBytes);
  EXPECT_EQ(*Reencode(FrameIn(bytes)), bytes);
}

TEST(Commit, ClaimedItemsAreComparedWithWhatIsThere) {
  ByteWriter payload;
  payload.Write(uint32_t{1});
  payload.Write(kMaxCommitsPerCall);
  EXPECT_EQ(Decode<Commit>(payload.data()).error().reason, "truncated_message");
}

TEST(Commit, UnknownBitsAndRetentionAreRefused) {
  std::vector<std::byte> payload = PayloadOf(Commit{PoolId{1}, {FullItem()}});
  payload[8 + 40] |= std::byte{4};
  EXPECT_EQ(Decode<Commit>(payload).error().reason, "unknown_bits");
  payload[8 + 40] = std::byte{3};
  payload[8 + 47] = std::byte{2};
  EXPECT_EQ(Decode<Commit>(payload).error().reason, "bad_enum");
}

TEST(CommitReply, TellsDuplicatesFromFailures) {
  const CommitReply reply{{{3, CommitOutcome::kDuplicate, ErrorCode::kInternal, ""},
                           {9, CommitOutcome::kFailed, ErrorCode::kNotOwner, "not_owner"}}};
  EXPECT_EQ(Decode<CommitReply>(PayloadOf(reply))->items, reply.items);
}

TEST(ItemErrors, LargestRepliesFitAFrame) {
  const std::string reason(100, 'r');  // is cut
  const CommitReply::Item failed{1, CommitOutcome::kFailed, ErrorCode::kInternal, reason};
  std::vector<std::byte> bytes;
  Encode(CommitReply{std::vector(kMaxCommitsPerCall, failed)}, 1, &bytes);
  EXPECT_LE(bytes.size(), kMaxFrameBytes);
  bytes.clear();
  const ReleaseReply::Item error{1, ErrorCode::kInternal, reason};
  Encode(ReleaseReply{std::vector(kMaxBlocksPerCall, error)}, 1, &bytes);
  EXPECT_LE(bytes.size(), kMaxFrameBytes);
  EXPECT_EQ(Decode<ReleaseReply>(FrameIn(bytes).payload)->errors[5].reason,
            reason.substr(0, kMaxReasonBytes));
}

TEST(FireAndForget, WantReplyIsAFlagOfTheFrame) {
  std::vector<std::byte> bytes;
  Encode(Release{PoolId{1}, {}}, 1, &bytes, kFlagWantReply);
  EXPECT_EQ(FrameIn(bytes).flags, kFlagWantReply);
  bytes.clear();
  Encode(Commit{PoolId{1}, {}}, 1, &bytes);
  EXPECT_EQ(FrameIn(bytes).flags, 0);
}

TEST(Release, TooManyHandlesAreRefused) {
  ByteWriter payload;
  payload.Write(uint32_t{1});
  payload.Write(kMaxBlocksPerCall + 1);
  const auto release = Decode<Release>(payload.data());
  ASSERT_FALSE(release.has_value());
  EXPECT_EQ(release.error().code, ErrorCode::kLimitExceeded);
  EXPECT_EQ(release.error().reason, "too_many_blocks");
}

// --- the rest ---

TEST(Pin, NegativeLifeIsRefused) {
  EXPECT_EQ(Decode<Pin>(PayloadOf(Pin{PoolId{1}, -1, {}})).error().reason, "bad_ttl");
  EXPECT_EQ(Decode<Pin>(PayloadOf(Pin{PoolId{1}, INT64_MAX, {}}))->ttl_ms, INT64_MAX);
}

TEST(Hint, KindsWithoutANameAreRefused) {
  EXPECT_EQ(Decode<Hint>(PayloadOf(Hint{PoolId{1}, SequenceHint{0}, 0, {}})).error().reason,
            "bad_enum");
  EXPECT_EQ(Decode<Hint>(PayloadOf(Hint{PoolId{1}, SequenceHint{4}, 0, {}})).error().reason,
            "bad_enum");
}

TEST(Hint, OnlyOneThatReturnsHasATimeAndThatIsNotNegative) {
  const auto reason = [](SequenceHint hint, int64_t returns_in_ms) -> std::string {
    const auto decoded = Decode<Hint>(PayloadOf(Hint{PoolId{1}, hint, returns_in_ms, {}}));
    return decoded ? "" : decoded.error().reason;
  };
  EXPECT_EQ(reason(SequenceHint::kReturns, 5000), "");
  EXPECT_EQ(reason(SequenceHint::kReturns, -1), "bad_returns_in");
  EXPECT_EQ(reason(SequenceHint::kClosed, 0), "");
  EXPECT_EQ(reason(SequenceHint::kClosed, 1), "bad_returns_in");
  EXPECT_EQ(reason(SequenceHint::kOnce, 1), "bad_returns_in");
}

TEST(Tokens, IdsAreThoseOfItsBlocksOneAfterTheOther) {
  const Tokens tokens{PoolId{7}, {{BlockHash{}, 2}, {BlockHash{}, 1}}, {5, UINT32_MAX, 0}};
  const std::vector<std::byte> payload = PayloadOf(tokens);
  EXPECT_EQ(payload.size(), 4u + 4 + 2 * (32 + 2) + 4 + 3 * 4);
  const auto decoded = Decode<Tokens>(payload);
  ASSERT_TRUE(decoded);
  EXPECT_EQ(decoded->blocks, tokens.blocks);
  EXPECT_EQ(decoded->ids, tokens.ids);
}

TEST(Tokens, WithoutBlocksItOnlyAsks) {
  const auto decoded = Decode<Tokens>(PayloadOf(Tokens{PoolId{7}, {}, {}}));
  ASSERT_TRUE(decoded);
  EXPECT_TRUE(decoded->blocks.empty());
  EXPECT_EQ(Decode<Tokens>(PayloadOf(Tokens{PoolId{7}, {}, {1}})).error().reason,
            "bad_token_count");
}

TEST(Tokens, IdsOfMoreOrFewerTokensThanTheBlocksHaveAreRefused) {
  const auto reason = [](std::vector<Tokens::Block> blocks, std::vector<uint32_t> ids) {
    return Decode<Tokens>(PayloadOf(Tokens{PoolId{1}, std::move(blocks), std::move(ids)}))
        .error()
        .reason;
  };
  EXPECT_EQ(reason({{BlockHash{}, 2}}, {1}), "bad_token_count");
  EXPECT_EQ(reason({{BlockHash{}, 2}}, {1, 2, 3}), "bad_token_count");
  EXPECT_EQ(reason({{BlockHash{}, 0}, {BlockHash{}, 1}}, {1}), "bad_token_count");
}

TEST(Tokens, WhatIsClaimedIsBoundedAndComparedWithWhatIsThere) {
  const auto error = [](uint32_t blocks, uint32_t ids) {
    ByteWriter payload;
    payload.Write(uint32_t{1});
    payload.Write(blocks);
    if (blocks == 0) payload.Write(ids);
    return Decode<Tokens>(payload.data()).error();
  };
  EXPECT_EQ(error(kMaxTokenBlocksPerCall, 0).reason, "truncated_message");
  EXPECT_EQ(error(kMaxTokenBlocksPerCall + 1, 0).code, ErrorCode::kLimitExceeded);
  EXPECT_EQ(error(0, kMaxTokenIdsPerCall).reason, "truncated_message");
  EXPECT_EQ(error(0, kMaxTokenIdsPerCall + 1).reason, "too_many_tokens");
}

TEST(Tokens, LargestCallFitsAFrame) {
  Tokens tokens{PoolId{1}, std::vector<Tokens::Block>(kMaxTokenBlocksPerCall),
                std::vector<uint32_t>(kMaxTokenIdsPerCall, 77)};
  for (Tokens::Block& block : tokens.blocks) {
    block.tokens = kMaxTokenIdsPerCall / kMaxTokenBlocksPerCall;
  }
  std::vector<std::byte> bytes;
  Encode(tokens, 1, &bytes, kFlagWantReply);
  EXPECT_LE(bytes.size(), kMaxFrameBytes);
  EXPECT_EQ(*Reencode(FrameIn(bytes)), bytes);
}

TEST(TokensReply, WhetherIdsAreWantedIsYesOrNo) {
  std::vector<std::byte> payload = PayloadOf(TokensReply{true, 3});
  EXPECT_EQ(payload.size(), 5u);
  EXPECT_TRUE(Decode<TokensReply>(payload)->wanted);
  payload[0] = std::byte{2};
  EXPECT_EQ(Decode<TokensReply>(payload).error().reason, "unknown_bits");
}

TEST(Acquire, ACostThatIsNoneIsRefused) {
  const auto reason = [](ComputeCost cost) -> std::string {
    const Acquire acquire{LoadOrder::kBlocks, {{PoolId{1}, 1, {}, {}}}, LoadWish{.cost = cost}};
    const auto decoded = Decode<Acquire>(PayloadOf(acquire));
    return decoded ? "" : decoded.error().reason;
  };
  EXPECT_EQ(reason({}), "");
  EXPECT_EQ(reason({.per_token_us = ComputeCost::kMaxUs}), "");
  EXPECT_EQ(reason({.per_token_us = 2 * ComputeCost::kMaxUs}), "bad_cost");
  EXPECT_EQ(reason({.per_pair_us = -1}), "bad_cost");
  EXPECT_EQ(reason({.fixed_us = std::numeric_limits<float>::quiet_NaN()}), "bad_cost");
  EXPECT_EQ(reason({.fixed_us = std::numeric_limits<float>::infinity()}), "bad_cost");
}

TEST(LookupReply, UnknownTiersAreRefused) {
  EXPECT_EQ(Decode<LookupReply>(PayloadOf(LookupReply{.presence = {31, 32}})).error().reason,
            "unknown_bits");
}

TEST(ErrorReply, LongTextsAreCutBetweenCharacters) {
  ErrorReply reply{{ErrorCode::kIoError, "disk", std::string(kMaxContextBytes - 1, 'x') + "ß"}};
  const auto decoded = Decode<ErrorReply>(PayloadOf(reply));
  ASSERT_TRUE(decoded.has_value());
  EXPECT_EQ(decoded->error.context, std::string(kMaxContextBytes - 1, 'x'));
}

TEST(ErrorReply, CodesThatNobodyDefinedAreRefused) {
  for (const uint16_t code : {0, 17, 65535}) {
    std::vector<std::byte> payload = PayloadOf(ErrorReply{{ErrorCode::kInternal, "r", ""}});
    std::memcpy(payload.data(), &code, sizeof(code));
    EXPECT_EQ(Decode<ErrorReply>(payload).error().reason, "bad_enum");
  }
}

TEST(AdminMessages, LongestTextsFitTheirFrames) {
  std::vector<std::byte> bytes;
  Encode(AdminRequest{std::string(kMaxAdminRequestTextBytes, ' ')}, 1, &bytes);
  EXPECT_EQ(bytes.size(), kMaxAdminRequestFrameBytes);
  bytes.clear();
  Encode(AdminReply{std::string(kMaxAdminReplyTextBytes, ' ')}, 1, &bytes);
  EXPECT_EQ(bytes.size(), kMaxAdminReplyFrameBytes);
  EXPECT_TRUE(Decode<AdminReply>(FrameIn(bytes).payload).has_value());
}

TEST(AdminMessages, LongerTextsAreRefused) {
  ByteWriter payload;
  payload.Write(kMaxAdminRequestTextBytes + 1);
  EXPECT_EQ(Decode<AdminRequest>(payload.data()).error().reason, "text_too_long");
}

}  // namespace
}  // namespace kvtier::wire
