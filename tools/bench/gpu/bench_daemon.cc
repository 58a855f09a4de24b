// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/gpu/bench_daemon.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace kvtier {
namespace {

constexpr uint64_t kGranuleBytes = 2 * kMiB;
constexpr uint64_t kSlabBytes = 64 * kMiB;
constexpr uint64_t kMinHostBytes = 256 * kMiB;

}  // namespace

uint64_t BenchSizes::pool_bytes() const {
  const uint64_t bytes = (blocks + spare_pool_blocks) * block_bytes;
  return (bytes + kGranuleBytes - 1) / kGranuleBytes * kGranuleBytes;
}

uint64_t BenchSizes::host_bytes() const {
  const uint64_t slots_bytes = blocks * (block_bytes + kHeaderBytes);
  return std::max(disk ? slots_bytes / 2 : 3 * slots_bytes, kMinHostBytes);
}

Result<PrivateDaemon> StartGpuDaemon(const GpuBenchOptions& options,
                                     std::vector<std::string> settings) {
  PrivateDaemonOptions daemon;
  daemon.temporary_parent = options.directory;
  daemon.drive_parents = options.drives;
  daemon.settings = std::move(settings);
  daemon.settings.push_back("pool.device=" + options.device);
  daemon.settings.insert(daemon.settings.end(), options.settings.begin(), options.settings.end());
  return PrivateDaemon::Start(std::move(daemon));
}

Result<PrivateDaemon> StartBenchDaemon(const GpuBenchOptions& options, const BenchSizes& sizes,
                                       const std::vector<std::string>& more) {
  const uint64_t slots_bytes = sizes.blocks * (sizes.block_bytes + kHeaderBytes);
  // Each drive has an equal share, of whole slabs, behind its first MiB.
  const uint64_t drive_bytes = options.drives.size() * (kSlabBytes + kMiB);
  std::vector<std::string> settings = {
      fmt::format("pool.bytes={}B", sizes.pool_bytes()),
      fmt::format("host.bytes={}B", sizes.host_bytes()),
      fmt::format("disk.bytes={}B", sizes.disk ? 3 * slots_bytes + drive_bytes : 0),
      fmt::format("cache.slab_bytes={}B", kSlabBytes),
      // A whole set is allocated at once: all of the other one may have to be saved first.
      "cache.max_wait_ms=30000",
  };
  settings.insert(settings.end(), more.begin(), more.end());
  return StartGpuDaemon(options, std::move(settings));
}

Status StoreBelow(BenchClient& client, std::span<const Set> sets) {
  for (int turn = 0; turn < 2; ++turn) {
    for (const Set& set : sets) KVT_RETURN_IF_ERROR(client.Store(set));
  }
  return {};
}

}  // namespace kvtier
