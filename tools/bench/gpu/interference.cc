// SPDX-License-Identifier: Apache-2.0
// How much slower an engine's steps become while a daemon copies for others on the same GPU.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/units.h"
#include "tools/bench/bench_client.h"
#include "tools/bench/gpu/bench_daemon.h"
#include "tools/bench/gpu/engine_step.h"
#include "tools/bench/gpu/gpu_bench.h"
#include "tools/bench/gpu/player.h"

namespace kvtier {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kBlockBytes = 2 * kMiB;
constexpr double kBurstBytesPerSecond = 10e9;
constexpr uint64_t kBurstBytes = 256 * kMiB;
constexpr auto kCopierStart = std::chrono::milliseconds(2500);

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Repeats `round`, which returns the bytes it moved, on a thread of its own until it is destroyed.
class Traffic {
 public:
  using Round = std::function<Result<uint64_t>()>;

  explicit Traffic(Round round)
      : thread_([this, round = std::move(round)] {
          while (!stopping_) {
            const Result<uint64_t> moved = round();
            if (!moved) {
              failed_ = true;
              return;
            }
            bytes_ += *moved;
          }
        }) {}
  ~Traffic() {
    stopping_ = true;
    thread_.join();
  }
  Traffic(const Traffic&) = delete;
  Traffic& operator=(const Traffic&) = delete;

  [[nodiscard]] uint64_t bytes() const { return bytes_; }
  [[nodiscard]] bool failed() const { return failed_; }

 private:
  std::atomic<uint64_t> bytes_ = 0;
  std::atomic<bool> stopping_ = false;
  std::atomic<bool> failed_ = false;
  std::thread thread_;  // last: it uses the others
};

// The lines of one kind of traffic, each beside the idle step of the same run.
class StepTable {
 public:
  explicit StepTable(EngineStep* step) : step_(*step) {}

