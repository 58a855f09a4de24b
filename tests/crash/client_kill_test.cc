// SPDX-License-Identifier: Apache-2.0
// kill -9 of a client at random moments: its references are gone within a second, no block leaks,
// and the bytes of another client stay what they are.
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <mutex>
#include <random>
#include <thread>

#include "tests/crash/seed.h"
#include "tests/integration/harness/daemon_test.h"

namespace kvtier {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr int kKills = 200;
constexpr int kLongestLifeMs = 150;
constexpr uint32_t kTraceBlockTokens = 512;
constexpr int kTraceRequests = 5000;
constexpr int kRequestsPerMs = 10;
constexpr double kGoneWithinSeconds = 1.0;
constexpr double kPatienceSeconds = 30.0;
// Blocks that must make room are also dropped.
constexpr const char* kDefaultMaxWait = "cache.max_wait_ms=100";
constexpr TierSizes kTiers = {.pool_blocks = 160, .host_blocks = 150, .disk_blocks = 600};

class ClientKillTest : public DaemonTest {
 protected:
  // A trace that lasts longer than any victim lives: its last request comes after an hour.
  void WriteTrace() {
    trace_path_ = directory() + "/trace.jsonl";
    std::ofstream file(trace_path_);
    for (int i = 0; i < kTraceRequests; ++i) {
      const int blocks = 1 + i % 17;
      const int64_t arrival_ms = i + 1 < kTraceRequests ? i / kRequestsPerMs : kHourMs;
      file << R"({"timestamp": )" << arrival_ms << R"(, "input_length": )" << 512 * blocks
           << R"(, "hash_ids": [)";
      for (int j = 0; j < blocks; ++j) file << (j > 0 ? "," : "") << (i % 23) * 100 + j;
      file << "]}\n";
    }
  }

  pid_t StartVictim() {
    const std::string program = KvtierctlPath();
    const std::string socket = daemon().socket();
    const pid_t pid = ::fork();
    if (pid == 0) {
      const int null = ::open("/dev/null", O_WRONLY);
      ::dup2(null, STDOUT_FILENO);
      ::dup2(null, STDERR_FILENO);
      ::execl(program.c_str(), "kvtierctl", "--socket", socket.c_str(), "replay",
              trace_path_.c_str(), "--clients", "2", "--block-bytes", "16KiB", "--speed", "1",
              nullptr);
      ::_exit(127);
    }
    return pid;
  }

  // A client of the victims' model: all share one pool.
  Result<ReplayClient> ConnectWitness() {
    ReplayTarget target;
    target.socket = daemon().socket();
    target.settle_admin_socket = daemon().admin_socket();
    target.block_bytes = kTestBlockBytes;
    return ReplayClient::Connect(target, kTraceBlockTokens);
  }

  // Plays until `over`, one request at a time under `turn_`; holds nothing in between.
  ReplayReport Witness(ReplayClient* client, const std::atomic<bool>* over) {
    std::mt19937_64 random(7);
    while (!*over) {
      { const std::scoped_lock in_line(line_); }
      const std::scoped_lock turn(turn_);
      const size_t conversation = random() % 19;
      // Settles after each request, so that its releases have arrived.
      const Status played =
          client->Play(Prompt(fmt::format("witness {}", conversation), 1 + conversation));
      EXPECT_TRUE(played) << played.error().ToString();
    }
    return client->Finish();
  }

  // True when no client but the witness is known to the daemon.
  [[nodiscard]] bool IsAlone() {
    const boost::json::value document = Admin("status");
    const JsonView sessions = JsonView(&document)["sessions"];
    return sessions["count"].Count() == 1 && sessions["quarantined"].Count() == 0;
  }

