// SPDX-License-Identifier: Apache-2.0
// The measurements of kvtier-gpu-bench: the rates of a GPU's pool, copies and loads, each beside
// the machine's limit, measured in the same run. Any of them may throw a CudaFailure
// (kernels/bench/cuda_bench.h).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace kvtier {

// Used where there is no GPU: only kills and replays can be measured then.
inline constexpr std::string_view kHostDevice = "host";

struct GpuBenchOptions {
  std::string device = "cuda:0";
  std::string directory;  // where temporary directories are made; on the disk to be measured
  std::vector<std::string> drives;  // where the disk tier has a drive each; empty: one, there
  uint32_t repetitions = 9;
  uint64_t set_bytes = uint64_t{1} << 30;  // moved in one repetition
  uint64_t chunk_bytes = 0;                // of the device measured alone; 0: its default
  uint32_t chunks_in_flight = 0;           // likewise
  std::vector<std::string> settings;  // of the daemons, KEY=VALUE, beside those of a measurement
  uint64_t large_pool_bytes = uint64_t{100} << 30;
  uint64_t large_host_bytes = uint64_t{48} << 30;
  uint32_t clients_killed = 100;
  uint32_t daemons_killed = 20;
  std::string trace;  // to replay; empty: none is
};

// One line of the table. Rates in 10^9 bytes a second; medians over the repetitions.
struct GpuResult {
  std::string name;
  double value = 0;
  std::string unit;
  double ceiling = 0;  // the machine's best in the same unit; 0: none was measured
  double ratio = 0;    // value / ceiling
  bool fault = false;  // counts what must not be
};

// "2MiB": whole sizes, as they stand in names of results.
[[nodiscard]] std::string SizeName(uint64_t bytes);

[[nodiscard]] GpuResult MakeGpuResult(std::string name, double value, std::string unit,
                                      double ceiling);

// A count that must be 0: if it is not, the program's exit status is 1.
[[nodiscard]] GpuResult MakeGpuFault(std::string name, uint64_t count, std::string unit);

// One contiguous copy of 1 GiB between pinned memory and VRAM.
struct CopyCeiling {
  double to_pool_gbps = 0;
  double to_host_gbps = 0;
};
[[nodiscard]] CopyCeiling MeasureCopyCeiling(uint32_t repetitions);

using GpuResults = std::vector<GpuResult>;

// The device alone: blocks at random places, each way and both at once.
[[nodiscard]] Result<GpuResults> MeasureCopyEngine(const GpuBenchOptions& options,
                                                   const CopyCeiling& ceiling);
// The same prefix as MeasurePrefix, layer by layer, by the device alone.
[[nodiscard]] Result<GpuResults> MeasureLayerOrder(const GpuBenchOptions& options,
                                                   const CopyCeiling& ceiling);
// Loads and offloads by a real daemon, seen by a client.
[[nodiscard]] Result<GpuResults> MeasureHostLoads(const GpuBenchOptions& options,
                                                  const CopyCeiling& ceiling);
[[nodiscard]] Result<GpuResults> MeasureOffloads(const GpuBenchOptions& options,
                                                 const CopyCeiling& ceiling);
[[nodiscard]] Result<GpuResults> MeasureDiskLoads(const GpuBenchOptions& options);
// 10,000 tokens of Llama-3.1-8B, from the pool and from host.
[[nodiscard]] Result<GpuResults> MeasurePrefix(const GpuBenchOptions& options,
                                               const CopyCeiling& ceiling);
// The same prefix layer by layer through the API, and when a kernel can use it: with the host
// waiting for the counter, and with the kernel's stream waiting.
[[nodiscard]] Result<GpuResults> MeasureCompletion(const GpuBenchOptions& options,
                                                   const CopyCeiling& ceiling);
// Seconds in which a program that does nothing else touches so much memory, with all cores, and
// then pins it. Errors: kResourceExhausted.
[[nodiscard]] Result<double> MeasureArenaCeiling(uint64_t bytes);
// How long a daemon with a large pool and arena takes to serve, the first time and again.
[[nodiscard]] Result<GpuResults> MeasureLargeStart(const GpuBenchOptions& options);
// The end, by kill -9 and in order, of a daemon with a large pool and arena under load: how soon
// the next one serves the pool's blocks, which it does not copy.
[[nodiscard]] Result<GpuResults> MeasureKeptRestart(const GpuBenchOptions& options);
// An engine's steps in this process while a daemon offloads and loads, and beside a bare copier.
[[nodiscard]] Result<GpuResults> MeasureInterference(const GpuBenchOptions& options);
// kill -9 of clients at work: the memory that they leave, and whether another client's blocks keep
// their bytes.
[[nodiscard]] Result<GpuResults> MeasureClientKills(const GpuBenchOptions& options);
// kill -9 of daemons at work: when clients notice, and whether the next serves the right bytes.
[[nodiscard]] Result<GpuResults> MeasureDaemonKills(const GpuBenchOptions& options);
// Four client processes replay the trace through all tiers. REQUIRES: this process has one thread
// and has not used CUDA.
[[nodiscard]] Result<GpuResults> MeasureReplay(const GpuBenchOptions& options);
// The work of that other process until it is killed. Errors: those of CUDA.
[[nodiscard]] Status OffloadForever(uint64_t bytes_per_s);
// Copies 1 GiB of pinned memory to VRAM again and again, as fast as the bus can, until it is
// killed: what loads cost the steps of others at least. Throws a CudaFailure.
[[noreturn]] void LoadForever();

[[nodiscard]] std::string GpuResultsText(const GpuResults& results);
// {"schema":"kvtier.gpu-bench/1",...}
[[nodiscard]] std::string GpuResultsJson(const GpuResults& results, const std::string& commit,
                                         const std::string& device);

}  // namespace kvtier
