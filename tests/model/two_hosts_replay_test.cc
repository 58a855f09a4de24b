// SPDX-License-Identifier: Apache-2.0
// Two hosts behind one cold store, on recorded requests: what either has computed the other is
// served, and nothing else. The model is a set of blocks: a store that forgets nothing makes a hit
// of each block that any host has had, whatever the tiers of the hosts have evicted.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/units.h"
#include "tests/fakes/derived_bytes.h"
#include "tests/fakes/fake_machine.h"
#include "tests/fakes/seeded_random.h"
#include "tiers/cache.h"
#include "tiers/cold/cold_object.h"
#include "tiers/cold/cold_store.h"
#include "tools/replay/trace.h"

namespace kvtier {
namespace {

constexpr SessionId kSession{1};
constexpr uint64_t kBlockBytes = 4 * kKiB;
constexpr uint64_t kSlotsPerSlab = 64;
constexpr uint64_t kSlabBytes = kSlotsPerSlab * 2 * kBlockBytes + 4 * kKiB;
constexpr int64_t kYearMs = int64_t{365} * 24 * 60 * 60 * 1000;

const NamespaceIdentity kIdentity{.tenant = "tenant", .block_bytes = kBlockBytes};

// Objects without the zeros at their ends, which are most of them here. Answers are events of the
// loop of the host that asks.
class SmallStore {
 public:
  void Put(const std::string& name, const std::vector<std::byte>& bytes) {
    const auto end = std::find_if(bytes.rbegin(), bytes.rend(), [](std::byte byte) {
                       return byte != std::byte{0};
                     }).base();
    objects_[name] = {{bytes.begin(), end}, bytes.size()};
  }
  [[nodiscard]] bool Contains(const std::string& name) const { return objects_.contains(name); }
  [[nodiscard]] ColdBytes Get(const std::string& name) const {
    const auto found = objects_.find(name);
    if (found == objects_.end()) return nullptr;
    auto bytes = std::make_shared<std::vector<std::byte>>(found->second.begin);
    bytes->resize(found->second.bytes);
    return bytes;
  }

 private:
  struct Object {
    std::vector<std::byte> begin;
    size_t bytes = 0;
  };
  std::unordered_map<std::string, Object> objects_;
};

class HostsStore final : public ColdStore {
 public:
  HostsStore(SmallStore* store, EventQueue* loop) : store_(*store), loop_(*loop) {}

  [[nodiscard]] bool Available() override { return true; }
  void Exists(std::vector<std::string> names, ColdAsk /*ask*/, int64_t /*timeout_ms*/,
              ExistsDone done) override {
    loop_.Post([this, names = std::move(names), done = std::move(done)] {
      std::vector<bool> present;
      for (const std::string& name : names) present.push_back(store_.Contains(name));
      done(std::move(present));
    });
  }
  void Get(std::string name, uint64_t /*bytes*/, int64_t /*timeout_ms*/, GetDone done) override {
    loop_.Post([this, name = std::move(name), done = std::move(done)] {
      const ColdBytes bytes = store_.Get(name);
      if (bytes) return done(bytes);
      done(MakeError(ErrorCode::kNotFound, "cold_object_absent"));
    });
  }
  void Put(std::string name, ColdBytes bytes, int64_t /*ttl_s*/, int64_t /*timeout_ms*/,
           Done done) override {
    store_.Put(name, *bytes);
    loop_.Post([done = std::move(done)] { done({}); });
  }
  void Delete(std::vector<std::string> /*names*/, int64_t /*timeout_ms*/, Done done) override {
    loop_.Post([done = std::move(done)] { done({}); });
  }
  void DeleteSome(std::string /*prefix*/, uint64_t /*cursor*/, int64_t /*timeout_ms*/,
                  DeletedDone done) override {
    loop_.Post([done = std::move(done)] { done(0); });
  }

