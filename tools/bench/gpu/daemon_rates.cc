#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <span>

#include "base/byte_size.h"
#include "tools/bench/bench.h"
#include "tools/bench/bench_client.h"
#include "tools/bench/ceiling.h"
#include "tools/bench/gpu/gpu_bench.h"
#include "tools/support/admin.h"
#include "tools/support/json_view.h"

namespace kvtier {
namespace {

constexpr uint64_t kHeaderBytes = 4 * kKiB;
constexpr uint64_t kQueueBytes = 64 * kMiB;
constexpr uint64_t kGranuleBytes = 2 * kMiB;
constexpr uint64_t kMinHostBytes = 256 * kMiB;
constexpr int64_t kAdminSilenceMs = 60'000;
constexpr uint64_t kPrefixBlocks = 625;

using Set = std::vector<BlockHash>;

// A daemon whose pool holds one set of blocks and whose host memory holds three, or half of one.
struct Sizes {
  uint64_t block_bytes = 0;
  uint64_t blocks = 0;
  bool disk = false;
  uint64_t spare_pool_blocks = 2;  // for what the daemon has under way

  [[nodiscard]] uint64_t pool_bytes() const {
    const uint64_t bytes = (blocks + spare_pool_blocks) * block_bytes;
    return (bytes + kGranuleBytes - 1) / kGranuleBytes * kGranuleBytes;
  }
};

Result<PrivateDaemon> StartDaemon(const GpuBenchOptions& options, const Sizes& sizes,
                                  std::vector<std::string> more) {
  const uint64_t slots_bytes = sizes.blocks * (sizes.block_bytes + kHeaderBytes);
  PrivateDaemonOptions daemon;
  daemon.temporary_parent = options.directory;
  daemon.settings = {
      "pool.device=cuda:0",
      fmt::format("pool.bytes={}B", sizes.pool_bytes()),
      fmt::format("host.bytes={}B",
                  std::max(sizes.disk ? slots_bytes / 2 : 3 * slots_bytes, kMinHostBytes)),
      fmt::format("host.touch_threads={}", options.threads),
      fmt::format("host.checksum_threads={}", options.threads),
      fmt::format("disk.bytes={}B", sizes.disk ? 3 * slots_bytes : 0),
      fmt::format("disk.queue_bytes={}B", kQueueBytes),
      fmt::format("cache.chunk_bytes={}B", 64 * kMiB),
      // A whole set is allocated at once: all of the other one may have to be saved first.
      "cache.max_wait_ms=30000",
  };
  daemon.settings.insert(daemon.settings.end(), more.begin(), more.end());
  return PrivateDaemon::Start(std::move(daemon));
}

double Gbps(const Sizes& sizes, double seconds) {
  return static_cast<double>(sizes.blocks * sizes.block_bytes) / 1e9 / seconds;
}

Result<double> LoadSeconds(BenchClient& client, const Sizes& sizes, const Set& set, Tier tier) {
  KVT_ASSIGN_OR_RETURN(const TimedLoad load, client.Load(set));
  // The pool may be a little larger than a set.
  const uint64_t spare =
      tier == Tier::kPool ? 0 : sizes.pool_bytes() / sizes.block_bytes - set.size();
  if (load.hit[static_cast<int>(tier)] + spare < set.size() || load.ready != set.size()) {
    return MakeError(ErrorCode::kWrongState, "wrong_tier",
                     fmt::format("of {} blocks {} came from the pool, {} from host, {} from disk",
                                 set.size(), load.hit[0], load.hit[1], load.hit[2]));
  }
  return load.seconds;
}

// Leaves copies of both sets below the pool.
Status WarmUp(BenchClient& client, std::span<const Set> sets) {
  for (int turn = 0; turn < 2; ++turn) {
    for (const Set& set : sets) KVT_RETURN_IF_ERROR(client.Store(set));
  }
  return {};
}

// The median rate of loads from host of sets that take turns in a pool that holds one.
Result<double> HostLoadSeconds(const GpuBenchOptions& options, const Sizes& sizes) {
  KVT_ASSIGN_OR_RETURN(const PrivateDaemon daemon, StartDaemon(options, sizes, {}));
  KVT_ASSIGN_OR_RETURN(BenchClient client, BenchClient::Connect(daemon, sizes.block_bytes));
  const Set sets[] = {BenchClient::Set(1, sizes.blocks), BenchClient::Set(2, sizes.blocks)};
  KVT_RETURN_IF_ERROR(WarmUp(client, sets));
  std::vector<double> seconds;
  for (uint32_t i = 0; i < options.repetitions; ++i) {
    KVT_ASSIGN_OR_RETURN(const double one, LoadSeconds(client, sizes, sets[i % 2], Tier::kHost));
    seconds.push_back(one);
  }
  return Median(seconds);
}

Result<uint64_t> OffloadedBytes(const PrivateDaemon& daemon) {
  KVT_ASSIGN_OR_RETURN(const std::string text,
                       CallAdmin(daemon.admin_socket(), R"({"op":"status"})", kAdminSilenceMs));
  const boost::json::value document = boost::json::parse(text);
  return JsonView(&document)["stats"]["offload_bytes"].Count();
}

std::string LargestFile(const std::string& directory) {
  std::string largest;
  uint64_t largest_bytes = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory, error)) {
    if (!entry.is_regular_file(error) || entry.file_size(error) <= largest_bytes) continue;
    largest = entry.path();
    largest_bytes = entry.file_size(error);
  }
  return largest;
}

}  // namespace

