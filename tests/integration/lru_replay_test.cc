// SPDX-License-Identifier: Apache-2.0
// One client that settles after each request must be served exactly as the LRU model says, tier by
// tier, on real traces with real tiers.
#include <fmt/format.h>

#include <boost/json.hpp>
#include <cstdlib>
#include <filesystem>
#include <optional>

#include "tests/integration/harness/daemon_test.h"
#include "tests/model/lru_model.h"
#include "tests/unit/daemon/daemon_under_test.h"
#include "tools/support/admin.h"

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

  // In this process, since no key sets two of these options.
  void StartDaemonOfModelSizes() {
    const auto adjust = [](Config* config) {
      config->cache.pool_bytes = kPoolBlocks * kBlockBytes;
      config->cache.pool_eviction = PoolEviction::kLru;
      config->host.bytes = kHostSlabs * kSlabBytes;
      config->disk.bytes = kDiskSlabs * kSlabBytes + kMiB;
      CacheOptions& cache = config->cache;
      cache.slab_bytes = kSlabBytes;
      // Nothing happens by the clock.
      cache.persist_after_ms = cache.keep_unusable_ms = kDayMs;
      cache.max_wait_ms = cache.read_slot_wait_ms = kMinuteMs;
    };
    daemon_.emplace(directory(), adjust);
    ASSERT_TRUE(daemon_->status()) << daemon_->status().error().ToString();
    WaitForTheArena();
  }

  boost::json::value Status() {
    const auto reply = CallAdmin(daemon_->admin_socket(), R"({"op":"status"})", kMinuteMs);
    EXPECT_TRUE(reply) << reply.error().ToString();
    return reply ? boost::json::parse(*reply) : boost::json::value();
  }

  // The model's host tier is whole from the start.
  void WaitForTheArena() {
    for (;;) {
      const boost::json::value document = Status();
      const JsonView host = JsonView(&document)["tiers"]["host"];
      if (host["ready_bytes"].Count() == host["capacity_bytes"].Count()) return;
    }
  }

  static LruModelOptions ModelSizes() {
    const CacheOptions options;
    return {.pool = kPoolBlocks,
            .host = kHostSlabs * kSlotsPerSlab,
            .disk = kDiskSlabs * kSlotsPerSlab,
            .pool_clean_fraction = options.pool_clean_fraction,
            .host_clean_fraction = options.host_clean_fraction,
            .disk_free_fraction = options.disk_free_fraction};
  }

  void ExpectServedAsTheModelSays(const Trace& trace) {
    StartDaemonOfModelSizes();
    LruModel model(ModelSizes());
    ReplayTarget target;
    target.socket = daemon_->socket();
    target.settle_admin_socket = daemon_->admin_socket();
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

  std::optional<DaemonUnderTest> daemon_;
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
