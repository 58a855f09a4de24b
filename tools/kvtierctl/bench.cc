// SPDX-License-Identifier: Apache-2.0
// kvtierctl bench: the tiers' rates, beside the machine's limits.
#include "tools/bench/bench.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>

#include "base/units.h"
#include "tools/kvtierctl/command.h"
#include "tools/kvtierctl/options.h"
#include "tools/support/terminal.h"

namespace kvtier {
namespace {

constexpr uint64_t kLeastSetBytes = 16 * kMiB;
// When the disk is measured host memory holds half a set, and a slab at least.
constexpr uint64_t kLeastDiskSetBytes = 40 * kMiB;
// For each tier and size: all of the default sizes take less than 90 s on a busy machine, too.
constexpr std::chrono::seconds kMostTime{5};

struct BenchArguments {
  BenchOptions options;
  BenchTiers tiers{.pool_bytes = 256 * kMiB, .host_bytes = 1 * kGiB, .disk_bytes = 1 * kGiB};
  std::vector<std::string> block_sizes = {"64KiB", "256KiB", "1MiB", "2MiB"};
  bool spawn = false;
  std::string plot;
};

Status TakeBlockSizes(const BenchArguments& arguments, BenchOptions* options) {
  for (const std::string& text : arguments.block_sizes) {
    KVT_ASSIGN_OR_RETURN(const uint64_t bytes, ParseByteSize(text));
    if (bytes < 4 * kKiB || bytes > 16 * kMiB || bytes % (4 * kKiB) != 0) {
      return MakeError(ErrorCode::kInvalidArgument, "bad_block_bytes",
                       text + ": multiples of 4KiB from 4KiB to 16MiB");
    }
    options->block_bytes.push_back(bytes);
  }
  return {};
}

Status MeasurePrivate(const BenchArguments& arguments, BenchResults* results) {
  BenchOptions options = arguments.options;
  KVT_RETURN_IF_ERROR(TakeBlockSizes(arguments, &options));
  options.most_time = kMostTime;
  options.set_bytes = SetBytesWithin(arguments.tiers, options.block_bytes);
  const bool disk = arguments.tiers.disk_bytes > 0;
  const uint64_t least = disk ? kLeastDiskSetBytes : kLeastSetBytes;
  if (options.set_bytes < least) {
    return MakeError(
        ErrorCode::kInvalidArgument, "tiers_too_small",
        fmt::format("these sizes leave sets of {} to measure with, and {} are needed: the pool "
                    "takes one set, host three and the disk five{}",
                    FormatByteSize(options.set_bytes), FormatByteSize(least),
                    disk ? "; --disk 0B measures without a disk" : ""));
  }
  return RunBench(options, {.onload_host = true, .onload_disk = disk, .acquire = true}, results);
}

// A running daemon is measured by a user of a tenant who may also use the admin socket, and a
// service rarely has one: that socket is for root and the daemon's own user.
Error WithRemedy(Error error) {
  if (error.reason == "unknown_user" || error.reason == "socket_permission") {
    error.context += "; \"kvtierctl bench --spawn\" measures this machine by a daemon of its own";
  }
  return error;
}

Status MeasureRunning(const std::string& device, uint32_t samples, const CommandContext& context,
                      BenchResults* results) {
  KVT_ASSIGN_OR_RETURN(const uint32_t position, FindDevice(context, device));
  KVT_ASSIGN_OR_RETURN(results->acquire,
                       MeasureAcquireOf(context.socket, context.AdminSocket(), position, samples));
  return {};
}

// Other work makes rates low that are the machine's, and not kvtier's.
void SayIfBusy() {
  double load = 0;
  const unsigned processors = std::thread::hardware_concurrency();
  if (getloadavg(&load, 1) != 1 || load < processors) return;
  fmt::print(stderr,
             "the machine is busy (load {:.0f} on {} processors): rates are lower than they could "
             "be\n",
             load, processors);
}

void Bench(const BenchArguments& arguments, CommandContext* context) {
  BenchResults results;
  Status measured;
  if (!arguments.plot.empty()) {
    if (const Status found = FindGnuplot(); !found) return context->Fail(found.error());
  }
  SayIfBusy();
  if (arguments.spawn) {
    measured = MeasurePrivate(arguments, &results);
  } else {
    measured =
        MeasureRunning(arguments.options.device, arguments.options.samples, *context, &results);
  }
  Terminal(stderr).ShowProgress("");
  // Rows that were measured before an error are results.
  if (measured || !results.onload.empty()) {
    context->Print(context->json ? ToJson(results) : ToText(results));
  }
  if (!measured) return context->Fail(WithRemedy(measured.error()));
  if (arguments.plot.empty()) return;
  if (const Status plotted = PlotOnloads(results, arguments.plot); !plotted) {
    context->Fail(plotted.error());
  }
}

void AddSpawnOptions(CLI::App* command, BenchArguments* arguments) {
  auto* spawn = command->add_flag("--spawn", arguments->spawn,
                                  "Start a private daemon in a temporary directory and measure "
                                  "all of it.");
  AddSizeOption(command, "--pool", &arguments->tiers.pool_bytes, "Its pool.");
  AddSizeOption(command, "--host", &arguments->tiers.host_bytes, "Its host tier.");
  AddSizeOption(command, "--disk", &arguments->tiers.disk_bytes,
                "Its disk tier; 0B: none, and not measured.");
  command
      ->add_option("--samples", arguments->options.samples,
                   "Acquires that are timed for each number of hashes.")
      ->check(CLI::Range(1, 1'000'000))
      ->type_name("N")
      ->capture_default_str();
  command
      ->add_option("--directory", arguments->options.directory,
                   "Where to make the temporary directory; on the disk to be measured.")
      ->type_name("DIRECTORY");
  command
      ->add_option("--drives", arguments->options.drives,
                   "Directories in which its disk tier has a drive each; the disk's ceiling is one "
                   "thread's memcpy then.")
      ->delimiter(',')
      ->check(CLI::Validator(CLI::ExistingDirectory).description(""))
      ->type_name("DIRECTORY,...");
  command->add_option("--block-bytes", arguments->block_sizes, "Sizes of blocks to measure with.")
      ->delimiter(',')
      ->type_name("SIZE,...")
      ->capture_default_str();
  command->add_option("--repetitions", arguments->options.repetitions, "Medians are over so many.")
      ->check(CLI::Range(1, 1000))
      ->type_name("N")
      ->capture_default_str();
  // The measurement takes minutes, and would be lost.
  command->add_option("--plot", arguments->plot, "Also draw throughput against block size (SVG).")
      ->check([](const std::string& file) {
        const std::string directory = std::filesystem::path(file).parent_path() / ".";
        return ::access(directory.c_str(), W_OK) == 0 ? "" : file + " cannot be made";
      })
      ->type_name("FILE");
  for (const char* name : {"--pool", "--host", "--disk", "--directory", "--drives", "--block-bytes",
                           "--repetitions", "--plot"}) {
    command->get_option(name)->needs(spawn);
  }
}

}  // namespace

void AddBenchCommand(CLI::App* app, CommandContext* context) {
  CLI::App* command = app->add_subcommand(
      "bench", "Measure the tiers through the API, beside the machine's limits.");
  const auto arguments = std::make_shared<BenchArguments>();
  AddDeviceOption(
      command, &arguments->options.device,
      "Whose pool is measured: host or cuda:N. The ceiling of loads from host memory is "
      "that of host memory, also on a GPU.");
  AddSpawnOptions(command, arguments.get());
  command->footer(
      "Without --spawn the latency of acquires is measured on the running daemon, of whose pool\n"
      "64 MiB must be free.\n"
      "Examples:\n"
      "  kvtierctl bench\n"
      "  kvtierctl bench --spawn --pool 1GiB --host 4GiB --disk 4GiB --plot tiers.svg");
  command->callback([arguments, context] { Bench(*arguments, context); });
}

}  // namespace kvtier