 private:
  SmallStore& store_;
  EventQueue& loop_;
};

struct Counts {
  uint64_t hits = 0;
  uint64_t cold = 0;  // of them, those that came from the store
};

class Host {
 public:
  Host(SmallStore* store, uint32_t pool_blocks, uint64_t seed)
      : store_(*store),
        machine_({.device_bytes = pool_blocks * kBlockBytes,
                  .slab_bytes = kSlabBytes,
                  .host_slabs = Slabs(2 * pool_blocks),
                  .host_slabs_ready = Slabs(2 * pool_blocks),
                  .disk_slabs = Slabs(4 * pool_blocks)},
                 seed),
        cold_(store, &machine_.loop) {
    CacheOptions options;
    options.pool_bytes = pool_blocks * kBlockBytes;
    options.slab_bytes = kSlabBytes;
    options.extended_ttl_ms = kYearMs;
    options.persist_after_ms = 1000;
    options.cold_after_ms = 0;
    options.cold_min_uses = 0;
    options.cold_write_bytes_per_s = 1024 * kGiB;
    CacheEnvironment environment = machine_.Environment();
    environment.cold = &cold_;
    cache_.emplace(options, std::move(environment), IndexSnapshot{});
    cache_->OpenSession(kSession, [](const LoadProgress&) {});
    pool_ = cache_->AttachPool(kIdentity, 0).value();
  }
  ~Host() { machine_.loop.DropAll(); }

  Counts Play(const TraceRequest& request, uint32_t block_tokens) {
    const uint64_t cold_before = cache_->stats().blocks.cold;
    std::vector<BlockHandle> held;
    for (const AcquiredBlock& hit : Acquire(request.hashes, 0, block_tokens).hits) {
      held.push_back(hit.handle);
    }
    const Counts counts{held.size(), cache_->stats().blocks.cold - cold_before};
    const auto missing = static_cast<uint32_t>(request.hashes.size() - held.size());
    for (const BlockHandle& block : Acquire({}, missing, block_tokens).new_blocks) {
      const size_t depth = held.size();
      CommitRequest commit{.block = block, .hash = request.hashes[depth]};
      commit.tokens = static_cast<uint16_t>(block_tokens);
      commit.depth = static_cast<uint32_t>(depth);
      if (depth > 0) commit.parent = request.hashes[depth - 1];
      EXPECT_TRUE(cache_->Commit(kSession, pool_.id, commit));
      held.push_back(block);
    }
    std::ranges::reverse(held);
    EXPECT_TRUE(cache_->Release(kSession, pool_.id, held).empty());
    return counts;
  }
  // Which of the blocks, from the first one on, some tier of this host has.
  [[nodiscard]] uint64_t Local(const std::vector<BlockHash>& hashes) const {
    uint64_t local = 0;
    for (const BlockPresence& block : cache_->Lookup(pool_.id, hashes)) local += block.anywhere();
    return local;
  }
  // Until the store has all of them.
  void AwaitStored(const std::vector<BlockHash>& hashes) {
    constexpr int kMostTicks = 100;
    for (int ticks = 0; !Stored(hashes); ++ticks) {
      ASSERT_LT(ticks, kMostTicks);
      Advance(1000);
    }
  }
  void Advance(int64_t ms) {
    machine_.clock.Advance(ms);
    cache_->Tick();
    machine_.loop.RunAll();
  }

 private:
  [[nodiscard]] static uint32_t Slabs(uint64_t slots) {
    return static_cast<uint32_t>((slots + kSlotsPerSlab - 1) / kSlotsPerSlab);
  }
  [[nodiscard]] bool Stored(const std::vector<BlockHash>& hashes) const {
    return std::ranges::all_of(hashes, [this](const BlockHash& hash) {
      return store_.Contains(ColdName(kIdentity, hash));
    });
  }
  AcquireReply Acquire(const std::vector<BlockHash>& hashes, uint32_t new_blocks,
                       uint32_t block_tokens) {
    std::optional<Result<AcquireReply>> reply;
    cache_->Acquire({.session = kSession,
                     .pool = pool_.id,
                     .hashes = hashes,
                     .new_blocks = new_blocks,
                     .block_tokens = static_cast<uint16_t>(block_tokens)},
                    [&](Result<AcquireReply> result) { reply = std::move(result); });
    machine_.loop.RunAll();
    EXPECT_TRUE(reply.has_value() && reply->has_value());
    return reply && *reply ? **reply : AcquireReply{};
  }

