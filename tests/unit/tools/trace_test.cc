// SPDX-License-Identifier: Apache-2.0
#include "tools/replay/trace.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

namespace kvtier {
namespace {

constexpr std::string_view kMooncake =
    R"({"timestamp": 7, "input_length": 1025, "output_length": 1, "hash_ids": [0, 1, 2]})"
    "\n"
    R"({"timestamp": 3, "input_length": 600, "output_length": 2, "hash_ids": [0, 9]})"
    "\n";

constexpr std::string_view kAgentic = R"({"block_size": 64, "requests": [
  {"t": 0.0, "in": 130, "hash_ids": [1, 2]},
  {"t": 1.5, "type": "subagent", "requests": [{"t": 0.25, "in": 64, "hash_ids": [5]}]},
  {"t": 9.0, "in": 192, "hash_ids": [1, 2, 3]}]})";

Result<Trace> Parse(std::string_view text, uint64_t seed = 1, std::string name = "t") {
  return ParseTrace(text, TraceFormat::kAuto, {std::move(name), seed});
}

TEST(TraceTest, MooncakeRequestsComeInOrderOfArrival) {
  const auto trace = Parse(kMooncake);
  ASSERT_TRUE(trace) << trace.error().ToString();
  EXPECT_EQ(trace->block_tokens, 512u);
  EXPECT_EQ(trace->streams, 2u);
  ASSERT_EQ(trace->requests.size(), 2u);
  EXPECT_EQ(trace->requests[0].arrival_ms, 3);
  EXPECT_EQ(trace->requests[1].arrival_ms, 7);
  EXPECT_EQ(trace->requests[1].hashes.size(), 3u);
}

TEST(TraceTest, LastBlockOfAPromptCountsItsTokensOnly) {
  const auto trace = Parse(kMooncake);
  ASSERT_TRUE(trace);
  const TraceRequest& request = trace->requests[1];
  EXPECT_EQ(BlockTokens(request, 512, 0), 512u);
  EXPECT_EQ(BlockTokens(request, 512, 2), 1u);
  EXPECT_EQ(BlockTokens(request, 512, 3), 0u);
}

TEST(TraceTest, SubAgentsAreStreamsOfTheirOwnThatStartWithTheirCaller) {
  const auto trace = Parse(kAgentic);
  ASSERT_TRUE(trace) << trace.error().ToString();
  EXPECT_EQ(trace->block_tokens, 64u);
  ASSERT_EQ(trace->requests.size(), 3u);
  EXPECT_EQ(trace->streams, 2u);
  EXPECT_EQ(trace->requests[1].arrival_ms, 1750);
  EXPECT_NE(trace->requests[1].stream, trace->requests[0].stream);
  EXPECT_EQ(trace->requests[2].stream, trace->requests[0].stream);
}

TEST(TraceTest, EqualIdsAreEqualBlocksOnlyWithinOneScopeAndSeed) {
  const auto trace = Parse(kMooncake);
  const auto other_seed = Parse(kMooncake, 2);
  const auto other_name = Parse(kMooncake, 1, "u");
  ASSERT_TRUE(trace && other_seed && other_name);
  const BlockHash& first = trace->requests[0].hashes[0];
  EXPECT_EQ(first, trace->requests[1].hashes[0]);
  EXPECT_NE(first, trace->requests[0].hashes[1]);
  EXPECT_NE(first, other_seed->requests[0].hashes[0]);
  EXPECT_NE(first, other_name->requests[0].hashes[0]);
}

