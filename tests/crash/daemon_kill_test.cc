// SPDX-License-Identifier: Apache-2.0
// kill -9 of the daemon at random moments while clients replay: no client sees a wrong byte, and
// what the daemon had reported to be on disk is there when it is back.
#include <fmt/format.h>
#include <signal.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <random>
#include <set>
#include <thread>

#include "daemon/keeper/keeper_link.h"
#include "tests/crash/seed.h"
#include "tests/integration/harness/daemon_test.h"

namespace kvtier {
namespace {

constexpr int kKills = 200;
constexpr int kFewerKills = 80;
constexpr int kKillsToAKeeper = 7;
constexpr int kClients = 3;
constexpr size_t kConversations = 48;
constexpr size_t kLongestConversation = 24;
constexpr int kLongestLifeMs = 120;
constexpr int kAcquiredAfterEachKill = 4;

// The disk holds every block there is: nothing may leave it by rule.
constexpr TierSizes kTiers = {.pool_blocks = 120, .host_blocks = 150, .disk_blocks = 1500};

// Tells client threads when the daemon is there.
class LifeGate {
 public:
  // False when the test is over.
  bool WaitUntilOpen() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return open_ || over_; });
    return !over_;
  }
  void Set(bool open) {
    Change([&] { open_ = open; });
  }
  void End() {
    Change([&] { over_ = true; });
  }

 private:
  template <typename Function>
  void Change(Function change) {
    const std::scoped_lock lock(mutex_);
    change();
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = true;
  bool over_ = false;
};

class DaemonKillTest : public DaemonTest {
 protected:
  ReplayTarget Target() {
    ReplayTarget target;
    target.socket = daemon().socket();
    target.block_bytes = kTestBlockBytes;
    target.reconnect_max_ms = 2;
    return target;
  }

  // Plays random prefixes of random conversations until the gate says that it is over.
  ReplayReport PlayUntilOver(ReplayClient* client, uint64_t seed, LifeGate* gate) {
    std::mt19937_64 random(seed);
    while (gate->WaitUntilOpen()) {
      TraceRequest request = conversations_[random() % kConversations];
      request.hashes.resize(1 + random() % request.hashes.size());
      EXPECT_TRUE(client->Play(request));
    }
    return client->Finish();
  }

  // By conversation: which blocks are durably on disk, as the daemon says.
  std::vector<std::vector<bool>> Persisted(ReplayClient& observer) {
    std::vector<std::vector<bool>> persisted;
    for (const TraceRequest& conversation : conversations_) {
      const auto presence = observer.pool().Lookup(ToWire(conversation.hashes));
      EXPECT_TRUE(presence) << presence.error().ToString();
      std::vector<bool> on_disk(conversation.hashes.size());
      for (size_t i = 0; presence && i < on_disk.size(); ++i) {
        on_disk[i] = ((*presence)[i] & KVT_PRESENT_DISK) != 0;
      }
      persisted.push_back(std::move(on_disk));
    }
    return persisted;
  }

  // Everything that was on disk before the kill is there now.
  void ExpectNothingForgotten(const std::vector<std::vector<bool>>& before,
                              const std::vector<std::vector<bool>>& now, int kill) {
    for (size_t i = 0; i < before.size(); ++i) {
      for (size_t block = 0; block < before[i].size(); ++block) {
        if (!before[i][block]) continue;
        ++blocks_promised_;
        EXPECT_TRUE(now[i][block])
            << "block " << block << " of conversation " << i << " after kill " << kill;
      }
    }
  }

  // The promised prefix of a conversation is served, with the right bytes.
  void ExpectServed(ReplayClient& observer, size_t conversation, const std::vector<bool>& persisted,
                    int kill) {
    const size_t prefix =
        static_cast<size_t>(std::ranges::find(persisted, false) - persisted.begin());
    TraceRequest request = conversations_[conversation];
    request.hashes.resize(prefix);
    const uint64_t misses = observer.Finish().blocks.miss;
    ASSERT_TRUE(observer.Play(request));
    EXPECT_EQ(observer.Finish().blocks.miss, misses)
        << "conversation " << conversation << ", prefix of " << prefix << ", kill " << kill;
  }

  void MakeConversations() {
    for (size_t i = 0; i < kConversations; ++i) {
      conversations_.push_back(
          Prompt(fmt::format("conversation {}", i), 1 + (i * 7) % kLongestConversation));
    }
  }

  // Each kill of the daemon may be followed by what else dies with it. Checks what every daemon
  // promises, whatever is kept over its end.
  void KillOverAndOver(int kills, std::vector<std::string> settings,
                       const std::function<void(int)>& killed);