  SmallStore& store_;
  FakeMachine machine_;
  HostsStore cold_;
  std::optional<Cache> cache_;
  PoolInfo pool_;
};

// Each host is given every second request.
void ExpectHitsOfTheModel(const Trace& trace) {
  size_t longest = 0;
  for (const TraceRequest& request : trace.requests) {
    longest = std::max(longest, request.hashes.size());
  }
  SmallStore store;
  const auto pool_blocks = static_cast<uint32_t>(2 * longest);
  Host first(&store, pool_blocks, 1);
  Host second(&store, pool_blocks, 2);
  std::unordered_set<BlockHash> seen;
  Counts total;
  uint64_t expected_cold = 0;
  for (size_t i = 0; i < trace.requests.size(); ++i) {
    const TraceRequest& request = trace.requests[i];
    const auto unseen = std::ranges::find_if_not(
        request.hashes, [&](const BlockHash& hash) { return seen.contains(hash); });
    const std::vector<BlockHash> prefix(request.hashes.begin(), unseen);
    Host& host = i % 2 == 0 ? first : second;
    expected_cold += prefix.size() - host.Local(prefix);
    const Counts counts = host.Play(request, trace.block_tokens);
    ASSERT_EQ(counts.hits, prefix.size()) << "request " << i;
    total.hits += counts.hits;
    total.cold += counts.cold;
    ASSERT_NO_FATAL_FAILURE(host.AwaitStored(request.hashes)) << "request " << i;
    seen.insert(request.hashes.begin(), request.hashes.end());
  }
  EXPECT_EQ(total.cold, expected_cold);
  EXPECT_GT(total.cold, total.hits / 4);
}

// Conversations that take turns, each request with the blocks of the one before and some more.
Trace MadeSessions() {
  constexpr int kSessions = 40, kTurns = 8;
  Trace trace;
  trace.block_tokens = 16;
  SeededRandom random(1);
  std::vector<TraceRequest> sessions(kSessions);
  for (int turn = 0; turn < kSessions * kTurns; ++turn) {
    const uint64_t session = random.Below(kSessions);
    std::vector<BlockHash>& hashes = sessions[session].hashes;
    for (uint64_t more = 1 + random.Below(6); more > 0; --more) {
      hashes.push_back(TestHash(session, static_cast<uint32_t>(hashes.size())));
    }
    trace.requests.push_back(sessions[session]);
  }
  return trace;
}

TEST(TwoHostsReplayTest, HitsOfMadeSessionsAreThoseOfTheModel) {
  ExpectHitsOfTheModel(MadeSessions());
}

class RecordedTwoHostsReplayTest : public ::testing::TestWithParam<const char*> {};

TEST_P(RecordedTwoHostsReplayTest, HitsAreThoseOfTheModel) {
  const char* const directory = std::getenv("KVTIER_TRACES");
  if (directory == nullptr) GTEST_SKIP() << "KVTIER_TRACES names no directory of traces";
  const std::filesystem::path path = std::filesystem::path(directory) / GetParam();
  const auto trace = LoadTrace(path.string(), TraceFormat::kMooncake, /*seed=*/1);
  ASSERT_TRUE(trace) << trace.error().ToString();
  ExpectHitsOfTheModel(*trace);
}

INSTANTIATE_TEST_SUITE_P(Traces, RecordedTwoHostsReplayTest,
                         ::testing::Values("mooncake_conversation.jsonl",
                                           "mooncake_synthetic.jsonl"),
                         [](const auto& param) {
                           return std::string(param.index == 0 ? "Conversation" : "Synthetic");
                         });

}  // namespace
}  // namespace kvtier