TEST(TraceTest, LinesWithAChatAreOfSecondsAndBlocksOf16Tokens) {
  const auto trace =
      Parse(R"({"chat_id": 159, "parent_chat_id": -1, "timestamp": 61.114, "input_length": 50,)"
            R"( "output_length": 132, "type": "text", "turn": 1, "hash_ids": [1, 2, 3, 4]})"
            "\n"
            R"({"chat_id": 160, "parent_chat_id": 159, "timestamp": 2, "input_length": 95,)"
            R"( "output_length": 13, "type": "text", "turn": 2, "hash_ids": [1, 2, 3, 4, 5]})");
  ASSERT_TRUE(trace) << trace.error().ToString();
  EXPECT_EQ(trace->block_tokens, 16u);
  ASSERT_EQ(trace->requests.size(), 2u);
  EXPECT_EQ(trace->requests[0].arrival_ms, 2000);
  EXPECT_EQ(trace->requests[1].arrival_ms, 61'114);
  EXPECT_EQ(trace->requests[1].hashes.size(), 4u);
}

TEST(TraceTest, AFaultNamesTheFieldAndItsValue) {
  const std::pair<std::string_view, std::string_view> bad[] = {
      {R"({"timestamp": 1, "input_length": 5})", R"("hash_ids" is missing)"},
      {R"({"timestamp": 1.5, "input_length": 5, "hash_ids": [1]})", R"("timestamp" is 1.5)"},
      {R"({"timestamp": 1, "input_length": null, "hash_ids": [1]})", R"("input_length" is null)"},
      {R"({"timestamp": 1, "input_length": 5, "hash_ids": [-1]})", R"("hash_ids" is [-1])"},
      {R"({"timestamp": 1, "input_length": 5000, "hash_ids": [1, 2, 3]})",
       R"("hash_ids" has 3 blocks of 512 tokens for the 5000 of "input_length")"},
      {R"({"block_size": 64, "requests": [{"t": "x", "in": 64, "hash_ids": [1]}]})",
       R"("t" is "x")"},
  };
  for (const auto& [text, expected] : bad) {
    const auto trace = Parse(text);
    ASSERT_FALSE(trace) << text;
    EXPECT_NE(trace.error().context.find(expected), std::string::npos) << trace.error().ToString();
  }
}

TEST(TraceTest, FaultsAreReportedWithTheirPlace) {
  const std::string_view bad[] = {
      "",
      "{}",
      "[1, 2",
      R"({"timestamp": 1, "input_length": 5})",
      R"({"timestamp": -1, "input_length": 5, "hash_ids": [1]})",
      R"({"timestamp": 1, "input_length": "5", "hash_ids": [1]})",
      R"({"timestamp": 1, "input_length": 512, "hash_ids": [1, 2]})",
      R"({"timestamp": 1, "input_length": 99999999999, "hash_ids": [1]})",
      R"({"block_size": 0, "requests": []})",
      R"({"block_size": 64, "requests": [{"t": -1, "in": 64, "hash_ids": [1]}]})",
      R"({"block_size": 64, "requests": [{"t": 1e99, "in": 64, "hash_ids": [1]}]})",
      R"({"block_size": 64, "requests": 3})",
  };
  for (const std::string_view text : bad) {
    const auto trace = Parse(text);
    ASSERT_FALSE(trace) << text;
    EXPECT_EQ(trace.error().reason, "bad_trace") << text;
    EXPECT_FALSE(trace.error().context.empty()) << text;
  }
  const auto second_line = Parse(std::string(kMooncake) + "nonsense\n");
  ASSERT_FALSE(second_line);
  EXPECT_NE(second_line.error().context.find("line 3"), std::string::npos);
}

TEST(TraceTest, MergedTracesRunSideBySideInStreamsOfTheirOwn) {
  auto a = Parse(kMooncake);
  auto b = Parse(kMooncake, 2);
  ASSERT_TRUE(a && b);
  const auto merged = MergeTraces({*a, *b});
  ASSERT_TRUE(merged);
  EXPECT_EQ(merged->streams, 4u);
  ASSERT_EQ(merged->requests.size(), 4u);
  EXPECT_EQ(merged->requests[1].arrival_ms, 3);
  EXPECT_EQ(merged->requests[1].stream, 3u);
}

TEST(TraceTest, TracesOfDifferentBlockSizesCannotBeMerged) {
  auto a = Parse(kMooncake);
  auto b = Parse(kAgentic);
  ASSERT_TRUE(a && b);
  const auto merged = MergeTraces({*a, *b});
  ASSERT_FALSE(merged);
  EXPECT_EQ(merged.error().reason, "mixed_block_tokens");
}

TEST(TraceTest, AbsentFileIsNotFoundAndADirectoryIsUnreadable) {
  const auto absent = LoadTrace("/nowhere/trace.jsonl", TraceFormat::kAuto, 1);
  ASSERT_FALSE(absent);
  EXPECT_EQ(absent.error().code, ErrorCode::kNotFound);
  const auto directory = LoadTrace("/", TraceFormat::kAuto, 1);
  ASSERT_FALSE(directory);
  EXPECT_EQ(directory.error().code, ErrorCode::kIoError);
}

}  // namespace
}  // namespace kvtier
