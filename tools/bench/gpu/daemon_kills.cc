// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "tools/bench/bench.h"
#include "tools/bench/gpu/gpu_bench.h"
#include "tools/bench/gpu/player.h"

namespace kvtier {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr size_t kPlayers = 2;
constexpr auto kShortestLife = std::chrono::milliseconds(300);
constexpr int kLifeSpreadMs = 300;
constexpr auto kPingEvery = std::chrono::milliseconds(1);
constexpr auto kWithoutDaemon = std::chrono::milliseconds(1);
constexpr auto kPatience = std::chrono::seconds(5);

// Asks the daemon again and again, and knows when it last stopped answering.
class Watcher {
 public:
  explicit Watcher(ReplayClient client)
      : client_(std::move(client)), thread_([this] { Watch(); }) {}
  ~Watcher() {
    over_ = true;
    thread_.join();
  }
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;

  // Seconds from `killed` until a call of this client failed; kPatience if none has.
  [[nodiscard]] double SecondsToNotice(SteadyClock::time_point killed) const {
    while (silent_since_.load() < killed && SteadyClock::now() < killed + kPatience) {
      std::this_thread::sleep_for(kPingEvery);
    }
    const auto noticed = silent_since_.load();
    return std::chrono::duration<double>(noticed < killed ? kPatience : noticed - killed).count();
  }

 private:
  void Watch() {
    bool answered = true;
    while (!over_) {
      const bool answers = client_.connection().Ping().has_value();
      if (answered && !answers) silent_since_ = SteadyClock::now();
      answered = answers;
      std::this_thread::sleep_for(kPingEvery);
    }
  }

  ReplayClient client_;
  std::atomic<bool> over_ = false;
  std::atomic<SteadyClock::time_point> silent_since_ = SteadyClock::time_point::min();
  std::thread thread_;
};

// Plays until told to stop, through the death of any number of daemons.
class PlayerThread {
 public:
  PlayerThread(ReplayClient client, uint64_t seed)
      : client_(std::move(client)), thread_([this, seed] { Play(seed); }) {}
  ~PlayerThread() {
    if (thread_.joinable()) (void)Stop();
  }
  PlayerThread(const PlayerThread&) = delete;
  PlayerThread& operator=(const PlayerThread&) = delete;

  [[nodiscard]] ReplayReport Stop() {
    over_ = true;
    thread_.join();
    return client_.Finish();
  }

 private:
  void Play(uint64_t seed) {
    std::mt19937_64 random(seed);
    while (!over_) {
      (void)client_.Play(DrawConversation(&random));
      // Without a daemon a request costs nothing; an engine would compute meanwhile.
      if (!client_.connection().IsConnected()) std::this_thread::sleep_for(kWithoutDaemon);
    }
  }

  ReplayClient client_;
  std::atomic<bool> over_ = false;
  std::thread thread_;
};

}  // namespace

Result<GpuResults> MeasureDaemonKills(const GpuBenchOptions& options) {
  KVT_ASSIGN_OR_RETURN(PrivateDaemon daemon, StartPlayedDaemon(options));
  KVT_ASSIGN_OR_RETURN(ReplayClient observer, ConnectPlayer(daemon.socket()));
  const Watcher watcher(std::move(observer));
  std::vector<std::unique_ptr<PlayerThread>> players;
  for (size_t i = 0; i < kPlayers; ++i) {
    KVT_ASSIGN_OR_RETURN(ReplayClient client, ConnectPlayer(daemon.socket()));
    players.push_back(std::make_unique<PlayerThread>(std::move(client), i));
  }
  std::mt19937_64 random(1);
  std::vector<double> back_seconds;
  double slowest_notice_seconds = 0;
  for (uint32_t kill = 0; kill < options.daemons_killed; ++kill) {
    // The life is drawn; nothing is awaited.
    std::this_thread::sleep_for(kShortestLife +
                                std::chrono::milliseconds(random() % kLifeSpreadMs));
    const auto killed = SteadyClock::now();
    daemon.Kill();
    slowest_notice_seconds = std::max(slowest_notice_seconds, watcher.SecondsToNotice(killed));
    KVT_RETURN_IF_ERROR(daemon.Restart());
    back_seconds.push_back(std::chrono::duration<double>(SteadyClock::now() - killed).count());
  }
  std::this_thread::sleep_for(kShortestLife);
  ReplayReport total;
  for (const auto& player : players) total.Add(player->Stop());
  const auto count = [](uint64_t value) { return static_cast<double>(value); };
  return GpuResults{
      MakeGpuResult("daemons_killed", options.daemons_killed, "kills", 0),
      MakeGpuResult("daemons_killed_noticed", slowest_notice_seconds, "s", 0),
      MakeGpuResult("daemons_killed_served_again", Median(back_seconds), "s", 0),
      MakeGpuResult("daemons_killed_requests", count(total.requests), "requests", 0),
      MakeGpuResult("daemons_killed_requests_without", count(total.requests_without_daemon),
                    "requests", 0),
      MakeGpuResult("daemons_killed_blocks_from_disk",
                    count(total.blocks.hit[static_cast<size_t>(Tier::kDisk)]), "blocks", 0),
      MakeGpuFault("daemons_killed_wrong_blocks", total.wrong_blocks, "blocks"),
      MakeGpuFault("daemons_killed_refused", total.errors, "calls"),
  };
}

}  // namespace kvtier
