// SPDX-License-Identifier: Apache-2.0
// Several processes, one cache.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <utility>

#include "tests/integration/harness/daemon_test.h"
#include "tools/replay/replayer.h"

namespace kvtier {
namespace {

class SharedPrefixTest : public DaemonTest {
 protected:
  // Runs the example engine in a process of its own and returns the lines that it prints, which
  // say how much was cached, and the answer.
  std::pair<std::string, std::string> Ask(const std::string& text) {
    const ProgramResult result = RunProgram({ToyEnginePath(), daemon().socket(), text});
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    const size_t end = result.output.find("answer ");
    EXPECT_NE(end, std::string::npos) << result.output;
    return {result.output.substr(0, end),
            result.output.substr(std::min(end, result.output.size()))};
  }
};

TEST_F(SharedPrefixTest, SecondEngineContinuesWhatTheFirstComputed) {
  StartDaemon();
  const std::string text(100, 'x');
  const auto [nothing_cached, answer] = Ask(text);
  const auto [cached, same_answer] = Ask(text);
  EXPECT_EQ(nothing_cached, "cached 0 of 100 tokens: pool 0, host 0, disk 0\n");
  EXPECT_EQ(cached, "cached 99 of 100 tokens: pool 99, host 0, disk 0\n");
  EXPECT_EQ(same_answer, answer);
  EXPECT_NE(Ask(text + "!").second, answer);
}

TEST_F(SharedPrefixTest, EngineAnswersTheSameWithoutADaemon) {
  StartDaemon();
  const std::string text(100, 'y');
  const std::string answer = Ask(text).second;
  daemon().Kill();
  EXPECT_EQ(Ask(text), std::pair(std::string(), answer));
}

TEST_F(SharedPrefixTest, ManyClientsOnOneTraceSeeNoWrongByte) {
  StartDaemon({.pool_blocks = 160, .host_blocks = 120, .disk_blocks = 600});
  Trace trace;
  trace.block_tokens = kTestBlockTokens;
  for (uint32_t i = 0; i < 240; ++i) {
    // Every second request is of one of three busy conversations, the others come back rarely.
    const uint32_t conversation = i % 2 == 0 ? i % 3 : i % 37;
    TraceRequest request = Prompt(fmt::format("conversation {}", conversation), 4 + i % 29);
    request.stream = i;
    trace.requests.push_back(std::move(request));
  }
  trace.streams = 240;
  ReplayOptions options;
  options.target.socket = daemon().socket();
  options.target.block_bytes = kTestBlockBytes;
  options.clients = 4;
  std::atomic<uint64_t> played_last = 0;
  options.on_progress = [&played_last](uint64_t played, uint64_t requests) {
    EXPECT_EQ(requests, 240u);
    uint64_t before = played_last;
    while (before < played && !played_last.compare_exchange_weak(before, played)) {
    }
  };
  const auto report = Replay(trace, options);
  ASSERT_TRUE(report) << report.error().ToString();
  EXPECT_EQ(played_last, 240u) << "progress is told to the end";
  const HitCounts& blocks = report->blocks;
  EXPECT_EQ(report->wrong_blocks, 0u);
  EXPECT_EQ(report->requests, 240u);
  EXPECT_EQ(blocks.asked, blocks.hit[0] + blocks.hit[1] + blocks.hit[2] + blocks.miss);
  EXPECT_GT(blocks.hit[0], 0u);
  EXPECT_GT(blocks.hit[2], 0u);
  // Beside other programs a replay may find all that has left the pool on disk: then once more.
  uint64_t from_host = blocks.hit[1];
  options.on_progress = {};
  for (int more = 0; more < 10 && from_host == 0; ++more) {
    const auto again = Replay(trace, options);
    ASSERT_TRUE(again) << again.error().ToString();
    EXPECT_EQ(again->wrong_blocks, 0u);
    from_host = again->blocks.hit[1];
  }
  EXPECT_GT(from_host, 0u);
}

}  // namespace
}  // namespace kvtier
