// SPDX-License-Identifier: Apache-2.0
// Daemons for measurements of a GPU's pool.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "tools/bench/bench_client.h"
#include "tools/bench/gpu/gpu_bench.h"
#include "tools/support/private_daemon.h"

namespace kvtier {

inline constexpr uint64_t kHeaderBytes = 4 * kKiB;

using Set = std::vector<BlockHash>;

// A daemon on the device of `options`, with these settings and, where they differ, those of
// `options`.
[[nodiscard]] Result<PrivateDaemon> StartGpuDaemon(const GpuBenchOptions& options,
                                                   std::vector<std::string> settings);

// A daemon whose pool holds one set of blocks and whose host memory holds three, or half of one.
struct BenchSizes {
  uint64_t block_bytes = 0;
  uint64_t blocks = 0;
  bool disk = false;
  uint64_t spare_pool_blocks = 2;  // for the daemon's work under way

  [[nodiscard]] uint64_t pool_bytes() const;
  [[nodiscard]] uint64_t host_bytes() const;
};

// `more` settings of the daemon, behind those of `options`.
[[nodiscard]] Result<PrivateDaemon> StartBenchDaemon(const GpuBenchOptions& options,
                                                     const BenchSizes& sizes,
                                                     const std::vector<std::string>& more);
// Leaves copies of both sets below the pool.
[[nodiscard]] Status StoreBelow(BenchClient& client, std::span<const Set> sets);

}  // namespace kvtier
