// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "base/units.h"
#include "tools/bench/bench.h"
#include "tools/support/terminal.h"

namespace kvtier {
namespace {

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

}  // namespace kvtier
