// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <span>

#include "base/units.h"
#include "tools/bench/bench.h"
#include "tools/bench/bench_client.h"
#include "tools/bench/ceiling.h"
#include "tools/bench/disk_ceiling.h"
#include "tools/bench/gpu/bench_daemon.h"
#include "tools/bench/gpu/gpu_bench.h"

namespace kvtier {
namespace {

constexpr uint64_t kPrefixBlocks = 625;

double Gbps(const BenchSizes& sizes, double seconds) {
  return static_cast<double>(sizes.blocks * sizes.block_bytes) / 1e9 / seconds;
}

Result<TimedLoad> LoadFrom(BenchClient& client, const BenchSizes& sizes, const Set& set,
                           Tier tier) {
  KVT_ASSIGN_OR_RETURN(const TimedLoad load, client.Load(set));
  // The pool may be a little larger than a set.
  const uint64_t spare =
      tier == Tier::kPool ? 0 : sizes.pool_bytes() / sizes.block_bytes - set.size();
  if (load.hit[static_cast<int>(tier)] + spare < set.size() || load.ready != set.size()) {
    return MakeError(ErrorCode::kWrongState, "wrong_tier",
                     fmt::format("of {} blocks {} came from the pool, {} from host, {} from disk",
                                 set.size(), load.hit[0], load.hit[1], load.hit[2]));
  }
  return load;
}

Result<double> LoadSeconds(BenchClient& client, const BenchSizes& sizes, const Set& set,
                           Tier tier) {
  KVT_ASSIGN_OR_RETURN(const TimedLoad load, LoadFrom(client, sizes, set, tier));
  return load.seconds;
}

// The median rate of loads from host of sets that take turns in a pool that holds one.
Result<double> HostLoadSeconds(const GpuBenchOptions& options, const BenchSizes& sizes) {
  KVT_ASSIGN_OR_RETURN(const PrivateDaemon daemon, StartBenchDaemon(options, sizes, {}));
  KVT_ASSIGN_OR_RETURN(BenchClient client, BenchClient::Connect(daemon, sizes.block_bytes));
  const Set sets[] = {BenchClient::Set(1, sizes.blocks), BenchClient::Set(2, sizes.blocks)};
  KVT_RETURN_IF_ERROR(StoreBelow(client, sets));
  std::vector<double> seconds;
  for (uint32_t i = 0; i < options.repetitions; ++i) {
    KVT_ASSIGN_OR_RETURN(const double one, LoadSeconds(client, sizes, sets[i % 2], Tier::kHost));
    seconds.push_back(one);
  }
  return Median(seconds);
}

}  // namespace

Result<GpuResults> MeasureHostLoads(const GpuBenchOptions& options, const CopyCeiling& ceiling) {
  GpuResults results;
  for (const uint64_t block_bytes : {2 * kMiB, 512 * kKiB, 64 * kKiB}) {
    const BenchSizes sizes{.block_bytes = block_bytes, .blocks = options.set_bytes / block_bytes};
    KVT_ASSIGN_OR_RETURN(const double seconds, HostLoadSeconds(options, sizes));
    results.push_back(MakeGpuResult("onload_host_" + SizeName(block_bytes), Gbps(sizes, seconds),
                                    "GB/s", ceiling.to_pool_gbps));
  }
  return results;
}

namespace {

// An acquire waits for space: an acquire asks for a whole pool whose blocks must all be saved
// first.
Result<double> AwaitedOffloadGbps(const GpuBenchOptions& options, const BenchSizes& sizes) {
  KVT_ASSIGN_OR_RETURN(const PrivateDaemon daemon,
                       StartBenchDaemon(options, sizes, {"cache.pool_clean_fraction=0"}));
  KVT_ASSIGN_OR_RETURN(BenchClient client, BenchClient::Connect(daemon, sizes.block_bytes));
  std::vector<double> rates;
  for (uint32_t i = 0; i < options.repetitions + 1; ++i) {
    // The first takes the pool and warms up.
    KVT_ASSIGN_OR_RETURN(const TimedOffload offload,
                         client.CommitAndTimeRoom(BenchClient::Set(100 + i, sizes.blocks)));
    if (i > 0) rates.push_back(static_cast<double>(offload.bytes) / 1e9 / offload.seconds);
  }
  return Median(rates);
}

// Nearly all of the pool is to be kept clean, so releasing a set starts its offload, for which
// no acquire waits. Blocks count as being offloaded until their checksums are made, which takes
// about as many bytes at once again.
Result<double> BackgroundOffloadGbps(const GpuBenchOptions& options, const BenchSizes& sizes) {
  KVT_ASSIGN_OR_RETURN(const PrivateDaemon daemon,
                       StartBenchDaemon(options, sizes, {"cache.pool_clean_fraction=0.9"}));
  KVT_ASSIGN_OR_RETURN(BenchClient client, BenchClient::Connect(daemon, sizes.block_bytes));
  std::vector<double> rates;
  for (uint32_t i = 0; i < options.repetitions + 1; ++i) {
    // The first fills the pool and warms up; the others publish the same blocks under new names.
    KVT_ASSIGN_OR_RETURN(const TimedOffload offload,
                         client.CommitAndTimeRest(BenchClient::Set(100 + i, sizes.blocks), i == 0));
    if (i > 0) rates.push_back(static_cast<double>(offload.bytes) / 1e9 / offload.seconds);
  }
  return Median(rates);
}

}  // namespace

Result<GpuResults> MeasureOffloads(const GpuBenchOptions& options, const CopyCeiling& ceiling) {
  const BenchSizes sizes{.block_bytes = 2 * kMiB, .blocks = 4 * options.set_bytes / (2 * kMiB)};
  KVT_ASSIGN_OR_RETURN(const double awaited_gbps, AwaitedOffloadGbps(options, sizes));
  KVT_ASSIGN_OR_RETURN(const double background_gbps, BackgroundOffloadGbps(options, sizes));
  return GpuResults{
      MakeGpuResult("offload_awaited_2MiB", awaited_gbps, "GB/s", ceiling.to_host_gbps),
      MakeGpuResult("offload_background_2MiB", background_gbps, "GB/s", ceiling.to_host_gbps)};
}

namespace {

// The tier's own rate: drives on tmpfs are as fast as one thread's memcpy each.
Result<GpuResults> MeasureDriveLoads(const GpuBenchOptions& options, const BenchSizes& sizes,
                                     BenchClient& client, std::span<const Set> sets) {
  KVT_ASSIGN_OR_RETURN(MemcpyCeiling copies,
                       MemcpyCeiling::Create({sizes.block_bytes, sizes.blocks, /*threads=*/1}));
  std::vector<double> load_seconds, loop_shares, memcpy_seconds;
  for (uint32_t i = 0; i < options.repetitions; ++i) {
    KVT_RETURN_IF_ERROR(client.EvictFromHost(sets[i % 2]));
    KVT_ASSIGN_OR_RETURN(const TimedLoad load, LoadFrom(client, sizes, sets[i % 2], Tier::kDisk));
    load_seconds.push_back(load.seconds);
    loop_shares.push_back(load.cpu.loop_seconds / load.seconds);
    memcpy_seconds.push_back(copies.Run());
  }
  const std::string name = fmt::format("onload_{}_drives", options.drives.size());
  return GpuResults{
      MakeGpuResult(name + "_" + SizeName(sizes.block_bytes), Gbps(sizes, Median(load_seconds)),
                    "GB/s", Gbps(sizes, Median(memcpy_seconds))),
      MakeGpuResult(name + "_loop", 100 * Median(loop_shares), "%", 0)};
}

}  // namespace

Result<GpuResults> MeasureDiskLoads(const GpuBenchOptions& options) {
  const BenchSizes sizes{
      .block_bytes = 2 * kMiB, .blocks = options.set_bytes / (2 * kMiB), .disk = true};
  KVT_ASSIGN_OR_RETURN(const PrivateDaemon daemon, StartBenchDaemon(options, sizes, {}));
  KVT_ASSIGN_OR_RETURN(BenchClient client, BenchClient::Connect(daemon, sizes.block_bytes));
  const Set sets[] = {BenchClient::Set(1, sizes.blocks), BenchClient::Set(2, sizes.blocks)};
  KVT_RETURN_IF_ERROR(StoreBelow(client, sets));
  KVT_RETURN_IF_ERROR(client.Drain());
  if (!options.drives.empty()) return MeasureDriveLoads(options, sizes, client, sets);
  const auto raw = [&](uint64_t memory_bytes) {
    return DiskCeiling::Find(daemon.disk_directory(), sizes.block_bytes + kHeaderBytes,
                             sizes.blocks, memory_bytes);
  };
  KVT_ASSIGN_OR_RETURN(DiskCeiling kept, raw(sizes.host_bytes()));
  KVT_ASSIGN_OR_RETURN(DiskCeiling overwritten, raw(0));
  std::vector<double> load_seconds;
  for (uint32_t i = 0; i < std::max(3u, options.repetitions / 2); ++i) {
    // Loads from disk may use host memory's slots again before they have gone round all of them.
    KVT_RETURN_IF_ERROR(client.EvictFromHost(sets[i % 2]));
    KVT_ASSIGN_OR_RETURN(const double seconds,
                         LoadSeconds(client, sizes, sets[i % 2], Tier::kDisk));
    load_seconds.push_back(seconds);
    KVT_RETURN_IF_ERROR(kept.Measure());
    KVT_RETURN_IF_ERROR(overwritten.Measure());
  }
  const auto gbps = [&](const DiskCeiling& ceiling) {
    return Gbps(sizes, Median(ceiling.best().seconds));
  };
  return GpuResults{
      MakeGpuResult("onload_disk_2MiB", Gbps(sizes, Median(load_seconds)), "GB/s", gbps(kept)),
      MakeGpuResult("disk_raw_few_buffers", gbps(overwritten), "GB/s", 0)};
}

Result<GpuResults> MeasurePrefix(const GpuBenchOptions& options, const CopyCeiling& ceiling) {
  const BenchSizes one{.block_bytes = 2 * kMiB, .blocks = kPrefixBlocks};
  KVT_ASSIGN_OR_RETURN(const double host_seconds, HostLoadSeconds(options, one));
  const double bytes = static_cast<double>(one.blocks * one.block_bytes);
  GpuResults results{MakeGpuResult("prefix_10k_from_host", 1e3 * host_seconds, "ms",
                                   bytes / 1e6 / ceiling.to_pool_gbps)};

  KVT_ASSIGN_OR_RETURN(const PrivateDaemon daemon, StartBenchDaemon(options, one, {}));
  KVT_ASSIGN_OR_RETURN(BenchClient client, BenchClient::Connect(daemon, one.block_bytes));
  const Set set = BenchClient::Set(1, one.blocks);
  KVT_RETURN_IF_ERROR(client.Store(set));
  std::vector<double> seconds;
  for (uint32_t i = 0; i < 20 * options.repetitions; ++i) {
    KVT_ASSIGN_OR_RETURN(const double from_pool, LoadSeconds(client, one, set, Tier::kPool));
    seconds.push_back(from_pool);
  }
  results.push_back(MakeGpuResult("prefix_10k_from_pool", 1e3 * Median(seconds), "ms", 0));
  // The cost of a load beside its bytes.
  const BenchSizes least{.block_bytes = 2 * kMiB, .blocks = 1, .spare_pool_blocks = 0};
  KVT_ASSIGN_OR_RETURN(const double least_seconds, HostLoadSeconds(options, least));
  results.push_back(MakeGpuResult("one_block_from_host", 1e3 * least_seconds, "ms",
                                  2.097152 / ceiling.to_pool_gbps));
  return results;
}

}  // namespace kvtier