  void MeasureIdle() {
    graph_ = step_.RunGraph();
    eager_ = step_.RunEager();
    Add("idle", graph_, eager_, false);
  }
  [[nodiscard]] Status MeasureBeside(const std::string& name, Traffic::Round round) {
    Traffic traffic(std::move(round));
    while (traffic.bytes() == 0 && !traffic.failed()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    const uint64_t before = traffic.bytes();
    const auto start = Clock::now();
    const StepTimes graph = step_.RunGraph();
    const StepTimes eager = step_.RunEager();
    const double gbps = static_cast<double>(traffic.bytes() - before) / 1e9 / SecondsSince(start);
    if (traffic.failed()) return MakeError(ErrorCode::kIoError, "traffic_failed", name);
    Add(name, graph, eager, true);
    results_.push_back(MakeGpuResult("step_traffic_" + name, gbps, "GB/s", 0));
    return {};
  }
  // Measures while another process copies.
  void MeasureBesideProcess(const std::string& name) {
    const StepTimes graph = step_.RunGraph();
    Add(name, graph, step_.RunEager(), true);
  }
  [[nodiscard]] GpuResults Take() { return std::move(results_); }

 private:
  void Add(const std::string& name, const StepTimes& graph, const StepTimes& eager, bool compare) {
    const auto add = [&](const char* what, double us, double idle_us) {
      results_.push_back(
          MakeGpuResult(fmt::format("{}_{}", what, name), us, "us", compare ? idle_us : 0));
    };
    add("step_p50", graph.p50_us, graph_.p50_us);
    add("step_p99", graph.p99_us, graph_.p99_us);
    add("eager_step_p50", eager.p50_us, eager_.p50_us);
    add("eager_step_p99", eager.p99_us, eager_.p99_us);
  }

  EngineStep& step_;
  StepTimes graph_, eager_;
  GpuResults results_;
};

// While a bare process copies without a daemon. It does not say when it begins.
Status BesideBareProcess(const std::string& name, const std::vector<std::string>& arguments,
                         StepTable* table) {
  KVT_ASSIGN_OR_RETURN(const SelfProcess copier, SelfProcess::Start(arguments));
  std::this_thread::sleep_for(kCopierStart);
  table->MeasureBesideProcess(name);
  return {};
}

// Offloads in the background: sets that fill most of a pool of which nearly all is to be kept
// clean, so no acquire ever waits for room.
Status BesideOffloads(const GpuBenchOptions& options, StepTable* table) {
  const BenchSizes sizes{.block_bytes = kBlockBytes, .blocks = 4 * options.set_bytes / kBlockBytes};
  KVT_ASSIGN_OR_RETURN(const PrivateDaemon daemon,
                       StartBenchDaemon(options, sizes, {"cache.pool_clean_fraction=0.9"}));
  KVT_ASSIGN_OR_RETURN(BenchClient client, BenchClient::Connect(daemon, kBlockBytes));
  uint64_t seed = 100;
  // Some of a round's bytes are offloaded while its blocks are being allocated, so the daemon's own
  // counter is read from round to round.
  KVT_ASSIGN_OR_RETURN(uint64_t counted_bytes, client.OffloadedBytes());
  const auto offload = [&](uint64_t blocks) -> Result<uint64_t> {
    KVT_ASSIGN_OR_RETURN(const TimedOffload rest,
                         client.CommitAndTimeRest(BenchClient::Set(seed++, blocks), false));
    (void)rest;
    KVT_ASSIGN_OR_RETURN(const uint64_t now_bytes, client.OffloadedBytes());
    return now_bytes - std::exchange(counted_bytes, now_bytes);
  };
  KVT_RETURN_IF_ERROR(
      table->MeasureBeside("offload", [&] { return offload(sizes.blocks * 4 / 5); }));
  auto next = Clock::now();
  return table->MeasureBeside("offload_bursts", [&]() -> Result<uint64_t> {
    std::this_thread::sleep_until(next);
    next = std::max(next, Clock::now() - std::chrono::milliseconds(100)) +
           std::chrono::nanoseconds(static_cast<int64_t>(1e9 * kBurstBytes / kBurstBytesPerSecond));
    return offload(kBurstBytes / kBlockBytes);
  });
}

// Loads that a client waits for: two sets take turns in a pool that holds one.
Status BesideLoads(const GpuBenchOptions& options, StepTable* table) {
  const BenchSizes sizes{.block_bytes = kBlockBytes, .blocks = options.set_bytes / kBlockBytes};
  KVT_ASSIGN_OR_RETURN(const PrivateDaemon daemon, StartBenchDaemon(options, sizes, {}));
  KVT_ASSIGN_OR_RETURN(BenchClient client, BenchClient::Connect(daemon, kBlockBytes));
  const Set sets[] = {BenchClient::Set(1, sizes.blocks), BenchClient::Set(2, sizes.blocks)};
  KVT_RETURN_IF_ERROR(StoreBelow(client, sets));
  size_t turn = 0;
  return table->MeasureBeside("loads", [&]() -> Result<uint64_t> {
    KVT_ASSIGN_OR_RETURN(const TimedLoad load, client.Load(sets[turn++ % 2]));
    return load.hit[static_cast<size_t>(Tier::kHost)] * kBlockBytes;
  });
}

}  // namespace

Result<GpuResults> MeasureInterference(const GpuBenchOptions& options) {
  EngineStep step;
  StepTable table(&step);
  table.MeasureIdle();
  KVT_RETURN_IF_ERROR(BesideBareProcess("bare_copier", {"--offload-forever", "0"}, &table));
  KVT_RETURN_IF_ERROR(BesideOffloads(options, &table));
  KVT_RETURN_IF_ERROR(BesideBareProcess("bare_loader", {"--load-forever"}, &table));
  KVT_RETURN_IF_ERROR(BesideLoads(options, &table));
  return table.Take();
}

}  // namespace kvtier
