// SPDX-License-Identifier: Apache-2.0
#include "base/units.h"
#include "tools/bench/gpu/bench_daemon.h"
#include "tools/bench/gpu/gpu_bench.h"
#include "tools/replay/replayer.h"

namespace kvtier {
namespace {

constexpr uint32_t kClients = 4;
constexpr uint64_t kBlockBytes = 64 * kKiB;

}  // namespace

Result<GpuResults> MeasureReplay(const GpuBenchOptions& options) {
  KVT_ASSIGN_OR_RETURN(const Trace trace, LoadTrace(options.trace, TraceFormat::kAuto, 1));
  KVT_ASSIGN_OR_RETURN(
      const PrivateDaemon daemon,
      StartGpuDaemon(options, {"pool.bytes=512MiB", "host.bytes=1GiB", "disk.bytes=8GiB"}));
  ReplayOptions replay;
  replay.clients = kClients;
  replay.target.block_bytes = kBlockBytes;
  replay.target.socket = daemon.socket();
  KVT_ASSIGN_OR_RETURN(const ReplayReport report, Replay(trace, replay));
  const auto row = [](const char* name, uint64_t value, const char* unit) {
    return MakeGpuResult(name, static_cast<double>(value), unit, 0);
  };
  return GpuResults{
      row("replay_requests", report.requests, "requests"),
      row("replay_from_pool", report.blocks.hit[static_cast<size_t>(Tier::kPool)], "blocks"),
      row("replay_from_host", report.blocks.hit[static_cast<size_t>(Tier::kHost)], "blocks"),
      row("replay_from_disk", report.blocks.hit[static_cast<size_t>(Tier::kDisk)], "blocks"),
      row("replay_missed", report.blocks.miss, "blocks"),
      MakeGpuFault("replay_wrong_blocks", report.wrong_blocks, "blocks"),
      MakeGpuResult("replay_seconds", report.seconds, "s", 0),
  };
}

}  // namespace kvtier
