// SPDX-License-Identifier: Apache-2.0
// The measurements of kvtier-bench. Each starts a private daemon of its own and compares its
// results with the machine's limits, in the same run.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"

namespace kvtier {

struct BenchOptions {
  std::string directory;  // where temporary directories are made; on the disk to be measured
  // Where the disk tier has a drive each, beside `directory`; empty: it has one, there.
  std::vector<std::string> drives;
  std::string device;  // of private daemons, as in `pool.device`; empty: what they choose
  uint32_t repetitions = 9;
  // An onload is repeated no more after this time.
  std::chrono::seconds most_time{600};
  uint64_t set_bytes = uint64_t{1} << 30;  // moved in one repetition
  std::vector<uint64_t> block_bytes;
  uint64_t entries = 1'000'000;
  uint32_t samples = 1000;            // of each acquire
  std::vector<std::string> settings;  // of the onloads' daemons, KEY=VALUE, beside the bench's own
};

// Bringing blocks up into the pool. The ceiling of the disk tier is raw io_uring on its file, or,
// if it has several drives, one thread's memcpy. Rates in 10^9 bytes a second, medians over the
// repetitions.
struct OnloadResult {
  Tier tier = Tier::kHost;
  uint64_t block_bytes = 0;
  uint64_t blocks = 0;
  double gbps = 0;
  double ceiling_gbps = 0;
  // The median over repetitions of rate / ceiling, each pair measured one after the other.
  double ratio = 0;
  // Processor time of the daemon for each block, all its threads together: the median.
  double cpu_us = 0;
  // The same of the event loop's thread alone, which bounds how fast small blocks can move.
  double loop_us = 0;
  // The share of one core that the loop's thread took.
  double loop_share = 0;
  uint32_t drives = 1;  // of the disk tier
  // Host memory was full of blocks that had not been written to disk.
  bool host_unwritten = false;
};
[[nodiscard]] Result<OnloadResult> MeasureOnload(const BenchOptions& options, Tier tier,
                                                 uint64_t block_bytes);
// Loads from disk, while each read needs a slot of a host tier that is full of unwritten blocks.
[[nodiscard]] Result<OnloadResult> MeasureOnloadBesideWrites(const BenchOptions& options,
                                                             uint64_t block_bytes);

// Sizes of the private daemon's tiers; a disk of 0 bytes is not measured.
struct BenchTiers {
  uint64_t pool_bytes = 0;
  uint64_t host_bytes = 0;
  uint64_t disk_bytes = 0;
};
// The largest set that can be measured without any tier passing its size.
[[nodiscard]] uint64_t SetBytesWithin(const BenchTiers& tiers,
                                      const std::vector<uint64_t>& block_bytes);

// The client's wait for an acquire of blocks that are all in the pool.
struct AcquireResult {
  uint32_t hashes = 0;
  double p50_us = 0;
  double p99_us = 0;
  double ping_p50_us = 0;  // an empty round trip, measured in between
};
[[nodiscard]] Result<std::vector<AcquireResult>> MeasureAcquire(const BenchOptions& options);
// The same of a daemon that runs already, with a pool of 64 MiB of its own on the device of that
// position; it evicts the blocks that it stored there. Errors: those of the admin socket, before
// anything is stored; kResourceExhausted when the daemon's pools leave no room for it.
[[nodiscard]] Result<std::vector<AcquireResult>> MeasureAcquireOf(const std::string& socket,
                                                                  const std::string& admin_socket,
                                                                  uint32_t device,
                                                                  uint32_t samples);

// The time from the start of a daemon on a full disk to a client's first answer.
struct StartResult {
  uint64_t entries = 0;
  double seconds = 0;
  double index_bytes_per_entry = 0;     // bytes that the daemon accounts for
  double resident_bytes_per_entry = 0;  // growth of its resident memory over an empty start
};
[[nodiscard]] Result<StartResult> MeasureStart(const BenchOptions& options);

struct BenchResults {
  std::vector<OnloadResult> onload;
  std::vector<AcquireResult> acquire;
  std::vector<StartResult> start;  // one or none
};
struct BenchSelection {
  bool onload_host = false;
  bool onload_disk = false;
  bool onload_unwritten = false;
  bool acquire = false;
  bool start = false;

  [[nodiscard]] bool none() const {
    return !(onload_host || onload_disk || onload_unwritten || acquire || start);
  }
};
// Runs the selected measurements, with progress on standard error. All results before an error are
// in `results`.
[[nodiscard]] Status RunBench(const BenchOptions& options, const BenchSelection& selection,
                              BenchResults* results);

// {"schema":"kvtier.bench/1",...}
[[nodiscard]] std::string ToJson(const BenchResults& results);
// Tables with the bars of the project beside the figures.
[[nodiscard]] std::string ToText(const BenchResults& results);

// To be called before the measurements that are to be drawn. Errors: kNotFound "no_gnuplot".
[[nodiscard]] Status FindGnuplot();
// Throughput against block size, each tier with its ceiling, as an SVG file drawn by gnuplot.
// Errors: kInvalidArgument "nothing_to_plot"; kNotFound "no_gnuplot"; kIoError.
[[nodiscard]] Status PlotOnloads(const BenchResults& results, const std::string& path);

[[nodiscard]] double Median(std::vector<double> samples);

}  // namespace kvtier
