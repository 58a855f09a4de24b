// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "base/units.h"
#include "tools/bench/bench.h"
#include "tools/bench/bench_client.h"
#include "tools/bench/daemon_status.h"
#include "tools/replay/report.h"
#include "tools/support/private_daemon.h"

namespace kvtier {
namespace {

constexpr uint64_t kBlockBytes = 4 * kKiB;
constexpr uint32_t kHashCounts[] = {1, 64, 512, 8192};
constexpr size_t kMostHashes = 8192;

std::vector<BlockHash> MeasuredSet() { return BenchClient::Set(1, kMostHashes); }

Result<std::vector<AcquireResult>> Measure(BenchClient* client, uint32_t samples) {
  const std::vector<BlockHash> set = MeasuredSet();
  KVT_RETURN_IF_ERROR(client->Store(set));

  std::vector<AcquireResult> results;
  for (const uint32_t hashes : kHashCounts) {
    const std::vector<kvt_hash> prefix = ToWire({set.begin(), set.begin() + hashes});
    std::vector<double> acquires, pings;
    for (uint32_t i = 0; i < samples; ++i) {
      KVT_ASSIGN_OR_RETURN(const double acquire_us, client->AcquireUs(prefix));
      KVT_ASSIGN_OR_RETURN(const double ping_us, client->PingUs());
      acquires.push_back(acquire_us);
      pings.push_back(ping_us);
    }
    results.push_back(
        {hashes, Percentile(acquires, 0.50), Percentile(acquires, 0.99), Percentile(pings, 0.50)});
  }
  return results;
}

}  // namespace

Result<std::vector<AcquireResult>> MeasureAcquireOf(const std::string& socket,
                                                    const std::string& admin_socket,
                                                    uint32_t device, uint32_t samples) {
  // Without it nothing could be taken back; asked before anything is stored.
  KVT_RETURN_IF_ERROR(AskStatus(admin_socket));
  KVT_ASSIGN_OR_RETURN(BenchClient client,
                       BenchClient::Connect({.socket = socket,
                                             .block_bytes = kBlockBytes,
                                             .pool_bytes = 2 * kMostHashes * kBlockBytes,
                                             .device = device},
                                            admin_socket));
  Result<std::vector<AcquireResult>> results = Measure(&client, samples);
  // A service that was measured keeps nothing of it, however the measurement ended.
  Status cleaned = client.Settle();
  if (cleaned) cleaned = client.Evict(MeasuredSet());
  if (results && !cleaned) return tl::unexpected(cleaned.error());
  return results;
}

Result<std::vector<AcquireResult>> MeasureAcquire(const BenchOptions& options) {
  PrivateDaemonOptions daemon_options;
  daemon_options.temporary_parent = options.directory;
  daemon_options.settings = {
      fmt::format("pool.bytes={}B", 2 * kMostHashes * kBlockBytes),
      fmt::format("host.bytes={}B", 64 * kMiB),
      "disk.bytes=0B",
  };
  PutOnDevice(options.device, &daemon_options);
  daemon_options.settings.insert(daemon_options.settings.end(), options.settings.begin(),
                                 options.settings.end());
  KVT_ASSIGN_OR_RETURN(const PrivateDaemon daemon, PrivateDaemon::Start(std::move(daemon_options)));
  KVT_ASSIGN_OR_RETURN(BenchClient client, BenchClient::Connect(daemon, kBlockBytes));
  return Measure(&client, options.samples);
}

}  // namespace kvtier
