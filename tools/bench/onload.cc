// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "base/units.h"
#include "tools/bench/bench.h"
#include "tools/bench/bench_client.h"
#include "tools/bench/ceiling.h"
#include "tools/bench/disk_ceiling.h"
#include "tools/replay/report.h"
#include "tools/support/private_daemon.h"

namespace kvtier {
namespace {

constexpr uint64_t kHeaderBytes = 4 * kKiB;  // of each slot, and of each slab on disk
constexpr uint64_t kSlabBytes = 16 * kMiB;
constexpr uint64_t kSparePoolBlocks = 2;
// The sets that a tier has space for. For the host tier two, both of which lie in host memory, take
// turns in a pool that holds one. Host memory keeps a part of a set that came from disk when the
// next one comes, so for the disk tier so many take turns that each has left host memory when its
// turn comes. The rest is spare.
constexpr uint64_t kSetsInHost = 3;
constexpr uint64_t kSetsOnDisk = 5;

uint64_t SlotsPerSlab(uint64_t block_bytes) {
  return (kSlabBytes - kHeaderBytes) / (block_bytes + kHeaderBytes);
}

// A tier of so many blocks takes whole slabs, and a slab holds whole slots alone: blocks of 2 MiB
// use 14 of its 16 MiB.
uint64_t TierBytes(uint64_t blocks, uint64_t block_bytes) {
  const uint64_t per_slab = SlotsPerSlab(block_bytes);
  return (blocks + per_slab - 1) / per_slab * kSlabBytes;
}

// Each drive has an equal share, of whole slabs.
uint64_t DiskBytes(const BenchOptions& options, uint64_t sets, uint64_t block_bytes) {
  const uint64_t bytes = TierBytes(sets * (options.set_bytes / block_bytes), block_bytes);
  if (options.drives.empty()) return bytes;
  return bytes + options.drives.size() * (kSlabBytes + kMiB);
}

// Host memory that a set which is pushed through it leaves without anything older.
uint64_t HostBytesForDisk(const BenchOptions& options, uint64_t block_bytes) {
  return options.set_bytes / block_bytes * (block_bytes + kHeaderBytes) / 2;
}

// As many as copy between pool and host memory on the daemon's host device.
constexpr uint32_t kCopyThreads = 2;

constexpr uint64_t SetCount(Tier tier) {
  return (tier == Tier::kDisk ? kSetsOnDisk : kSetsInHost) - 1;
}

Result<PrivateDaemon> StartDaemon(const BenchOptions& options, Tier tier, uint64_t block_bytes) {
  const bool from_disk = tier == Tier::kDisk;
  const uint64_t slots = options.set_bytes / block_bytes;
  PrivateDaemonOptions daemon;
  daemon.temporary_parent = options.directory;
  if (from_disk) daemon.drive_parents = options.drives;
  daemon.settings = {
      fmt::format("pool.bytes={}B", (slots + kSparePoolBlocks) * block_bytes),
      fmt::format("host.bytes={}B", from_disk ? HostBytesForDisk(options, block_bytes)
                                              : TierBytes(kSetsInHost * slots, block_bytes)),
      fmt::format("disk.bytes={}B", from_disk ? DiskBytes(options, kSetsOnDisk, block_bytes) : 0),
      fmt::format("cache.slab_bytes={}B", kSlabBytes),
      // A whole set is allocated at once: all of the other one may have to be saved first.
      "cache.max_wait_ms=30000",
  };
  PutOnDevice(options.device, &daemon);
  daemon.settings.insert(daemon.settings.end(), options.settings.begin(), options.settings.end());
  return PrivateDaemon::Start(std::move(daemon));
}

constexpr uint64_t kSetsInPool = 3;

// The coldest third of the pool lies in host as well, which has no space for more. In host, only
// the share that is kept clean has been written.
Result<PrivateDaemon> StartUnwritten(const BenchOptions& options, uint64_t block_bytes) {
  const uint64_t slots = options.set_bytes / block_bytes;
  PrivateDaemonOptions daemon;
  daemon.temporary_parent = options.directory;
  daemon.drive_parents = options.drives;
  daemon.settings = {
      fmt::format("pool.bytes={}B", (kSetsInPool * slots + kSparePoolBlocks) * block_bytes),
      fmt::format("host.bytes={}B", TierBytes(slots, block_bytes) + kSlabBytes),
      fmt::format("disk.bytes={}B", DiskBytes(options, 3 * kSetsInPool, block_bytes)),
      fmt::format("cache.slab_bytes={}B", kSlabBytes),
      "cache.max_wait_ms=30000",
      "cache.pool_clean_fraction=0.34",
      "retention.persist_after=24h",
  };
  PutOnDevice(options.device, &daemon);
  daemon.settings.insert(daemon.settings.end(), options.settings.begin(), options.settings.end());
  return PrivateDaemon::Start(std::move(daemon));
}

// The machine's limit with the same bytes: run once for each load, and the seconds that each run
// took.
struct Ceiling {
  std::function<Status()> run;
  std::function<std::vector<double>()> seconds;
};

Result<Ceiling> CeilingOfMemcpy(const BenchOptions& options, uint64_t block_bytes,
                                uint32_t threads) {
  const CopyWork work{block_bytes, options.set_bytes / block_bytes, threads};
  KVT_ASSIGN_OR_RETURN(MemcpyCeiling memory, MemcpyCeiling::Create(work));
  auto shared = std::make_shared<MemcpyCeiling>(std::move(memory));
  auto seconds = std::make_shared<std::vector<double>>();
  return Ceiling{[shared, seconds]() -> Status {
                   seconds->push_back(shared->Run());
                   return {};
                 },
                 [seconds] { return *seconds; }};
}

Result<Ceiling> CeilingOfDisk(const BenchOptions& options, uint64_t block_bytes,
                              const std::string& directory) {
  if (!options.drives.empty()) return CeilingOfMemcpy(options, block_bytes, 1);
  KVT_ASSIGN_OR_RETURN(DiskCeiling disk, DiskCeiling::Find(directory, block_bytes + kHeaderBytes,
                                                           options.set_bytes / block_bytes,
                                                           HostBytesForDisk(options, block_bytes)));
  auto shared = std::make_shared<DiskCeiling>(std::move(disk));
  return Ceiling{[shared] { return shared->Measure(); },
                 [shared] { return shared->best().seconds; }};
}

uint32_t DriveCount(const BenchOptions& options) {
  return std::max<uint32_t>(1, static_cast<uint32_t>(options.drives.size()));
}

double Gbps(uint64_t bytes, double seconds) { return static_cast<double>(bytes) / 1e9 / seconds; }

// Leaves copies of all sets below the pool, so that making room costs nothing later. For two sets
// that take turns, the first turn alone does not.
Status WarmUp(BenchClient& client, std::span<const std::vector<BlockHash>> sets) {
  const int turns = sets.size() == SetCount(Tier::kHost) ? 4 : 1;
  for (int i = 0; i < turns; ++i) {
    for (const auto& set : sets) KVT_RETURN_IF_ERROR(client.Store(set));
  }
  return {};
}

Result<TimedLoad> LoadFrom(BenchClient& client, const std::vector<BlockHash>& set, Tier tier) {
  KVT_ASSIGN_OR_RETURN(const TimedLoad load, client.Load(set));
  // The pool is a little larger than a set, for whatever the daemon has in flight.
  const uint64_t from_tier = load.hit[static_cast<int>(tier)];
  if (from_tier + kSparePoolBlocks < set.size() || load.ready != set.size()) {
    return MakeError(ErrorCode::kWrongState, "wrong_tier",
                     fmt::format("of {} blocks {} came from the pool, {} from host, {} from disk",
                                 set.size(), load.hit[0], load.hit[1], load.hit[2]));
  }
  return load;
}

// Loads, each followed by one run of its ceiling.
class Samples {
 public:
  explicit Samples(Ceiling ceiling) : ceiling_(std::move(ceiling)) {}