  // The same, and none holds a block: the witness is idle.
  [[nodiscard]] bool IsQuiet() {
    const boost::json::value document = Admin("status");
    const JsonView status(&document);
    bool quiet = status["references"].Count() == 0 && status["sessions"]["count"].Count() == 1 &&
                 status["sessions"]["quarantined"].Count() == 0;
    status["pools"].ForEach([&quiet](JsonView pool) {
      quiet = quiet && pool["private"].Count() == 0 && pool["referenced"].Count() == 0 &&
              pool["quarantined"].Count() == 0 && pool["loading"].Count() == 0;
    });
    return quiet;
  }

  void ExpectNoBlockLeaked(int kill) {
    (void)Admin("settle");
    const boost::json::value document = Admin("status");
    uint64_t pools = 0;
    JsonView(&document)["pools"].ForEach([&](JsonView pool) {
      ++pools;
      EXPECT_EQ(pool["free"].Count() + pool["cached"].Count(), pool["blocks"].Count())
          << "kill " << kill;
    });
    EXPECT_GT(pools, 0u);
  }

  // Asks until `holds` does, and returns the seconds from `since` until then.
  template <typename Holds>
  static double SecondsUntil(Holds holds, SteadyClock::time_point since) {
    while (true) {
      const bool held = holds();
      const double seconds = std::chrono::duration<double>(SteadyClock::now() - since).count();
      if (held || seconds > kPatienceSeconds) return seconds;
    }
  }

  // Returns the seconds from the victim's end until the daemon was quiet.
  double KillOne(std::chrono::microseconds life, int kill) {
    const pid_t victim = StartVictim();
    EXPECT_GT(victim, 0);
    std::this_thread::sleep_for(life);
    ::kill(victim, SIGKILL);
    int status = 0;
    ::waitpid(victim, &status, 0);
    const auto ended = SteadyClock::now();
    EXPECT_TRUE(WIFSIGNALED(status)) << "the victim ended by itself: " << WEXITSTATUS(status);
    double seconds = SecondsUntil([this] { return IsAlone(); }, ended);
    // What the witness holds is told from what the victim held only while the witness is idle. The
    // time until its turn is over does not count, if nothing is held then.
    const std::scoped_lock in_line(line_);
    const std::scoped_lock turn(turn_);
    if (!IsQuiet()) seconds = SecondsUntil([this] { return IsQuiet(); }, ended);
    EXPECT_LT(seconds, kPatienceSeconds) << "kill " << kill;
    ExpectNoBlockLeaked(kill);
    return seconds;
  }

  std::string trace_path_;
  // Held while a request is played, or while nothing may be.
  std::mutex turn_;
  // Held by the client whose turn is next, so that the witness cannot take every turn.
  std::mutex line_;
};

TEST_F(ClientKillTest, ReferencesGoWithinASecondAndNobodyElseNotices) {
  std::mt19937_64 random(SeedFromEnvironment(1));
  StartDaemon(kTiers, {kDefaultMaxWait});
  WriteTrace();
  auto client = ConnectWitness();
  ASSERT_TRUE(client) << client.error().ToString();
  std::atomic<bool> over = false;
  ReplayReport seen;
  std::thread witness([&] { seen = Witness(&*client, &over); });
  double slowest = 0;
  for (int kill = 1; kill <= kKills && !HasFailure(); ++kill) {
    const std::chrono::microseconds life(random() % (1000 * kLongestLifeMs));
    slowest = std::max(slowest, KillOne(life, kill));
  }
  over = true;
  witness.join();

  EXPECT_LT(slowest, kGoneWithinSeconds);
  EXPECT_EQ(seen.wrong_blocks, 0u);
  EXPECT_EQ(seen.errors + seen.requests_without_daemon, 0u);
  EXPECT_GT(seen.blocks.hit[0] + seen.blocks.hit[1] + seen.blocks.hit[2], 0u);
  std::printf("%d kills; references gone after %.1f ms at the latest; %s\n", kKills, 1000 * slowest,
              seen.ToJson().c_str());
}

}  // namespace
}  // namespace kvtier
