// kvtier-gpu-bench: measures the pool on a GPU, its copies and its loads, beside what the machine
// can do.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <fstream>
#include <functional>
#include <optional>

#include "base/byte_size.h"
#include "gpu/cuda_device.h"
#include "tools/bench/gpu/bench_loop.h"
#include "tools/bench/gpu/gpu_bench.h"

namespace kvtier {
namespace {

struct Arguments {
  GpuBenchOptions options;
  std::vector<std::string> only;
  std::string output;
  std::string commit = "unknown";
  std::optional<uint64_t> offload_forever;
};

using Measurement = std::function<Result<GpuResults>()>;

// Appends what `measure` found. One that fails does not keep the others from being measured.
bool Add(const Arguments& arguments, const std::string& name, const Measurement& measure,
         GpuResults* results) {
  if (!arguments.only.empty() && std::ranges::find(arguments.only, name) == arguments.only.end()) {
    return true;
  }
  const auto found = measure();
  if (!found) {
    fmt::print(stderr, "kvtier-gpu-bench: {}: {}\n", name, found.error().ToString());
    return false;
  }
  results->insert(results->end(), found->begin(), found->end());
  fmt::print(stderr, "{}", GpuResultsText(*found));
  return true;
}

// Whether everything that was asked for could be measured.
Result<bool> MeasureAll(const Arguments& arguments, GpuResults* results) {
  const GpuBenchOptions& options = arguments.options;
  KVT_ASSIGN_OR_RETURN(const CopyCeiling ceiling, MeasureCopyCeiling(options.repetitions));
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

Result<std::string> DeviceName() {
  BenchLoop loop;
  KVT_ASSIGN_OR_RETURN(const std::unique_ptr<Device> device, OpenCudaDevice({}, &loop));
  return device->info().name;
}

int Run(const Arguments& arguments) {
  const auto device = DeviceName();
  if (!device) {
    fmt::print(stderr, "kvtier-gpu-bench: {}\n", device.error().ToString());
    return 1;
  }
  GpuResults results;
  const auto complete = MeasureAll(arguments, &results);
  fmt::print("{}", GpuResultsText(results));
  if (!arguments.output.empty()) {
    std::ofstream(arguments.output) << GpuResultsJson(results, arguments.commit, *device) << "\n";
  }
  if (!complete) fmt::print(stderr, "kvtier-gpu-bench: {}\n", complete.error().ToString());
  return complete && *complete ? 0 : 1;
}

int Main(int argc, char** argv) {
  Arguments arguments;
  GpuBenchOptions& options = arguments.options;
  CLI::App app("Measures the pool on a GPU beside what the machine can do.", "kvtier-gpu-bench");
  app.add_option("--only", arguments.only,
                 "copy, onload, offload, disk, prefix, completion, layers, interference, start; "
                 "default: all");
  app.add_option("--directory", options.directory, "Where to work; on the disk to be measured.");
  app.add_option("--repetitions", options.repetitions, "Medians are over so many.")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--set-bytes", options.set_bytes, "Moved in one repetition.")
      ->check(CLI::Range(64 * kMiB, 16 * kGiB))
      ->capture_default_str();
  app.add_option("--threads", options.threads, "Of the daemon, for checksums.")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app.add_option("--chunk-bytes", options.chunk_bytes, "Of the device measured alone.");
  app.add_option("--chunks-in-flight", options.chunks_in_flight, "Likewise.");
  app.add_option("--large-pool-bytes", options.large_pool_bytes, "For the start.")
      ->capture_default_str();
  app.add_option("--large-host-bytes", options.large_host_bytes, "For the start.")
      ->capture_default_str();
  app.add_option("--set", options.settings, "KEY=VALUE for the daemons; may be repeated.");
  app.add_option("--commit", arguments.commit, "Written into the JSON.");
  app.add_option("--output", arguments.output, "Write JSON to this file.");
  app.add_option("--offload-forever", arguments.offload_forever)->group("");
  CLI11_PARSE(app, argc, argv);
  if (arguments.offload_forever) return OffloadForever(*arguments.offload_forever) ? 0 : 1;
  return Run(arguments);
}

}  // namespace
}  // namespace kvtier

int main(int argc, char** argv) { return kvtier::Main(argc, argv); }
