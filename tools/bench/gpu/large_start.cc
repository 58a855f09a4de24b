#include <fmt/format.h>

#include <chrono>
#include <thread>

#include "base/byte_size.h"
#include "tools/bench/bench_client.h"
#include "tools/bench/gpu/gpu_bench.h"
#include "tools/support/admin.h"
#include "tools/support/json_view.h"

namespace kvtier {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr int64_t kAdminSilenceMs = 60'000;
constexpr auto kPoll = std::chrono::milliseconds(5);
constexpr double kGiveUpSeconds = 60;

double SecondsSince(SteadyClock::time_point start) {
  return std::chrono::duration<double>(SteadyClock::now() - start).count();
}

Result<bool> ArenaComplete(const PrivateDaemon& daemon) {
  KVT_ASSIGN_OR_RETURN(const std::string text,
                       CallAdmin(daemon.admin_socket(), R"({"op":"status"})", kAdminSilenceMs));
  const boost::json::value document = boost::json::parse(text);
  const JsonView host = JsonView(&document)["tiers"]["host"];
  return host["ready_bytes"].Count() >= host["capacity_bytes"].Count();
}

}  // namespace

Result<GpuResults> MeasureLargeStart(const GpuBenchOptions& options) {
  PrivateDaemonOptions daemon_options;
  daemon_options.temporary_parent = options.directory;
  daemon_options.settings = {
      "pool.device=" + options.device,
      fmt::format("pool.bytes={}B", options.large_pool_bytes),
      fmt::format("host.bytes={}B", options.large_host_bytes),
      fmt::format("host.touch_threads={}", options.threads),
  };
  daemon_options.settings.insert(daemon_options.settings.end(), options.settings.begin(),
                                 options.settings.end());
  const auto start = SteadyClock::now();
  KVT_ASSIGN_OR_RETURN(const PrivateDaemon daemon, PrivateDaemon::Start(std::move(daemon_options)));
  KVT_ASSIGN_OR_RETURN(const BenchClient client, BenchClient::Connect(daemon, 2 * kMiB));
  const double serving_seconds = SecondsSince(start);
  double complete_seconds = 0;
  for (bool complete = false; !complete;) {
    KVT_ASSIGN_OR_RETURN(complete, ArenaComplete(daemon));
    complete_seconds = SecondsSince(start);
    if (complete_seconds > kGiveUpSeconds) {
      return MakeError(ErrorCode::kTimeout, "arena_incomplete");
    }
    if (!complete) std::this_thread::sleep_for(kPoll);
  }
  const std::string sizes = fmt::format("{}_pool_{}_host", SizeName(options.large_pool_bytes),
                                        SizeName(options.large_host_bytes));
  return GpuResults{MakeGpuResult("start_attached_" + sizes, serving_seconds, "s", 0),
                    MakeGpuResult("start_arena_" + sizes, complete_seconds, "s", 0)};
}

}  // namespace kvtier
