// SPDX-License-Identifier: Apache-2.0
// Sequences go on after the daemon's death: an engine keeps its blocks, its mapping and its
// computed tokens, and need not know that there was another daemon.
#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <numeric>
#include <thread>

#include "tests/integration/harness/daemon_test.h"
#include "tools/support/json_view.h"

namespace kvtier {
namespace {

constexpr int32_t kResumeWaitMs = 60'000;
constexpr uint64_t kTokenBytes = kTestBlockBytes / kTestBlockTokens;
constexpr TierSizes kSizes{.pool_blocks = 64, .host_blocks = 12, .disk_blocks = 0};

std::vector<uint32_t> Tokens(uint32_t first, uint32_t count) {
  std::vector<uint32_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

// An engine with one sequence, whose "KV" of a token is the token's number in each byte's place.
class Engine {
 public:
  Engine(kvt::Connection connection, kvt::Pool pool)
      : connection_(std::move(connection)), pool_(std::move(pool)) {}

  [[nodiscard]] bool Open(std::vector<uint32_t> tokens) {
    tokens_ = std::move(tokens);
    written_ = 0;
    auto opened = pool_.OpenSequence(tokens_);
    EXPECT_TRUE(opened) << opened.error().ToString();
    if (!opened) return false;
    sequence_.emplace(*std::move(opened));
    return static_cast<bool>(sequence_->Wait());
  }
  [[nodiscard]] kvt::Status Append(uint32_t count) {
    const std::vector<uint32_t> more =
        Tokens(tokens_.front() + static_cast<uint32_t>(tokens_.size()), count);
    const kvt::Status appended = sequence_->Append(more);
    if (appended) tokens_.insert(tokens_.end(), more.begin(), more.end());
    return appended;
  }
  // Writes the KV of all tokens that have none yet.
  void Write() {
    for (; written_ < tokens_.size(); ++written_) {
      const std::span<uint32_t> kv = KvOf(written_);
      std::ranges::fill(kv, tokens_[written_]);
    }
  }
  [[nodiscard]] kvt::Status Compute() {
    written_ = std::max<size_t>(written_, sequence_->cached_tokens());
    Write();
    return sequence_->MarkComputed(tokens_.size());
  }
  // Tokens whose KV differs from the computed one.
  [[nodiscard]] size_t Wrong() {
    size_t wrong = 0;
    for (size_t i = 0; i < tokens_.size(); ++i) {
      wrong += std::ranges::any_of(KvOf(i), [&](uint32_t word) { return word != tokens_[i]; });
    }
    return wrong;
  }
  [[nodiscard]] kvt::Sequence& sequence() { return *sequence_; }
  [[nodiscard]] kvt::Pool& pool() { return pool_; }
  [[nodiscard]] kvt::Connection& connection() { return connection_; }
  [[nodiscard]] size_t tokens() const { return tokens_.size(); }
  [[nodiscard]] std::vector<int32_t> Table() { return *sequence_->BlockTable(); }
  void Close() { sequence_.reset(); }

 private:
  [[nodiscard]] std::span<uint32_t> KvOf(size_t token) {
    const int64_t slot = sequence_->SlotMapping(token, 1)->front();
    auto* const base = static_cast<std::byte*>(sequence_->Info().base);
    return {reinterpret_cast<uint32_t*>(base + static_cast<uint64_t>(slot) * kTokenBytes),
            kTokenBytes / sizeof(uint32_t)};
  }

  kvt::Connection connection_;
  kvt::Pool pool_;
  std::optional<kvt::Sequence> sequence_;
  std::vector<uint32_t> tokens_;
  size_t written_ = 0;
};

class ResumedSequencesTest : public DaemonTest {
 protected:
  void TearDown() override {
    (void)Ctl({"stop", "--release"});
    DaemonTest::TearDown();
  }
  void Start(std::vector<std::string> more_settings = {}) {
    more_settings.insert(more_settings.begin(), "restart.keep_for=1min");
    StartDaemon(kSizes, std::move(more_settings));
  }
  [[nodiscard]] std::unique_ptr<Engine> MakeEngine(int32_t resume_wait_ms = kResumeWaitMs) {
    kvt_connect_options options;
    kvt_connect_options_init(&options);
    options.request_timeout_ms = kResumeWaitMs;
    options.resume_wait_ms = resume_wait_ms;
    auto connection = kvt::Connection::Connect(daemon().socket(), &options);
    EXPECT_TRUE(connection) << connection.error().ToString();
    const auto record = ModelOfBlockBytes(kTestBlockBytes, kTestBlockTokens);
    const auto model = connection->RegisterModel(*record);
    EXPECT_TRUE(model) << model.error().ToString();
    auto pool = connection->Attach(model->model);
    EXPECT_TRUE(pool) << pool.error().ToString();
    return std::make_unique<Engine>(*std::move(connection), *std::move(pool));
  }
  // One in the middle of a sequence: full blocks, a partial one, and blocks that wait for tokens.
  [[nodiscard]] std::unique_ptr<Engine> EngineAtWork(uint32_t first_token = 1) {
    auto engine = MakeEngine();
    EXPECT_TRUE(engine->Open(Tokens(first_token, 5 * kTestBlockTokens + 7)));
    EXPECT_TRUE(engine->Compute());
    EXPECT_TRUE(engine->connection().Flush());
    return engine;
  }
  // The kernel may close the daemon's sockets a moment after the process has gone.
  void KillAndNotice(Engine* engine) {
    daemon().Kill();
    while (engine->connection().IsConnected()) std::this_thread::yield();
  }
  void KillAndRestart() {
    daemon().Kill();
    ASSERT_TRUE(daemon().Restart());
  }
  void ExpectGoesOn(Engine* engine) {
    const std::vector<int32_t> table = engine->Table();
    const uint64_t computed = engine->sequence().Info().computed_tokens;
    const auto status = engine->sequence().Check();
    EXPECT_TRUE(status) << status.error().ToString();
    EXPECT_EQ(engine->Table(), table) << "the same blocks";
    EXPECT_EQ(engine->sequence().Info().computed_tokens, computed) << "nothing is computed again";
    EXPECT_EQ(engine->Wrong(), 0u);
    EXPECT_TRUE(engine->Append(2 * kTestBlockTokens));
    EXPECT_TRUE(engine->Compute());
    EXPECT_EQ(engine->Wrong(), 0u);
  }
  [[nodiscard]] uint64_t Restart(const char* what) {
    const boost::json::value status = Admin("status");
    return JsonView(&status)["restart"][what].Count();
  }
};

TEST_F(ResumedSequencesTest, AfterAKillASequenceGoesOn) {
  Start();
  const auto engine = EngineAtWork();
  const void* const base = engine->sequence().Info().base;
  const uint64_t attachment = engine->sequence().Info().attachment;
  KillAndRestart();
  ExpectGoesOn(engine.get());
  EXPECT_EQ(engine->sequence().Info().base, base);
  EXPECT_EQ(engine->sequence().Info().attachment, attachment);
  EXPECT_EQ(Restart("resumed_blocks"), 6u);
  EXPECT_EQ(Restart("resume_lost_blocks"), 0u);
  EXPECT_EQ(Restart("former_clients"), 0u);
}

TEST_F(ResumedSequencesTest, AfterSigtermASequenceGoesOn) {
  Start();
  const auto engine = EngineAtWork();
  EXPECT_EQ(daemon().Terminate(), 0);
  ASSERT_TRUE(daemon().Restart());
  ExpectGoesOn(engine.get());
  EXPECT_EQ(Restart("resume_lost_blocks"), 0u);
}

TEST_F(ResumedSequencesTest, WhatItComputesAfterwardsIsFoundByOthers) {
  Start();
  const auto engine = EngineAtWork();
  KillAndRestart();
  ExpectGoesOn(engine.get());
  EXPECT_TRUE(engine->connection().Flush() || engine->connection().Flush());
  const auto other = MakeEngine();
  ASSERT_TRUE(other->Open(Tokens(1, 7 * kTestBlockTokens + 1)));
  EXPECT_EQ(other->sequence().cached_tokens(), 7 * kTestBlockTokens);
  EXPECT_EQ(other->Table().front(), engine->Table().front()) << "the same block";
}

TEST_F(ResumedSequencesTest, ACallWaitsForTheNextDaemon) {
  Start();
  const auto engine = EngineAtWork();
  daemon().Kill();
  std::thread working([&] { ExpectGoesOn(engine.get()); });
  ASSERT_TRUE(daemon().Restart());
  working.join();
}

TEST_F(ResumedSequencesTest, ManyDeathsInARowLoseNothing) {
  Start();
  const auto engine = EngineAtWork();
  for (int deaths = 0; deaths < 4; ++deaths) {
    KillAndRestart();
    (void)Admin("status");
    // Every other death comes before the engine has noticed the one before.
    if (deaths % 2 == 1) ExpectGoesOn(engine.get());
  }
  EXPECT_EQ(Restart("former_clients"), 0u);
}

// One that computes without a pause, and opens another sequence whenever one is long enough, so
// that a death comes in the midst of any of its calls. Each of them has to succeed, without a loss.
class BusyEngine {
 public:
  explicit BusyEngine(std::unique_ptr<Engine> engine)
      : engine_(std::move(engine)), thread_([this] { Work(); }) {}
  ~BusyEngine() { Stop(); }
  void Stop() {
    stopping_ = true;
    if (thread_.joinable()) thread_.join();
  }
  // Until it has done so many more steps, or has failed.
  void AwaitSteps(uint64_t steps) const {
    const uint64_t until = steps_ + steps;
    while (steps_ < until && !failed_) std::this_thread::yield();
  }
  [[nodiscard]] bool failed() const { return failed_; }

 private:
  void Work() {
    for (; !stopping_ && !failed_; ++steps_) failed_ = !Step();
  }
  [[nodiscard]] bool Step() {
    constexpr uint64_t kMostTokens = uint64_t{20} * kTestBlockTokens;
    if (engine_->sequence().Info().computed_tokens >= kMostTokens) {
      first_token_ += 100'000;
      // The last one is held until then: a client that holds nothing does not wait for a daemon.
      if (!engine_->Open(Tokens(first_token_, 3))) return false;
    }
    return Succeeds(engine_->Append(kTestBlockTokens / 2 + 1)) && Succeeds(engine_->Compute()) &&
           Succeeds(engine_->sequence().Check()) && Has(engine_->Wrong() == 0, "wrong bytes") &&
           Has(engine_->sequence().Info().computed_tokens == engine_->tokens(), "lost tokens");
  }
  [[nodiscard]] static bool Succeeds(const kvt::Status& status) {
    EXPECT_TRUE(status) << status.error().ToString();
    return static_cast<bool>(status);
  }
  [[nodiscard]] static bool Has(bool holds, const char* otherwise) {
    EXPECT_TRUE(holds) << otherwise;
    return holds;
  }

  const std::unique_ptr<Engine> engine_;
  uint32_t first_token_ = 1'000'000;
  std::atomic<uint64_t> steps_ = 0;
  std::atomic<bool> failed_ = false;
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

// $KVTIER_DEATHS of them, 12 if it is not set.
TEST_F(ResumedSequencesTest, DeathsInTheMidstOfItsCallsCostAnEngineNothing) {
  const char* const configured = std::getenv("KVTIER_DEATHS");
  const int deaths = configured != nullptr ? std::atoi(configured) : 12;
  Start();
  BusyEngine engine(EngineAtWork());
  for (int death = 0; death < deaths; ++death) {
    // Neither a whole number of sequences nor of steps.
    engine.AwaitSteps(static_cast<uint64_t>(death % 37));
    KillAndRestart();
    ASSERT_FALSE(engine.failed()) << "after death " << death;
  }
  // The first of them may have begun before the last death.
  engine.AwaitSteps(2);
  engine.Stop();
  EXPECT_FALSE(engine.failed());
  EXPECT_GT(Restart("resumed_blocks"), 0u);
  EXPECT_EQ(Restart("resume_lost_blocks"), 0u);
  EXPECT_EQ(Restart("former_clients"), 0u);
}

TEST_F(ResumedSequencesTest, EachOfManySequencesGoesOn) {
  Start();
  const auto engine = EngineAtWork();
  const auto other = EngineAtWork(1000);
  auto second = engine->pool().OpenSequence(Tokens(1, 5 * kTestBlockTokens + 7));
  ASSERT_TRUE(second);
  const uint64_t cached = second->cached_tokens();
  KillAndRestart();
  ExpectGoesOn(engine.get());
  EXPECT_TRUE(second->Check());
  EXPECT_EQ(second->cached_tokens(), cached);
  ExpectGoesOn(other.get());
  // A block that one gives back is the other's still.
  engine->Close();
  EXPECT_TRUE(second->Check());
  EXPECT_TRUE(second->Append(Tokens(500, 2)));
}

TEST_F(ResumedSequencesTest, WhatIsClosedAfterwardsIsGivenBack) {
  Start();
  const auto engine = EngineAtWork();
  KillAndRestart();
  ExpectGoesOn(engine.get());
  engine->Close();
  ASSERT_TRUE(engine->connection().Ping());
  const boost::json::value status = Admin("status");
  const boost::json::value& pool = status.at("pools").at(0);
  EXPECT_EQ(pool.at("private").to_number<uint64_t>(), 0u);
  EXPECT_EQ(pool.at("referenced").to_number<uint64_t>(), 0u);
  EXPECT_EQ(pool.at("quarantined").to_number<uint64_t>(), 0u);
}

TEST_F(ResumedSequencesTest, WhatIsClosedMeanwhileIsGivenBackToo) {
  Start();
  const auto engine = EngineAtWork();
  auto second = engine->pool().OpenSequence(Tokens(7000, 3));
  ASSERT_TRUE(second);
  daemon().Kill();
  engine->Close();
  ASSERT_TRUE(daemon().Restart());
  ASSERT_TRUE(second->Check());
  const boost::json::value status = Admin("status");
  const boost::json::value& pool = status.at("pools").at(0);
  EXPECT_EQ(pool.at("private").to_number<uint64_t>(), 1u);
  EXPECT_EQ(pool.at("referenced").to_number<uint64_t>(), 0u);
  EXPECT_EQ(pool.at("quarantined").to_number<uint64_t>(), 0u);
}

TEST_F(ResumedSequencesTest, ADeadClientsBlocksAreFreeAtOnce) {
  Start();
  const pid_t child = ::fork();
  if (child == 0) {
    const auto engine = EngineAtWork();
    ::kill(::getpid(), SIGSTOP);
    ::_exit(0);
  }
  ::waitpid(child, nullptr, WUNTRACED);
  KillAndRestart();
  EXPECT_EQ(Restart("former_clients"), 1u);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  while (Restart("former_clients") > 0) std::this_thread::yield();
  const boost::json::value status = Admin("status");
  const boost::json::value& pool = status.at("pools").at(0);
  EXPECT_EQ(
      pool.at("referenced").to_number<uint64_t>() + pool.at("quarantined").to_number<uint64_t>(),
      0u);
}

TEST_F(ResumedSequencesTest, WithoutTheKeeperASequenceIsStaleAndNotWrong) {
  Start();
  const auto engine = EngineAtWork();
  const boost::json::value status = Admin("status");
  const auto keeper = static_cast<pid_t>(JsonView(&status)["restart"]["pid"].Count());
  ASSERT_GT(keeper, 0);
  KillAndNotice(engine.get());
  ::kill(keeper, SIGKILL);
  ASSERT_TRUE(daemon().Restart());
  const auto checked = engine->sequence().Check();
  ASSERT_FALSE(checked);
  EXPECT_EQ(checked.error().code, KVT_STALE_HANDLE);
  // The pool is there again for what comes next.
  engine->Close();
  EXPECT_TRUE(engine->Open(Tokens(1, 40)));
  EXPECT_EQ(engine->sequence().cached_tokens(), 0u);
}

TEST_F(ResumedSequencesTest, WhereNothingIsKeptNoCallWaits) {
  Start({"restart.keep_for=0s"});
  const auto engine = EngineAtWork();
  KillAndNotice(engine.get());
  const auto begun = std::chrono::steady_clock::now();
  EXPECT_FALSE(engine->sequence().Check());
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::milliseconds(kResumeWaitMs / 2));
}

TEST_F(ResumedSequencesTest, ADaemonThatDoesNotComeIsWaitedForOnceOnly) {
  Start();
  const auto engine = MakeEngine(/*resume_wait_ms=*/50);
  ASSERT_TRUE(engine->Open(Tokens(1, 40)));
  KillAndNotice(engine.get());
  EXPECT_FALSE(engine->sequence().Check());
  ASSERT_TRUE(daemon().Restart());
  EXPECT_FALSE(engine->sequence().Check()) << "it has been told that its blocks are lost";
}

}  // namespace
}  // namespace kvtier
