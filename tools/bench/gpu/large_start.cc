// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <functional>
#include <thread>

#include "base/units.h"
#include "tools/bench/bench_client.h"
#include "tools/bench/daemon_status.h"
#include "tools/bench/gpu/bench_daemon.h"
#include "tools/bench/gpu/gpu_bench.h"
#include "tools/support/json_view.h"

namespace kvtier {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr auto kPoll = std::chrono::milliseconds(5);
constexpr double kDeadlineSeconds = 60;

double SecondsSince(SteadyClock::time_point start) {
  return std::chrono::duration<double>(SteadyClock::now() - start).count();
}

Result<bool> ArenaComplete(const PrivateDaemon& daemon) {
  KVT_ASSIGN_OR_RETURN(const boost::json::value status, AskStatus(daemon.admin_socket()));
  const JsonView host = JsonView(&status)["tiers"]["host"];
  return host["ready_bytes"].Count() >= host["capacity_bytes"].Count();
}

struct Times {
  double attached_seconds = 0;
  double complete_seconds = 0;
};

// Runs `meanwhile` with the daemon complete, before it ends.
Result<Times> TimeStart(const GpuBenchOptions& options, const std::function<Status()>& meanwhile) {
  Times times;
  const auto start = SteadyClock::now();
  KVT_ASSIGN_OR_RETURN(
      const PrivateDaemon daemon,
      StartGpuDaemon(options, {fmt::format("pool.bytes={}B", options.large_pool_bytes),
                               fmt::format("host.bytes={}B", options.large_host_bytes)}));
  KVT_ASSIGN_OR_RETURN(const BenchClient client, BenchClient::Connect(daemon, 2 * kMiB));
  times.attached_seconds = SecondsSince(start);
  for (bool complete = false; !complete;) {
    KVT_ASSIGN_OR_RETURN(complete, ArenaComplete(daemon));
    times.complete_seconds = SecondsSince(start);
    if (times.complete_seconds > kDeadlineSeconds) {
      return MakeError(ErrorCode::kTimeout, "arena_incomplete");
    }
    if (!complete) std::this_thread::sleep_for(kPoll);
  }
  KVT_RETURN_IF_ERROR(meanwhile());
  return times;
}

uint64_t AvailableBytes() {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    uint64_t kib = 0;
    if (std::sscanf(line.c_str(), "MemAvailable: %lu kB", &kib) == 1) return kib * kKiB;
  }
  return 0;
}

}  // namespace

Result<GpuResults> MeasureLargeStart(const GpuBenchOptions& options) {
  // Pages that the machine's host has never given to it take longer: while the first daemon lives,
  // those of a bare program are such pages, too, if there is as much memory once more.
  double bare_first_seconds = 0;
  const auto measure_bare = [&]() -> Status {
    if (AvailableBytes() < options.large_host_bytes / 8 * 9) return {};
    KVT_ASSIGN_OR_RETURN(bare_first_seconds, MeasureArenaCeiling(options.large_host_bytes));
    return {};
  };
  KVT_ASSIGN_OR_RETURN(const Times first, TimeStart(options, measure_bare));
  KVT_ASSIGN_OR_RETURN(const Times again, TimeStart(options, [] { return Status(); }));
  KVT_ASSIGN_OR_RETURN(const double bare_seconds, MeasureArenaCeiling(options.large_host_bytes));
  const std::string sizes = fmt::format("{}_pool_{}_host", SizeName(options.large_pool_bytes),
                                        SizeName(options.large_host_bytes));
  return GpuResults{
      MakeGpuResult("start_attached_" + sizes, first.attached_seconds, "s", 0),
      MakeGpuResult("start_arena_" + sizes, first.complete_seconds, "s", bare_first_seconds),
      MakeGpuResult("start_attached_again_" + sizes, again.attached_seconds, "s", 0),
      MakeGpuResult("start_arena_again_" + sizes, again.complete_seconds, "s", bare_seconds)};
}

}  // namespace kvtier