  Status TakeOne(BenchClient& client, const std::vector<BlockHash>& set, Tier tier) {
    KVT_ASSIGN_OR_RETURN(const TimedLoad load, LoadFrom(client, set, tier));
    const double us_per_block = 1e6 / static_cast<double>(set.size());
    cpu_us_.push_back(load.cpu.all_seconds * us_per_block);
    loop_us_.push_back(load.cpu.loop_seconds * us_per_block);
    loop_shares_.push_back(load.cpu.loop_seconds / load.seconds);
    seconds_.push_back(load.seconds);
    return ceiling_.run();
  }

  // The payload counts, for both; the headers are the tier's cost.
  [[nodiscard]] OnloadResult Summary(Tier tier, uint64_t block_bytes, size_t blocks) const {
    std::vector<double> rates, ceilings, ratios;
    for (const double seconds : ceiling_.seconds()) {
      rates.push_back(Gbps(blocks * block_bytes, seconds_[rates.size()]));
      ceilings.push_back(Gbps(blocks * block_bytes, seconds));
      ratios.push_back(rates.back() / ceilings.back());
    }
    return {.tier = tier,
            .block_bytes = block_bytes,
            .blocks = blocks,
            .gbps = Median(rates),
            .ceiling_gbps = Median(ceilings),
            .ratio = Median(ratios),
            .cpu_us = Median(cpu_us_),
            .loop_us = Median(loop_us_),
            .loop_share = Median(loop_shares_)};
  }

