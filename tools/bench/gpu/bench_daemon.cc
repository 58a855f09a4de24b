// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/gpu/bench_daemon.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace kvtier {
namespace {

constexpr uint64_t kGranuleBytes = 2 * kMiB;
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

Result<PrivateDaemon> StartBenchDaemon(const GpuBenchOptions& options, const BenchSizes& sizes,
                                       const std::vector<std::string>& more) {
  const uint64_t slots_bytes = sizes.blocks * (sizes.block_bytes + kHeaderBytes);
  PrivateDaemonOptions daemon;
  daemon.temporary_parent = options.directory;
  daemon.settings = {
      "pool.device=" + options.device,
      fmt::format("pool.bytes={}B", sizes.pool_bytes()),
      fmt::format("host.bytes={}B", sizes.host_bytes()),
      fmt::format("host.touch_threads={}", options.threads),
      fmt::format("host.checksum_threads={}", options.threads),
      fmt::format("disk.bytes={}B", sizes.disk ? 3 * slots_bytes : 0),
      fmt::format("cache.slab_bytes={}B", 64 * kMiB),
      // A whole set is allocated at once: all of the other one may have to be saved first.
      "cache.max_wait_ms=30000",
  };
  daemon.settings.insert(daemon.settings.end(), options.settings.begin(), options.settings.end());
  daemon.settings.insert(daemon.settings.end(), more.begin(), more.end());
  return PrivateDaemon::Start(std::move(daemon));
}

Status StoreBelow(BenchClient& client, std::span<const Set> sets) {
  for (int turn = 0; turn < 2; ++turn) {
    for (const Set& set : sets) KVT_RETURN_IF_ERROR(client.Store(set));
  }
  return {};
}

}  // namespace kvtier
