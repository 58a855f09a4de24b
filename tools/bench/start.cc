// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <thread>

#include "base/units.h"
#include "tools/bench/bench.h"
#include "tools/bench/bench_client.h"
#include "tools/bench/daemon_status.h"
#include "tools/support/admin.h"
#include "tools/support/json_view.h"
#include "tools/support/private_daemon.h"

namespace kvtier {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr uint64_t kBlockBytes = 4 * kKiB;
constexpr uint64_t kSlotBytes = kBlockBytes + 4 * kKiB;
constexpr size_t kSetBlocks = 8192;
constexpr auto kArenaPoll = std::chrono::milliseconds(10);

Result<PrivateDaemon> StartDaemon(const BenchOptions& options) {
  PrivateDaemonOptions daemon;
  daemon.temporary_parent = options.directory;
  daemon.settings = {
      fmt::format("pool.bytes={}B", 2 * kSetBlocks * kBlockBytes),
      fmt::format("host.bytes={}B", 256 * kMiB),
      "cache.max_wait_ms=30000",
      // Two per cent more than the entries need: slab headers and the share that is kept free.
      fmt::format("disk.bytes={}B", options.entries * kSlotBytes / 100 * 102 + 256 * kMiB),
  };
  PutOnDevice(options.device, &daemon);
  return PrivateDaemon::Start(std::move(daemon));
}

uint64_t ResidentBytes(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/statm", pid));
  uint64_t total = 0, resident = 0;
  file >> total >> resident;
  return resident * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

// The daemon's resident memory once its arena is touched completely.
Result<uint64_t> RestingBytes(const PrivateDaemon& daemon) {
  for (;;) {
    KVT_ASSIGN_OR_RETURN(const boost::json::value document, AskStatus(daemon.admin_socket()));
    const JsonView host = JsonView(&document)["tiers"]["host"];
    if (host["ready_bytes"].Count() >= host["capacity_bytes"].Count()) break;
    std::this_thread::sleep_for(kArenaPoll);
  }
  return ResidentBytes(daemon.pid());
}

Status Fill(const BenchOptions& options, const PrivateDaemon& daemon) {
  KVT_ASSIGN_OR_RETURN(BenchClient client, BenchClient::Connect(daemon, kBlockBytes));
  for (uint64_t stored = 0; stored < options.entries; stored += kSetBlocks) {
    const auto count = std::min<uint64_t>(kSetBlocks, options.entries - stored);
    KVT_RETURN_IF_ERROR(client.Store(BenchClient::Set(stored, count)));
    KVT_RETURN_IF_ERROR(client.Drain());
  }
  return {};
}

// Restarts the killed daemon; the seconds until a client has found the first set of blocks on disk.
Result<double> TimeRestart(PrivateDaemon& daemon) {
  const auto start = SteadyClock::now();
  KVT_RETURN_IF_ERROR(daemon.Restart());
  KVT_ASSIGN_OR_RETURN(BenchClient client, BenchClient::Connect(daemon, kBlockBytes));
  KVT_ASSIGN_OR_RETURN(const uint64_t found, client.CountOnDisk(BenchClient::Set(0, kSetBlocks)));
  const double seconds = std::chrono::duration<double>(SteadyClock::now() - start).count();
  if (found != kSetBlocks) {
    return MakeError(ErrorCode::kWrongState, "not_restored",
                     fmt::format("{} of {} blocks are on disk", found, kSetBlocks));
  }
  return seconds;
}

}  // namespace

Result<StartResult> MeasureStart(const BenchOptions& options) {
  KVT_ASSIGN_OR_RETURN(PrivateDaemon daemon, StartDaemon(options));
  KVT_RETURN_IF_ERROR(Fill(options, daemon));
  StartResult result;
  std::vector<double> seconds;
  for (uint32_t i = 0; i < options.repetitions; ++i) {
    daemon.Kill();
    KVT_ASSIGN_OR_RETURN(const double one, TimeRestart(daemon));
    seconds.push_back(one);
  }
  result.seconds = Median(seconds);

  KVT_ASSIGN_OR_RETURN(const boost::json::value document, AskStatus(daemon.admin_socket()));
  const JsonView index = JsonView(&document)["index"];
  result.entries = index["entries"].Count();
  if (result.entries == 0) return MakeError(ErrorCode::kWrongState, "no_entries");
  const auto entries = static_cast<double>(result.entries);
  result.index_bytes_per_entry = index["entry_bytes"].Number() / entries;
  KVT_ASSIGN_OR_RETURN(const uint64_t full, RestingBytes(daemon));
  KVT_ASSIGN_OR_RETURN(const PrivateDaemon empty, StartDaemon(options));
  KVT_ASSIGN_OR_RETURN(const uint64_t base, RestingBytes(empty));
  result.resident_bytes_per_entry = static_cast<double>(full - std::min(full, base)) / entries;
  return result;
}

}  // namespace kvtier
