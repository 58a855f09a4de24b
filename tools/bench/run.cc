// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "base/units.h"
#include "tools/bench/bench.h"
#include "tools/support/terminal.h"

namespace kvtier {
namespace {

constexpr uint64_t kHeaderBytes = 4 * kKiB;
// The size of a tier that the onload measurements need, in sets; see onload.cc.
constexpr uint64_t kSetsInTier = 3;
constexpr uint64_t kSpareSlabBytes = 16 * kMiB;

Status MeasureOnloads(const BenchOptions& options, Tier tier, BenchResults* results) {
  for (const uint64_t block_bytes : options.block_bytes) {
    Terminal(stderr).ShowProgress(fmt::format("onload, blocks of {}", FormatByteSize(block_bytes)));
    KVT_ASSIGN_OR_RETURN(const OnloadResult result, MeasureOnload(options, tier, block_bytes));
    results->onload.push_back(result);
  }
  return {};
}

}  // namespace

Status RunBench(const BenchOptions& options, const BenchSelection& selection,
                BenchResults* results) {
  if (selection.onload_host) {
    KVT_RETURN_IF_ERROR(MeasureOnloads(options, Tier::kHost, results));
  }
  if (selection.onload_disk) {
    KVT_RETURN_IF_ERROR(MeasureOnloads(options, Tier::kDisk, results));
  }
  if (selection.onload_unwritten) {
    for (const uint64_t block_bytes : options.block_bytes) {
      Terminal(stderr).ShowProgress(
          fmt::format("onload beside writes, blocks of {}", FormatByteSize(block_bytes)));
      KVT_ASSIGN_OR_RETURN(const OnloadResult result,
                           MeasureOnloadBesideWrites(options, block_bytes));
      results->onload.push_back(result);
    }
  }
  if (selection.acquire) {
    Terminal(stderr).ShowProgress("acquire");
    KVT_ASSIGN_OR_RETURN(results->acquire, MeasureAcquire(options));
  }
  if (selection.start) {
    Terminal(stderr).ShowProgress(fmt::format("start with {} entries", options.entries));
    KVT_ASSIGN_OR_RETURN(const StartResult result, MeasureStart(options));
    results->start.push_back(result);
  }
  return {};
}

uint64_t SetBytesWithin(const BenchTiers& tiers, const std::vector<uint64_t>& block_bytes) {
  const uint64_t smallest = std::ranges::min(block_bytes);
  const uint64_t spare = 2 * std::ranges::max(block_bytes);
  const auto of_tier = [&](uint64_t bytes) {
    const uint64_t set = bytes > kSpareSlabBytes ? (bytes - kSpareSlabBytes) / kSetsInTier : 0;
    return static_cast<uint64_t>(static_cast<double>(set) * static_cast<double>(smallest) /
                                 static_cast<double>(smallest + kHeaderBytes));
  };
  uint64_t set = tiers.pool_bytes > spare ? tiers.pool_bytes - spare : 0;
  set = std::min(set, of_tier(tiers.host_bytes));
  return tiers.disk_bytes == 0 ? set : std::min(set, of_tier(tiers.disk_bytes));
}

}  // namespace kvtier