  // Blocks that this daemon has taken over in host memory from the one before.
  [[nodiscard]] uint64_t AdoptedBlocks() {
    (void)Admin("settle");
    const boost::json::value status = Admin("status");
    return JsonView(&status)["restart"]["adopted"]["blocks"].Count();
  }

  std::vector<TraceRequest> conversations_;
  uint64_t blocks_promised_ = 0;
};

void DaemonKillTest::KillOverAndOver(int kills, std::vector<std::string> settings,
                                     const std::function<void(int)>& killed) {
  const uint64_t seed = SeedFromEnvironment(1);
  std::mt19937_64 random(seed);
  MakeConversations();
  settings.emplace_back("retention.persist_after=0s");
  // The default: blocks that must make room are also dropped.
  settings.emplace_back("cache.max_wait_ms=100");
  StartDaemon(kTiers, std::move(settings));
  auto observer = ReplayClient::Connect(Target(), kTestBlockTokens);
  ASSERT_TRUE(observer) << observer.error().ToString();
  // All are connected before the first kill, after which nothing listens for a while.
  std::vector<ReplayClient> players;
  for (int i = 0; i < kClients; ++i) {
    auto player = ReplayClient::Connect(Target(), kTestBlockTokens);
    ASSERT_TRUE(player) << player.error().ToString();
    players.push_back(std::move(*player));
  }
  LifeGate gate;
  std::vector<ReplayReport> reports(kClients);
  std::vector<std::thread> clients;
  for (int i = 0; i < kClients; ++i) {
    clients.emplace_back([&, i] { reports[i] = PlayUntilOver(&players[i], seed + 1 + i, &gate); });
  }

  for (int kill = 1; kill <= kills && !HasFailure(); ++kill) {
    const std::chrono::microseconds life(random() % (1000 * kLongestLifeMs));
    std::this_thread::sleep_for(life / 2);
    const auto before = Persisted(*observer);
    std::this_thread::sleep_for(life / 2);
    daemon().Kill();
    killed(kill);
    gate.Set(false);
    const Status restarted = daemon().Restart();
    EXPECT_TRUE(restarted) << restarted.error().ToString();
    if (!restarted) break;
    while (!observer->connection().IsConnected()) (void)observer->connection().Ping();
    const auto now = Persisted(*observer);
    ExpectNothingForgotten(before, now, kill);
    for (int i = 0; i < kAcquiredAfterEachKill; ++i) {
      const size_t conversation = random() % kConversations;
      ExpectServed(*observer, conversation, before[conversation], kill);
    }
    gate.Set(true);
  }
  gate.End();
  for (std::thread& client : clients) client.join();

  ReplayReport total = observer->Finish();
  for (const ReplayReport& report : reports) total.Add(report);
  EXPECT_EQ(total.wrong_blocks, 0u);
  EXPECT_EQ(total.errors, 0u);
  // The test has seen what it is about.
  EXPECT_GT(blocks_promised_, 5u * static_cast<unsigned>(kills));
  EXPECT_GT(total.requests_without_daemon, 0u);
  for (const uint64_t hits : total.blocks.hit) EXPECT_GT(hits, 0u);
  std::printf("%d kills; %llu promises kept; %s\n", kills,
              static_cast<unsigned long long>(blocks_promised_), total.ToJson().c_str());
}

TEST_F(DaemonKillTest, NoWrongByteAndNothingPersistedIsForgotten) {
  KillOverAndOver(kKills, {}, [](int) {});
}

TEST_F(DaemonKillTest, NoWrongByteWhereHostMemoryOutlivesIt) {
  int keepers_killed = 0;
  KillOverAndOver(kFewerKills, {"restart.keep_for=1min"}, [&](int kill) {
    // Now and then the keeper dies with its daemon, and nothing can be adopted.
    if (kill % kKillsToAKeeper != 0) return;
    const auto keeper = KeeperLink::Find(KeeperPlace::Beside(daemon().socket(), ""), kMinuteMs);
    if (!keeper || !*keeper) return;
    ::kill((*keeper)->pid(), SIGKILL);
    ++keepers_killed;
  });
  EXPECT_EQ(keepers_killed, kFewerKills / kKillsToAKeeper);
  // A daemon begins empty after many that died too soon to look at everything.
  (void)Play(Prompt("after the kills", kLongestConversation));
  (void)Play(Prompt("more than the pool holds", kTiers.pool_blocks));
  daemon().Kill();
  ASSERT_TRUE(daemon().Restart());
  EXPECT_GT(AdoptedBlocks(), 0u) << Log();
  (void)Ctl({"stop", "--release"});
}

}  // namespace
}  // namespace kvtier
