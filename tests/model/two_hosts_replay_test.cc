// SPDX-License-Identifier: Apache-2.0
// Two hosts behind one cold store, on recorded requests: what either has computed the other is
// served, and nothing else. The model is a set of blocks: a store that forgets nothing makes a hit
// of each block that any host has had, whatever the tiers of the hosts have evicted.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/units.h"
#include "daemon/cold/cold_backend.h"
#include "tests/fakes/derived_bytes.h"
#include "tests/fakes/fake_machine.h"
#include "tests/fakes/s3_server.h"
#include "tests/fakes/seeded_random.h"
#include "tests/fakes/temporary_directory.h"
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
  void Put(const std::string& name, const ColdObject& bytes) {
    const auto end = std::find_if(bytes.rbegin(), bytes.rend(), [](std::byte byte) {
                       return byte != std::byte{0};
                     }).base();
    objects_[name] = {{bytes.begin(), end}, bytes.size()};
  }
  [[nodiscard]] bool Contains(const std::string& name) const { return objects_.contains(name); }
  [[nodiscard]] ColdBytes Get(const std::string& name) const {
    const auto found = objects_.find(name);
    if (found == objects_.end()) return nullptr;
    auto bytes =
        std::make_shared<ColdObject>(found->second.begin.begin(), found->second.begin.end());
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

// A host's way to the store.
class HostsStore : public ColdStore {
 public:
  // Waits for all calls and posts their ends; false if none was under way.
  virtual bool Settle() = 0;
  // Whether it was put there by a host.
  [[nodiscard]] virtual bool Contains(const std::string& name) const = 0;
};

using StoreMaker = std::function<std::unique_ptr<HostsStore>(EventQueue*)>;

class MemoryStore final : public HostsStore {
 public:
  MemoryStore(SmallStore* store, EventQueue* loop) : store_(*store), loop_(*loop) {}

  bool Settle() override { return false; }
  [[nodiscard]] bool Contains(const std::string& name) const override {
    return store_.Contains(name);
  }

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
  void Put(std::string name, ColdBytes bytes, ColdPut /*how*/, int64_t /*timeout_ms*/,
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

// By the daemon's library for S3. Calls of one host run beside each other, as they do in a daemon.
class BucketStore final : public HostsStore {
 public:
  // `stored` has the names that hosts have put there; it is borrowed.
  BucketStore(const std::string& endpoint, const std::string& credentials,
              std::unordered_set<std::string>* stored, EventQueue* loop)
      : stored_(*stored), loop_(*loop) {
    void* const opened = ::dlopen(KVTIER_S3_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    KVT_CHECK(opened != nullptr);
    const auto table =
        reinterpret_cast<decltype(&kvt_cold_backend_table)>(::dlsym(opened, KVT_COLD_SYMBOL));
    backend_ = table(KVT_COLD_ABI);
    const kvt_cold_config config{.endpoint = endpoint.c_str(),
                                 .user = "",
                                 .password = "",
                                 .password_file = credentials.c_str(),
                                 .max_bytes = 0};
    store_ = backend_->open(&config, &BucketStore::OnDone, this);
    KVT_CHECK(store_ != nullptr);
  }
  ~BucketStore() override { (void)backend_->close(store_); }

  bool Settle() override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return ended_.size() == calls_.size(); });
    for (auto& [number, outcome] : std::exchange(ended_, {})) {
      loop_.Post(
          [end = std::move(calls_.at(number)), outcome = std::move(outcome)] { end(outcome); });
    }
    return !std::exchange(calls_, {}).empty();
  }
  [[nodiscard]] bool Contains(const std::string& name) const override {
    return stored_.contains(name);
  }
  [[nodiscard]] bool Available() override { return true; }
  void Exists(std::vector<std::string> names, ColdAsk ask, int64_t /*timeout_ms*/,
              ExistsDone done) override {
    std::vector<kvt_cold_name> views;
    for (const std::string& name : names) views.push_back({name.data(), name.size()});
    const uint64_t call = Begin([done = std::move(done)](const Outcome& outcome) {
      EXPECT_EQ(outcome.status, KVT_COLD_OK) << outcome.text;
      done(std::vector<bool>(outcome.text.begin(), outcome.text.end()));
    });
    backend_->exists(store_, call, views.data(), views.size(), ask == ColdAsk::kEach, kTimeoutMs);
  }
  void Get(std::string name, uint64_t bytes, int64_t /*timeout_ms*/, GetDone done) override {
    const auto into = std::make_shared<ColdObject>(bytes + 1);
    const uint64_t call = Begin([into, bytes, done = std::move(done)](const Outcome& outcome) {
      EXPECT_EQ(outcome.status, KVT_COLD_OK) << outcome.text;
      EXPECT_EQ(outcome.bytes, bytes);
      into->resize(bytes);
      done(into);
    });
    backend_->get(store_, call, {name.data(), name.size()}, into->data(), bytes, kTimeoutMs);
    backend_->send(store_);
  }
  void Put(std::string name, ColdBytes bytes, ColdPut how, int64_t /*timeout_ms*/,
           Done done) override {
    const uint64_t call =
        Begin([this, name, bytes, done = std::move(done)](const Outcome& outcome) {
          EXPECT_EQ(outcome.status, KVT_COLD_OK) << outcome.text;
          stored_.insert(name);
          done({});
        });
    backend_->put(store_, call, {name.data(), name.size()}, bytes->data(), bytes->size(), how.ttl_s,
                  how.replaces ? 1 : 0, kTimeoutMs);
    backend_->send(store_);
  }
  void Delete(std::vector<std::string> names, int64_t /*timeout_ms*/, Done /*done*/) override {
    ADD_FAILURE() << "a host deletes " << names.front();
  }
  void DeleteSome(std::string prefix, uint64_t /*cursor*/, int64_t /*timeout_ms*/,
                  DeletedDone /*done*/) override {
    ADD_FAILURE() << "a host deletes " << prefix;
  }

 private:
  static constexpr int64_t kTimeoutMs = 600'000;
  struct Outcome {
    int status = 0;
    std::string text;
    size_t bytes = 0;
  };
  using End = std::function<void(const Outcome&)>;

  uint64_t Begin(End end) {
    const std::lock_guard lock(mutex_);
    calls_[++last_] = std::move(end);
    return last_;
  }
  static void OnDone(void* context, uint64_t call, int status, const void* data, size_t bytes,
                     int /*more*/) {
    auto* const self = static_cast<BucketStore*>(context);
    Outcome outcome{.status = status, .text = {}, .bytes = bytes};
    if (data != nullptr) outcome.text.assign(static_cast<const char*>(data), bytes);
    const std::lock_guard lock(self->mutex_);
    self->ended_.emplace_back(call, std::move(outcome));
    self->changed_.notify_one();
  }

  std::unordered_set<std::string>& stored_;
  EventQueue& loop_;
  const kvt_cold_backend* backend_ = nullptr;
  void* store_ = nullptr;
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  uint64_t last_ = 0;
  std::map<uint64_t, End> calls_;
  std::deque<std::pair<uint64_t, Outcome>> ended_;
};

struct Counts {
  uint64_t hits = 0;
  uint64_t cold = 0;  // of them, those that came from the store
};

class Host {
 public:
  Host(const StoreMaker& make_store, uint32_t pool_blocks, uint64_t seed)
      : machine_({.device_bytes = pool_blocks * kBlockBytes,
                  .slab_bytes = kSlabBytes,
                  .host_slabs = Slabs(2 * pool_blocks),
                  .host_slabs_ready = Slabs(2 * pool_blocks),
                  .disk_slabs = Slabs(4 * pool_blocks)},
                 seed),
        cold_(make_store(&machine_.loop)) {
    CacheOptions options;
    options.pool_bytes = pool_blocks * kBlockBytes;
    options.slab_bytes = kSlabBytes;
    options.extended_ttl_ms = kYearMs;
    options.persist_after_ms = 1000;
    options.cold_after_ms = 0;
    options.cold_min_uses = 0;
    options.cold_write_bytes_per_s = 1024 * kGiB;
    CacheEnvironment environment = machine_.Environment();
    environment.cold = cold_.get();
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
    RunAll();
  }

 private:
  void RunAll() {
    do {
      machine_.loop.RunAll();
    } while (cold_->Settle());
  }
  [[nodiscard]] static uint32_t Slabs(uint64_t slots) {
    return static_cast<uint32_t>((slots + kSlotsPerSlab - 1) / kSlotsPerSlab);
  }
  [[nodiscard]] bool Stored(const std::vector<BlockHash>& hashes) const {
    return std::ranges::all_of(hashes, [this](const BlockHash& hash) {
      return cold_->Contains(ColdName(kIdentity, hash));
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
    RunAll();
    EXPECT_TRUE(reply.has_value() && reply->has_value());
    return reply && *reply ? **reply : AcquireReply{};
  }

  FakeMachine machine_;
  const std::unique_ptr<HostsStore> cold_;
  std::optional<Cache> cache_;
  PoolInfo pool_;
};

// Each host is given every second request.
void ExpectHitsOfTheModel(const Trace& trace, const StoreMaker& make_store) {
  size_t longest = 0;
  for (const TraceRequest& request : trace.requests) {
    longest = std::max(longest, request.hashes.size());
  }
  const auto pool_blocks = static_cast<uint32_t>(2 * longest);
  Host first(make_store, pool_blocks, 1);
  Host second(make_store, pool_blocks, 2);
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

void ReplayInMemory(const Trace& trace) {
  SmallStore store;
  ExpectHitsOfTheModel(
      trace, [&store](EventQueue* loop) { return std::make_unique<MemoryStore>(&store, loop); });
}

// Over the bucket that KVTIER_S3_ENDPOINT names, which is empty and whose credentials are in the
// environment, or over one of this process.
void ReplayOverS3(const Trace& trace) {
  if (std::string_view(KVTIER_S3_LIBRARY).empty()) GTEST_SKIP() << "built without libcurl";
  const char* const endpoint = std::getenv("KVTIER_S3_ENDPOINT");
  std::optional<S3Server> server;
  const TestDirectory directory;
  std::string credentials;
  if (endpoint == nullptr) {
    server.emplace();
    credentials = directory.path().string() + "/credentials";
    std::ofstream(credentials) << "[default]\naws_access_key_id = AKIDTEST\n"
                                  "aws_secret_access_key = secret/+of=tests\n";
  }
  const std::string bucket = server ? server->Endpoint() : endpoint;
  std::unordered_set<std::string> stored;
  ExpectHitsOfTheModel(trace, [&](EventQueue* loop) {
    return std::make_unique<BucketStore>(bucket, credentials, &stored, loop);
  });
  EXPECT_EQ(server ? server->Names().size() : stored.size(), stored.size());
}

TEST(TwoHostsReplayTest, HitsOfMadeSessionsAreThoseOfTheModel) { ReplayInMemory(MadeSessions()); }

TEST(TwoHostsReplayTest, HitsOfMadeSessionsOverS3AreThoseOfTheModel) {
  ReplayOverS3(MadeSessions());
}

class RecordedTwoHostsReplayTest : public ::testing::TestWithParam<const char*> {
 protected:
  // KVTIER_TRACE_REQUESTS bounds it, for servers that need long.
  [[nodiscard]] static Trace Load(const std::string& directory) {
    const std::filesystem::path path = std::filesystem::path(directory) / GetParam();
    auto trace = LoadTrace(path.string(), TraceFormat::kMooncake, /*seed=*/1);
    EXPECT_TRUE(trace) << trace.error().ToString();
    const char* const most = std::getenv("KVTIER_TRACE_REQUESTS");
    if (trace && most != nullptr) {
      const size_t count = std::strtoull(most, nullptr, 10);
      trace->requests.resize(std::min(trace->requests.size(), count));
    }
    return trace ? *std::move(trace) : Trace();
  }
  void SetUp() override {
    if (directory_ == nullptr) GTEST_SKIP() << "KVTIER_TRACES names no directory of traces";
  }

  const char* const directory_ = std::getenv("KVTIER_TRACES");
};

TEST_P(RecordedTwoHostsReplayTest, HitsAreThoseOfTheModel) { ReplayInMemory(Load(directory_)); }

TEST_P(RecordedTwoHostsReplayTest, HitsOverS3AreThoseOfTheModel) { ReplayOverS3(Load(directory_)); }

INSTANTIATE_TEST_SUITE_P(Traces, RecordedTwoHostsReplayTest,
                         ::testing::Values("mooncake_conversation.jsonl",
                                           "mooncake_synthetic.jsonl"),
                         [](const auto& param) {
                           return std::string(param.index == 0 ? "Conversation" : "Synthetic");
                         });

}  // namespace
}  // namespace kvtier
