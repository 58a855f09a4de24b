// SPDX-License-Identifier: Apache-2.0
// kvtier-gpu-bench: measures the pool on a GPU, its copies and its loads, beside the machine's
// limits.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <fstream>
#include <functional>
#include <optional>
#include <utility>

#include "base/executor.h"
#include "base/units.h"
#include "gpu/cuda_device.h"
#include "kernels/bench/cuda_bench.h"
#include "tools/bench/gpu/gpu_bench.h"
#include "tools/bench/gpu/player.h"

namespace kvtier {
namespace {

struct Arguments {
  GpuBenchOptions options;
  std::vector<std::string> only;
  std::string output;
  std::string commit = "unknown";
  std::optional<uint64_t> offload_forever;
  bool load_forever = false;
  std::string play_forever;  // a socket
  uint64_t play_seed = 0;
};

using Measurement = std::function<Result<GpuResults>()>;

// Appends what `measure` found. One that fails does not keep the others from being measured.
bool Add(const Arguments& arguments, const std::string& name, const Measurement& measure,
         GpuResults* results) {
  if (!arguments.only.empty() && std::ranges::find(arguments.only, name) == arguments.only.end()) {
    return true;
  }
  const Result<GpuResults> found = [&]() -> Result<GpuResults> {
    try {
      return measure();
    } catch (const kernels::bench::CudaFailure& failure) {
      return MakeError(ErrorCode::kIoError, "cuda", failure.what());
    }
  }();
  if (!found) {
    fmt::print(stderr, "kvtier-gpu-bench: {}: {}\n", name, found.error().ToString());
    return false;
  }
  results->insert(results->end(), found->begin(), found->end());
  fmt::print(stderr, "{}", GpuResultsText(*found));
  return true;
}

// Needs no GPU. Whether everything that was asked for could be measured.
bool MeasureKills(const Arguments& arguments, GpuResults* results) {
  const GpuBenchOptions& options = arguments.options;
  const bool clients = Add(
      arguments, "clients-killed", [&] { return MeasureClientKills(options); }, results);
  const bool daemons = Add(
      arguments, "daemons-killed", [&] { return MeasureDaemonKills(options); }, results);
  const bool kept = Add(
      arguments, "kept-restart", [&] { return MeasureKeptRestart(options); }, results);
  return clients && daemons && kept;
}

// Whether everything that was asked for could be measured. Throws a CudaFailure if the ceilings
// cannot.
bool MeasureAll(const Arguments& arguments, GpuResults* results) {
  const GpuBenchOptions& options = arguments.options;
  const CopyCeiling ceiling = MeasureCopyCeiling(options.repetitions);
  results->push_back(MakeGpuResult("ceiling_to_pool", ceiling.to_pool_gbps, "GB/s", 0));
  results->push_back(MakeGpuResult("ceiling_to_host", ceiling.to_host_gbps, "GB/s", 0));
  bool complete = true;
  const auto add = [&](const std::string& name, const Measurement& measure) {
    complete &= Add(arguments, name, measure, results);
  };
  add("copy", [&] { return MeasureCopyEngine(options, ceiling); });
  add("onload", [&] { return MeasureHostLoads(options, ceiling); });
  add("offload", [&] { return MeasureOffloads(options, ceiling); });
  add("disk", [&] { return MeasureDiskLoads(options); });
  add("prefix", [&] { return MeasurePrefix(options, ceiling); });
  add("completion", [&] { return MeasureCompletion(options, ceiling); });
  add("layers", [&] { return MeasureLayerOrder(options, ceiling); });
  add("interference", [&] { return MeasureInterference(options); });
  add("start", [&] { return MeasureLargeStart(options); });
  return complete;
}

Result<std::string> DeviceName(const GpuBenchOptions& options) {
  if (options.device == kHostDevice) return options.device;
  BlockingLoop loop;
  KVT_ASSIGN_OR_RETURN(const std::unique_ptr<Device> device, OpenCudaDevice({}, &loop));
  return device->info().name;
}

int Run(const Arguments& arguments) {
  GpuResults results;
  // First, because it forks: this process must not have met CUDA before.
  const bool replayed =
      arguments.options.trace.empty() ||
      Add(
          arguments, "replay", [&] { return MeasureReplay(arguments.options); }, &results);
  const auto device = DeviceName(arguments.options);
  if (!device) {
    fmt::print(stderr, "kvtier-gpu-bench: {}\n", device.error().ToString());
    return 1;
  }
  bool complete = replayed;
  if (arguments.options.device != kHostDevice) {
    try {
      complete &= MeasureAll(arguments, &results);
    } catch (const kernels::bench::CudaFailure& failure) {
      fmt::print(stderr, "kvtier-gpu-bench: {}\n", failure.what());
      complete = false;
    }
  }
  // The tier's own rate needs no GPU.
  if (arguments.options.device == kHostDevice && !arguments.options.drives.empty()) {
    complete &= Add(
        arguments, "disk", [&] { return MeasureDiskLoads(arguments.options); }, &results);
  }
  complete &= MeasureKills(arguments, &results);
  fmt::print("{}", GpuResultsText(results));
  if (!arguments.output.empty()) {
    std::ofstream(arguments.output) << GpuResultsJson(results, arguments.commit, *device) << "\n";
  }
  const bool sound = std::ranges::none_of(
      results, [](const GpuResult& result) { return result.fault && result.value > 0; });
  return complete && sound ? 0 : 1;
}

int Main(int argc, char** argv) {
  Arguments arguments;
  GpuBenchOptions& options = arguments.options;
  CLI::App app("Measures the pool on a GPU beside the machine's limits.", "kvtier-gpu-bench");
  app.add_option("--only", arguments.only,
                 "copy, onload, offload, disk, prefix, completion, layers, interference, start, "
                 "clients-killed, daemons-killed, kept-restart, replay; default: all");
  app.add_option("--device", options.device,
                 "cuda:0; host, where there is no GPU: only clients-killed, daemons-killed, "
                 "kept-restart, replay and, with --drives, disk are measured.")
      ->check(CLI::IsMember({"cuda:0", "host"}))
      ->capture_default_str();
  app.add_option("--directory", options.directory, "Where to work; on the disk to be measured.");
  app.add_option("--drives", options.drives, "Directories in which the disk tier has a drive each.")
      ->delimiter(',');
  app.add_option("--repetitions", options.repetitions, "Medians are over so many.")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--set-bytes", options.set_bytes, "Moved in one repetition.")
      ->check(CLI::Range(64 * kMiB, 16 * kGiB))
      ->capture_default_str();
  app.add_option("--chunk-bytes", options.chunk_bytes, "Chunks of the device measured alone.");
  app.add_option("--chunks-in-flight", options.chunks_in_flight, "Likewise.");
  app.add_option("--large-pool-bytes", options.large_pool_bytes, "For the start.")
      ->capture_default_str();
  app.add_option("--large-host-bytes", options.large_host_bytes, "For the start.")
      ->capture_default_str();
  for (const auto& [name, kills] : {std::pair{"--clients-killed", &options.clients_killed},
                                    std::pair{"--daemons-killed", &options.daemons_killed}}) {
    app.add_option(name, *kills, "So many.")->check(CLI::Range(1, 10'000))->capture_default_str();
  }
  app.add_option("--trace", options.trace,
                 "A Mooncake trace to be replayed by four client processes.");
  app.add_option("--set", options.settings, "KEY=VALUE for the daemons; may be repeated.");
  app.add_option("--commit", arguments.commit, "Written into the JSON.");
  app.add_option("--output", arguments.output, "Write JSON to this file.");
  app.add_option("--offload-forever", arguments.offload_forever)->group("");
  app.add_flag("--load-forever", arguments.load_forever)->group("");
  app.add_option("--play-forever", arguments.play_forever)->group("");
  app.add_option("--play-seed", arguments.play_seed)->group("");
  CLI11_PARSE(app, argc, argv);
  if (!arguments.play_forever.empty()) {
    return PlayForever(arguments.play_forever, arguments.play_seed, STDOUT_FILENO) ? 0 : 1;
  }
  if (arguments.load_forever) LoadForever();
  if (arguments.offload_forever) return OffloadForever(*arguments.offload_forever) ? 0 : 1;
  return Run(arguments);
}

}  // namespace
}  // namespace kvtier

int main(int argc, char** argv) { return kvtier::Main(argc, argv); }