Result<GpuResults> MeasureHostLoads(const GpuBenchOptions& options, const CopyCeiling& ceiling) {
  GpuResults results;
  for (const uint64_t block_bytes : {2 * kMiB, 512 * kKiB, 64 * kKiB}) {
    const Sizes sizes{.block_bytes = block_bytes, .blocks = options.set_bytes / block_bytes};
    KVT_ASSIGN_OR_RETURN(const double seconds, HostLoadSeconds(options, sizes));
    results.push_back(MakeGpuResult("onload_host_" + SizeName(block_bytes), Gbps(sizes, seconds),
                                    "GB/s", ceiling.to_pool_gbps));
  }
  return results;
}

// Nearly all of the pool is to be kept clean, so releasing a set starts its offload. Blocks count
// as being offloaded until their checksums are made, which takes about as many bytes at once again.
Result<GpuResults> MeasureOffloads(const GpuBenchOptions& options, const CopyCeiling& ceiling) {
  const Sizes sizes{.block_bytes = 2 * kMiB, .blocks = 4 * options.set_bytes / (2 * kMiB)};
  KVT_ASSIGN_OR_RETURN(const PrivateDaemon daemon, StartDaemon(options, sizes,
                                                               {"cache.pool_clean_fraction=0.9",
                                                                "cache.max_offload_bytes=256MiB"}));
  KVT_ASSIGN_OR_RETURN(BenchClient client, BenchClient::Connect(daemon, sizes.block_bytes));
  std::vector<double> rates;
  for (uint32_t i = 0; i < options.repetitions + 1; ++i) {
    KVT_ASSIGN_OR_RETURN(const uint64_t before, OffloadedBytes(daemon));
    // The first fills the pool and warms up; the others publish what is there under new names.
    KVT_ASSIGN_OR_RETURN(const double seconds,
                         client.CommitAndTimeRest(BenchClient::Set(100 + i, sizes.blocks), i == 0));
    KVT_ASSIGN_OR_RETURN(const uint64_t after, OffloadedBytes(daemon));
    if (i > 0) rates.push_back(static_cast<double>(after - before) / 1e9 / seconds);
  }
  return GpuResults{
      MakeGpuResult("offload_host_2MiB", Median(rates), "GB/s", ceiling.to_host_gbps)};
}

Result<GpuResults> MeasureDiskLoads(const GpuBenchOptions& options) {
  const Sizes sizes{
      .block_bytes = 2 * kMiB, .blocks = options.set_bytes / (2 * kMiB), .disk = true};
  KVT_ASSIGN_OR_RETURN(const PrivateDaemon daemon, StartDaemon(options, sizes, {}));
  KVT_ASSIGN_OR_RETURN(BenchClient client, BenchClient::Connect(daemon, sizes.block_bytes));
  const Set sets[] = {BenchClient::Set(1, sizes.blocks), BenchClient::Set(2, sizes.blocks)};
  KVT_RETURN_IF_ERROR(WarmUp(client, sets));
  KVT_RETURN_IF_ERROR(client.Drain());
  ReadWork work{.path = LargestFile(daemon.disk_directory()),
                .request_bytes = sizes.block_bytes + kHeaderBytes,
                .requests = sizes.blocks,
                .queue_bytes = kQueueBytes};
  std::vector<double> rates, ceilings, ratios;
  for (uint32_t i = 0; i < std::max(3u, options.repetitions / 2); ++i) {
    KVT_ASSIGN_OR_RETURN(const double seconds,
                         LoadSeconds(client, sizes, sets[i % 2], Tier::kDisk));
    // The two sets' stretches in turn, as the tier reads them.
    work.offset = i % 2 == 0 ? 0 : work.requests * work.request_bytes;
    KVT_ASSIGN_OR_RETURN(const double raw_seconds, ReadWithIoUring(work));
    rates.push_back(Gbps(sizes, seconds));
    ceilings.push_back(Gbps(sizes, raw_seconds));
  }
  return GpuResults{MakeGpuResult("onload_disk_2MiB", Median(rates), "GB/s", Median(ceilings))};
}

Result<GpuResults> MeasurePrefix(const GpuBenchOptions& options, const CopyCeiling& ceiling) {
  const Sizes one{.block_bytes = 2 * kMiB, .blocks = kPrefixBlocks};
  KVT_ASSIGN_OR_RETURN(const double host_seconds, HostLoadSeconds(options, one));
  const double bytes = static_cast<double>(one.blocks * one.block_bytes);
  GpuResults results{MakeGpuResult("prefix_10k_from_host", 1e3 * host_seconds, "ms",
                                   bytes / 1e6 / ceiling.to_pool_gbps)};

  KVT_ASSIGN_OR_RETURN(const PrivateDaemon daemon, StartDaemon(options, one, {}));
  KVT_ASSIGN_OR_RETURN(BenchClient client, BenchClient::Connect(daemon, one.block_bytes));
  const Set set = BenchClient::Set(1, one.blocks);
  KVT_RETURN_IF_ERROR(client.Store(set));
  std::vector<double> seconds;
  for (uint32_t i = 0; i < 20 * options.repetitions; ++i) {
    KVT_ASSIGN_OR_RETURN(const double from_pool, LoadSeconds(client, one, set, Tier::kPool));
    seconds.push_back(from_pool);
  }
  results.push_back(MakeGpuResult("prefix_10k_from_pool", 1e3 * Median(seconds), "ms", 0));
  // What a load costs beside its bytes.
  const Sizes least{.block_bytes = 2 * kMiB, .blocks = 1, .spare_pool_blocks = 0};
  KVT_ASSIGN_OR_RETURN(const double least_seconds, HostLoadSeconds(options, least));
  results.push_back(MakeGpuResult("one_block_from_host", 1e3 * least_seconds, "ms",
                                  2.097152 / ceiling.to_pool_gbps));
  return results;
}

}  // namespace kvtier