 private:
  const Ceiling ceiling_;
  std::vector<double> seconds_;
  std::vector<double> cpu_us_;
  std::vector<double> loop_us_;
  std::vector<double> loop_shares_;
};

}  // namespace

Result<OnloadResult> MeasureOnload(const BenchOptions& options, Tier tier, uint64_t block_bytes) {
  KVT_ASSIGN_OR_RETURN(const PrivateDaemon daemon, StartDaemon(options, tier, block_bytes));
  KVT_ASSIGN_OR_RETURN(BenchClient client, BenchClient::Connect(daemon, block_bytes));
  const size_t blocks = options.set_bytes / block_bytes;
  std::vector<std::vector<BlockHash>> sets;
  for (uint64_t i = 1; i <= SetCount(tier); ++i) sets.push_back(BenchClient::Set(i, blocks));
  KVT_RETURN_IF_ERROR(WarmUp(client, sets));
  if (tier == Tier::kDisk) KVT_RETURN_IF_ERROR(client.Drain());
  KVT_ASSIGN_OR_RETURN(const Ceiling ceiling,
                       tier == Tier::kDisk
                           ? CeilingOfDisk(options, block_bytes, daemon.disk_directory())
                           : CeilingOfMemcpy(options, block_bytes, kCopyThreads));

  Samples samples(ceiling);
  const auto start = std::chrono::steady_clock::now();
  for (uint32_t i = 0; i < options.repetitions; ++i) {
    KVT_RETURN_IF_ERROR(samples.TakeOne(client, sets[i % sets.size()], tier));
    if (std::chrono::steady_clock::now() - start > options.most_time) break;
  }
  OnloadResult result = samples.Summary(tier, block_bytes, blocks);
  if (tier == Tier::kDisk) result.drives = DriveCount(options);
  return result;
}

Result<OnloadResult> MeasureOnloadBesideWrites(const BenchOptions& options, uint64_t block_bytes) {
  KVT_ASSIGN_OR_RETURN(const PrivateDaemon daemon, StartUnwritten(options, block_bytes));
  KVT_ASSIGN_OR_RETURN(BenchClient client, BenchClient::Connect(daemon, block_bytes));
  const size_t blocks = options.set_bytes / block_bytes;
  const std::vector<BlockHash> set = BenchClient::Set(1, blocks);
  KVT_RETURN_IF_ERROR(client.Store(set));
  KVT_RETURN_IF_ERROR(client.Drain());
  KVT_ASSIGN_OR_RETURN(const Ceiling ceiling,
                       CeilingOfDisk(options, block_bytes, daemon.disk_directory()));
  Samples samples(ceiling);
  uint64_t seed = 1;
  for (uint32_t i = 0; i < options.repetitions; ++i) {
    // The other sets push this one out of pool and host; their coldest blocks fill host.
    for (uint64_t other = 0; other < kSetsInPool; ++other) {
      KVT_RETURN_IF_ERROR(client.Store(BenchClient::Set(++seed, blocks)));
    }
    KVT_RETURN_IF_ERROR(samples.TakeOne(client, set, Tier::kDisk));
    KVT_RETURN_IF_ERROR(client.Drain());
  }
  OnloadResult result = samples.Summary(Tier::kDisk, block_bytes, blocks);
  result.host_unwritten = true;
  result.drives = DriveCount(options);
  return result;
}

uint64_t SetBytesWithin(const BenchTiers& tiers, const std::vector<uint64_t>& block_bytes) {
  const uint64_t spare = kSparePoolBlocks * std::ranges::max(block_bytes);
  uint64_t set = tiers.pool_bytes > spare ? tiers.pool_bytes - spare : 0;
  const auto fit = [&](uint64_t tier_bytes, uint64_t sets) {
    for (const uint64_t bytes : block_bytes) {
      set = std::min(set, tier_bytes / kSlabBytes * SlotsPerSlab(bytes) / sets * bytes);
    }
  };
  fit(tiers.host_bytes, kSetsInHost);
  if (tiers.disk_bytes > 0) fit(tiers.disk_bytes, kSetsOnDisk);
  return set;
}

}  // namespace kvtier
