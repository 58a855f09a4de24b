// SPDX-License-Identifier: Apache-2.0
// One client that settles after each request must be served exactly as the LRU model says, tier by
// tier, on real traces with real tiers.
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>

#include "tests/integration/harness/daemon_test.h"
#include "tests/model/lru_model.h"

namespace kvtier {
namespace {

constexpr uint64_t kBlockBytes = 64 * kKiB;
constexpr uint64_t kSlotBytes = kBlockBytes + 4 * kKiB;
constexpr uint64_t kSlabBytes = 4 * kMiB;
// A slab begins with a header of one page.
constexpr uint64_t kSlotsPerSlab = (kSlabBytes - 4 * kKiB) / kSlotBytes;
constexpr uint64_t kPoolBlocks = 400;
constexpr uint64_t kHostSlabs = 16;
constexpr uint64_t kDiskSlabs = 80;

class LruReplayTest : public DaemonTest {
 protected:
  // $KVTIER_TRACES, or the traces that lie beside the repository.
  static std::filesystem::path TracesDirectory() {
    const char* configured = std::getenv("KVTIER_TRACES");
    if (configured != nullptr) return configured;
    return std::filesystem::path(KVTIER_SOURCE_DIRECTORY).parent_path() / "shared/traces";
  }

  void StartDaemonOfModelSizes() {
    StartDaemon({}, {fmt::format("pool.bytes={}B", kPoolBlocks * kBlockBytes),
                     fmt::format("host.bytes={}B", kHostSlabs * kSlabBytes),
                     fmt::format("disk.bytes={}B", kDiskSlabs * kSlabBytes + kMiB),
                     fmt::format("cache.slab_bytes={}B", kSlabBytes),
                     // Nothing happens by the clock.
                     "retention.persist_after=1d", "retention.keep_unusable=1d",
                     "cache.max_wait_ms=60000", "cache.read_slot_wait_ms=60000"});
    WaitForTheArena();
  }

  // The model's host tier is whole from the start.
  void WaitForTheArena() {
    for (;;) {
      const boost::json::value document = Admin("status");
      const JsonView host = JsonView(&document)["tiers"]["host"];
      if (host["ready_bytes"].Count() == host["capacity_bytes"].Count()) return;
    }
  }

  LruModelOptions ModelSizes() {
    const boost::json::value config = Admin("config");
    const JsonView cache = JsonView(&config)["cache"];
    return {.pool = kPoolBlocks,
            .host = kHostSlabs * kSlotsPerSlab,
            .disk = kDiskSlabs * kSlotsPerSlab,
            .pool_clean_fraction = cache["pool_clean_fraction"].Number(),
            .host_clean_fraction = cache["host_clean_fraction"].Number(),
            .disk_free_fraction = cache["disk_free_fraction"].Number()};
  }

  void ExpectServedAsTheModelSays(const Trace& trace) {
    StartDaemonOfModelSizes();
    LruModel model(ModelSizes());
    ReplayTarget target;
    target.socket = daemon().socket();
    target.settle_admin_socket = daemon().admin_socket();
    target.block_bytes = kBlockBytes;
    auto client = ReplayClient::Connect(target, trace.block_tokens);
    ASSERT_TRUE(client) << client.error().ToString();
    HitCounts before;
    for (size_t i = 0; i < trace.requests.size(); ++i) {
      ASSERT_TRUE(client->Play(trace.requests[i]));
      const LruModelCounts expected = model.Request(trace.requests[i].hashes);
      const HitCounts now = client->Finish().blocks;
      const LruModelCounts served{.asked = now.asked - before.asked,
                                  .pool = now.hit[0] - before.hit[0],
                                  .host = now.hit[1] - before.hit[1],
                                  .disk = now.hit[2] - before.hit[2],
                                  .miss = now.miss - before.miss};
      ASSERT_EQ(served, expected) << "request " << i;
      before = now;
    }
    EXPECT_EQ(client->Finish().wrong_blocks, 0u);
    EXPECT_TRUE(client->Finish().Complete());
    for (const uint64_t hits : before.hit) EXPECT_GT(hits, 0u) << "the trace must reach every tier";
  }
};

TEST_F(LruReplayTest, ConversationTrace) {
  const auto path = TracesDirectory() / "mooncake_conversation.jsonl";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is absent";
  auto trace = LoadTrace(path, TraceFormat::kAuto, 1);
  ASSERT_TRUE(trace) << trace.error().ToString();
  ExpectServedAsTheModelSays(*trace);
}

TEST_F(LruReplayTest, SyntheticTrace) {
  const auto path = TracesDirectory() / "mooncake_synthetic.jsonl";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is absent";
  auto trace = LoadTrace(path, TraceFormat::kAuto, 1);
  ASSERT_TRUE(trace) << trace.error().ToString();
  ExpectServedAsTheModelSays(*trace);
}

// Needs no trace: conversations that come back, each a turn longer.
TEST_F(LruReplayTest, ConversationsThatGrow) {
  Trace trace;
  trace.block_tokens = 512;
  for (size_t i = 0; i < 400; ++i) {
    const size_t conversation = (i * i + i / 7) % 61;
    trace.requests.push_back(Prompt(fmt::format("conversation {}", conversation), 3 + i / 8));
  }
  ExpectServedAsTheModelSays(trace);
}

}  // namespace
}  // namespace kvtier
