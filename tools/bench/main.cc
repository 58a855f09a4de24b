// SPDX-License-Identifier: Apache-2.0
// kvtier-bench: measures the tiers through a real daemon, beside the machine's limits.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <fstream>

#include "base/units.h"
#include "tools/bench/bench.h"
#include "tools/support/terminal.h"

namespace kvtier {
namespace {

int Main(int argc, char** argv) {
  BenchOptions options;
  options.block_bytes = {64 * kKiB, 256 * kKiB, 1 * kMiB, 2 * kMiB};
  BenchSelection selection;
  bool json = false;
  std::string output;
  CLI::App app("Measures the tiers through a real daemon, beside the machine's limits.",
               "kvtier-bench");
  app.add_flag("--onload-host", selection.onload_host, "Host memory to pool, against memcpy.");
  app.add_flag("--onload-disk", selection.onload_disk, "Disk to pool, against raw io_uring.");
  app.add_flag("--onload-unwritten", selection.onload_unwritten,
               "Disk to pool while host memory is full of unwritten blocks.");
  app.add_flag("--acquire", selection.acquire, "Acquire round trips, against empty ones.");
  app.add_flag("--start", selection.start, "Start on a disk full of entries.");
  app.add_option("--directory", options.directory, "Where to work; on the disk to be measured.");
  app.add_option("--drives", options.drives,
                 "Directories in which the disk tier has a drive each; beside one thread's memcpy.")
      ->delimiter(',');
  app.add_option("--device", options.device, "Where the pools are: host or cuda:N.");
  app.add_option("--repetitions", options.repetitions, "Medians are over so many.")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--set-bytes", options.set_bytes, "Moved in one repetition.")
      ->check(CLI::Range(16 * kMiB, 64 * kGiB))
      ->capture_default_str();
  app.add_option("--block-bytes", options.block_bytes, "Sizes of blocks for the onloads.")
      ->check(CLI::Range(4 * kKiB, 16 * kMiB))
      ->capture_default_str();
  app.add_option("--entries", options.entries, "For the start.")
      ->check(CLI::Range(uint64_t{8192}, uint64_t{1} << 30))
      ->capture_default_str();
  app.add_option("--set", options.settings,
                 "KEY=VALUE for the daemons of the onloads and acquires; may be repeated.");
  app.add_flag("--json", json, "Print JSON instead of tables.");
  app.add_option("--output", output, "Also write the JSON to this file.");
  CLI11_PARSE(app, argc, argv);
  if (selection.none()) selection = {true, true, true, true, true};

  BenchResults results;
  const Status status = RunBench(options, selection, &results);
  Terminal(stderr).ShowProgress("");
  fmt::print("{}\n", json ? ToJson(results) : ToText(results));
  if (!output.empty()) std::ofstream(output) << ToJson(results) << "\n";
  if (!status) {
    fmt::print(stderr, "kvtier-bench: {}\n", status.error().ToString());
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace kvtier

int main(int argc, char** argv) { return kvtier::Main(argc, argv); }
