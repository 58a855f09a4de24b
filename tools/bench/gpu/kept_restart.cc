// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include "base/units.h"
#include "tools/bench/bench_client.h"
#include "tools/bench/daemon_status.h"
#include "tools/bench/gpu/bench_daemon.h"
#include "tools/bench/gpu/gpu_bench.h"
#include "tools/support/json_view.h"

namespace kvtier {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr uint64_t kBlockBytes = 2 * kMiB;
constexpr uint32_t kBlockTokens = 16;
constexpr size_t kSets = 8;
constexpr uint64_t kMostSetBlocks = 1000;
constexpr size_t kEnds = 3;
constexpr auto kPoll = std::chrono::milliseconds(5);
constexpr auto kUnderLoad = std::chrono::milliseconds(500);
constexpr double kDeadlineSeconds = 120;

double SecondsSince(SteadyClock::time_point start) {
  return std::chrono::duration<double>(SteadyClock::now() - start).count();
}

// As many blocks for each set that all sets fill half of a small pool.
size_t SetBlocks(const GpuBenchOptions& options) {
  return std::min(kMostSetBlocks, options.large_pool_bytes / kBlockBytes / 2 / kSets);
}

TraceRequest RequestOf(uint64_t set, size_t blocks) {
  TraceRequest request;
  request.hashes = BenchClient::Set(set, blocks);
  request.input_tokens = static_cast<uint32_t>(blocks * kBlockTokens);
  return request;
}

Result<ReplayClient> ConnectClient(const PrivateDaemon& daemon) {
  return ReplayClient::Connect(
      {.socket = daemon.socket(), .block_bytes = kBlockBytes, .reconnect_max_ms = 10},
      kBlockTokens);
}

Status WaitForArena(const PrivateDaemon& daemon) {
  const auto start = SteadyClock::now();
  while (SecondsSince(start) < kDeadlineSeconds) {
    KVT_ASSIGN_OR_RETURN(const boost::json::value status, AskStatus(daemon.admin_socket()));
    const JsonView host = JsonView(&status)["tiers"]["host"];
    if (host["ready_bytes"].Count() >= host["capacity_bytes"].Count()) return {};
    std::this_thread::sleep_for(kPoll);
  }
  return MakeError(ErrorCode::kTimeout, "arena_incomplete");
}

// Asks for the same prompts again and again, through the daemons' deaths.
class Load {
 public:
  Load(ReplayClient client, size_t blocks)
      : client_(std::move(client)), blocks_(blocks), thread_([this] { Run(); }) {}
  ~Load() {
    over_ = true;
    thread_.join();
  }
  Load(const Load&) = delete;
  Load& operator=(const Load&) = delete;

 private:
  void Run() {
    for (uint64_t turn = 0; !over_; ++turn) {
      (void)client_.Play(RequestOf(turn % kSets, blocks_));
      if (!client_.connection().IsConnected()) std::this_thread::sleep_for(kPoll);
    }
  }

  ReplayClient client_;
  const size_t blocks_;
  std::atomic<bool> over_ = false;
  std::thread thread_;
};

struct Death {
  double gone_seconds = 0;          // from the signal until the process has ended
  double served_again_seconds = 0;  // until a client is greeted by the next daemon
  double first_prompt_seconds = 0;  // until it has its first prompt's blocks
  ReplayReport report;              // of all sets, read and compared
};

// Ends the daemon while another client is at work, and starts the next one at once.
Result<Death> EndOnce(PrivateDaemon* daemon, size_t set_blocks, bool orderly) {
  Death death;
  {
    KVT_ASSIGN_OR_RETURN(ReplayClient at_work, ConnectClient(*daemon));
    const Load load(std::move(at_work), set_blocks / 10 + 1);
    std::this_thread::sleep_for(kUnderLoad);
    const auto killed = SteadyClock::now();
    if (!orderly) {
      daemon->Kill();
    } else if (const int code = daemon->Terminate(); code != 0) {
      return MakeError(ErrorCode::kWrongState, "not_orderly", fmt::format("exit status {}", code));
    }
    death.gone_seconds = SecondsSince(killed);
    KVT_RETURN_IF_ERROR(daemon->Restart());
    death.served_again_seconds = SecondsSince(killed);
    KVT_ASSIGN_OR_RETURN(BenchClient first, BenchClient::Connect(*daemon, kBlockBytes));
    const auto acquired = first.AcquireUs(ToWire(BenchClient::Set(0, set_blocks / 10 + 1)));
    if (!acquired) return tl::unexpected(acquired.error());
    death.first_prompt_seconds = SecondsSince(killed);
  }
  KVT_ASSIGN_OR_RETURN(ReplayClient reader, ConnectClient(*daemon));
  for (size_t set = 0; set < kSets; ++set) {
    KVT_RETURN_IF_ERROR(reader.Play(RequestOf(set, set_blocks)));
  }
  death.report = reader.Finish();
  return death;
}

// The slowest of the ends, because a restart happens once, and all of their blocks.
Result<Death> EndRepeatedly(PrivateDaemon* daemon, size_t set_blocks, bool orderly) {
  Death worst;
  for (size_t i = 0; i < kEnds; ++i) {
    KVT_ASSIGN_OR_RETURN(const Death death, EndOnce(daemon, set_blocks, orderly));
    worst.gone_seconds = std::max(worst.gone_seconds, death.gone_seconds);
    worst.served_again_seconds = std::max(worst.served_again_seconds, death.served_again_seconds);
    worst.first_prompt_seconds = std::max(worst.first_prompt_seconds, death.first_prompt_seconds);
    worst.report.Add(death.report);
  }
  return worst;
}

}  // namespace

Result<GpuResults> MeasureKeptRestart(const GpuBenchOptions& options) {
  KVT_ASSIGN_OR_RETURN(
      PrivateDaemon daemon,
      StartGpuDaemon(options, {fmt::format("pool.bytes={}B", options.large_pool_bytes),
                               fmt::format("host.bytes={}B", options.large_host_bytes),
                               "restart.keep_for=60s"}));
  KVT_RETURN_IF_ERROR(WaitForArena(daemon));
  const size_t set_blocks = SetBlocks(options);
  {
    KVT_ASSIGN_OR_RETURN(BenchClient writer, BenchClient::Connect(daemon, kBlockBytes));
    for (size_t set = 0; set < kSets; ++set) {
      KVT_RETURN_IF_ERROR(writer.Store(BenchClient::Set(set, set_blocks)));
    }
  }
  GpuResults results;
  for (const bool orderly : {false, true}) {
    KVT_ASSIGN_OR_RETURN(const Death worst, EndRepeatedly(&daemon, set_blocks, orderly));
    const std::string name = orderly ? "stopped_restart" : "killed_restart";
    const auto count = [](uint64_t value) { return static_cast<double>(value); };
    results.insert(results.end(),
                   {MakeGpuResult(name + "_process_gone", worst.gone_seconds, "s", 0),
                    MakeGpuResult(name + "_served_again", worst.served_again_seconds, "s", 0),
                    MakeGpuResult(name + "_first_prompt", worst.first_prompt_seconds, "s", 0),
                    MakeGpuResult(name + "_pool_hits",
                                  count(worst.report.blocks.hit[static_cast<size_t>(Tier::kPool)]),
                                  "blocks", count(kEnds * kSets * set_blocks)),
                    MakeGpuFault(name + "_wrong_blocks", worst.report.wrong_blocks, "blocks")});
  }
  return results;
}

}  // namespace kvtier
