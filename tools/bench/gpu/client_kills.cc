// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <thread>
#include <vector>

#include "kernels/bench/cuda_bench.h"
#include "tools/bench/daemon_status.h"
#include "tools/bench/gpu/gpu_bench.h"
#include "tools/bench/gpu/pattern_holder.h"
#include "tools/bench/gpu/player.h"
#include "tools/support/json_view.h"

namespace kvtier {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr uint32_t kPlayersAtOnce = 4;
constexpr int kLongestLifeMs = 100;
// Memory that is not gone by then counts as leaked.
constexpr double kPatienceSeconds = 5;

double SecondsSince(SteadyClock::time_point start) {
  return std::chrono::duration<double>(SteadyClock::now() - start).count();
}

struct DaemonState {
  uint64_t sessions = 0;    // those whose process has not ended included
  uint64_t references = 0;  // of all sessions
  uint64_t taken = 0;       // pool blocks that are neither free nor cached
};

Result<DaemonState> LookAt(const PrivateDaemon& daemon) {
  KVT_ASSIGN_OR_RETURN(const boost::json::value document, AskStatus(daemon.admin_socket()));
  const JsonView status(&document);
  DaemonState state;
  state.sessions = status["sessions"]["count"].Count() + status["sessions"]["quarantined"].Count();
  state.references = status["references"].Count();
  status["pools"].ForEach([&state](JsonView pool) {
    state.taken += pool["blocks"].Count() - pool["free"].Count() - pool["cached"].Count();
  });
  return state;
}

// VRAM that all processes together hold; 0 without a GPU.
double VramInUseGib(const GpuBenchOptions& options) {
  if (options.device == kHostDevice) return 0;
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  kernels::bench::CheckCuda(cudaMemGetInfo(&free_bytes, &total_bytes), "memory in use");
  return static_cast<double>(total_bytes - free_bytes) / static_cast<double>(uint64_t{1} << 30);
}

struct Toll {
  uint64_t leaked_blocks = 0;
  uint64_t wrong_blocks = 0;
  double slowest_seconds = 0;  // from a kill until its session and references were gone
};

// Starts some players, and kills them one after the other at random moments of their work.
Status KillRound(const PrivateDaemon& daemon, PatternHolder* holder, uint32_t players,
                 std::mt19937_64* random, Toll* toll) {
  std::vector<SelfProcess> playing;
  for (uint32_t i = 0; i < players; ++i) {
    KVT_ASSIGN_OR_RETURN(SelfProcess player,
                         SelfProcess::StartPlayer(daemon.socket(), (*random)()));
    playing.push_back(std::move(player));
  }
  for (SelfProcess& player : playing) KVT_RETURN_IF_ERROR(player.WaitUntilReady());
  DaemonState state;
  while (!playing.empty()) {
    // The life is drawn; nothing is awaited.
    std::this_thread::sleep_for(std::chrono::milliseconds((*random)() % kLongestLifeMs));
    const auto start = SteadyClock::now();
    playing.back().Kill();
    playing.pop_back();
    const uint64_t sessions = 1 + playing.size();
    do {
      KVT_ASSIGN_OR_RETURN(state, LookAt(daemon));
    } while (state.sessions > sessions && SecondsSince(start) < kPatienceSeconds);
    toll->slowest_seconds = std::max(toll->slowest_seconds, SecondsSince(start));
  }
  // Waits until only the holder's blocks are taken: loads and offloads under way may end first.
  const auto start = SteadyClock::now();
  while ((state.taken > holder->blocks() || state.references > holder->blocks()) &&
         SecondsSince(start) < kPatienceSeconds) {
    KVT_ASSIGN_OR_RETURN(state, LookAt(daemon));
  }
  toll->leaked_blocks += state.taken - std::min(state.taken, holder->blocks());
  KVT_ASSIGN_OR_RETURN(const uint64_t wrong, holder->CountWrong());
  toll->wrong_blocks += wrong;
  return {};
}

}  // namespace

Result<GpuResults> MeasureClientKills(const GpuBenchOptions& options) {
  KVT_ASSIGN_OR_RETURN(const PrivateDaemon daemon, StartPlayedDaemon(options));
  KVT_ASSIGN_OR_RETURN(PatternHolder holder, PatternHolder::Open(daemon.socket()));
  const double before_gib = VramInUseGib(options);
  Toll toll;
  std::mt19937_64 random(1);
  for (uint32_t killed = 0; killed < options.clients_killed;) {
    const uint32_t players = std::min(kPlayersAtOnce, options.clients_killed - killed);
    KVT_RETURN_IF_ERROR(KillRound(daemon, &holder, players, &random, &toll));
    killed += players;
  }
  const double after_gib = VramInUseGib(options);
  return GpuResults{
      MakeGpuResult("clients_killed", options.clients_killed, "kills", 0),
      MakeGpuFault("clients_killed_blocks_leaked", toll.leaked_blocks, "blocks"),
      MakeGpuFault("clients_killed_others_wrong", toll.wrong_blocks, "blocks"),
      MakeGpuResult("clients_killed_references_gone", toll.slowest_seconds, "s", 0),
      MakeGpuResult("clients_killed_vram_before", before_gib, "GiB", 0),
      MakeGpuResult("clients_killed_vram_after", after_gib, "GiB", before_gib),
  };
}

}  // namespace kvtier
