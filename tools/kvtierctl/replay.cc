// SPDX-License-Identifier: Apache-2.0
// kvtierctl replay: plays recorded requests against a daemon and checks every byte it serves.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/units.h"
#include "tools/kvtierctl/command.h"
#include "tools/kvtierctl/options.h"
#include "tools/replay/replayer.h"
#include "tools/support/private_daemon.h"
#include "tools/support/table.h"

namespace kvtier {
namespace {

struct ReplayArguments {
  std::vector<std::string> traces;
  TraceFormat format = TraceFormat::kAuto;
  uint32_t clients = 1;
  double speed = 0;  // 0: as fast as possible
  uint64_t block_bytes = 64 * kKiB;
  uint64_t limit = 0;
  uint64_t seed = 1;
  bool spawn = false;
  uint64_t pool_bytes = 256 * kMiB;
  uint64_t host_bytes = 512 * kMiB;
  uint64_t disk_bytes = 4 * kGiB;
  std::string parent_directory;
  std::string device;  // empty: the daemon's first, or what a private one chooses
  std::vector<std::string> settings;
};

Result<Trace> LoadTraces(const ReplayArguments& arguments) {
  std::vector<Trace> traces;
  for (const std::string& path : arguments.traces) {
    KVT_ASSIGN_OR_RETURN(Trace trace, LoadTrace(path, arguments.format, arguments.seed));
    traces.push_back(std::move(trace));
  }
  KVT_ASSIGN_OR_RETURN(Trace merged, MergeTraces(std::move(traces)));
  if (arguments.limit != 0 && arguments.limit < merged.requests.size()) {
    merged.requests.resize(arguments.limit);
  }
  return merged;
}

// A slab for every tier size: small tiers get small slabs, so that rounding to whole slabs costs
// little, and a slab holds at least four blocks.
uint64_t SlabBytes(const ReplayArguments& arguments) {
  constexpr uint64_t kSlabsPerTier = 16;
  uint64_t slab_bytes = 64 * kMiB;
  const uint64_t least = 4 * (arguments.block_bytes + 4 * kKiB);
  const uint64_t smallest_tier = arguments.disk_bytes == 0
                                     ? arguments.host_bytes
                                     : std::min(arguments.host_bytes, arguments.disk_bytes);
  while (slab_bytes > smallest_tier / kSlabsPerTier && slab_bytes / 2 >= least) {
    slab_bytes /= 2;
  }
  return slab_bytes;
}

Result<PrivateDaemon> Spawn(const ReplayArguments& arguments) {
  PrivateDaemonOptions options;
  options.temporary_parent = arguments.parent_directory;
  options.settings = {
      fmt::format("pool.bytes={}B", arguments.pool_bytes),
      fmt::format("host.bytes={}B", arguments.host_bytes),
      fmt::format("disk.bytes={}B", arguments.disk_bytes),
      fmt::format("cache.slab_bytes={}B", SlabBytes(arguments)),
  };
  PutOnDevice(arguments.device, &options);
  options.settings.insert(options.settings.end(), arguments.settings.begin(),
                          arguments.settings.end());
  return PrivateDaemon::Start(std::move(options));
}

Result<ReplayReport> RunReplay(const ReplayArguments& arguments, const CommandContext& context) {
  KVT_ASSIGN_OR_RETURN(const Trace trace, LoadTraces(arguments));
  ReplayOptions options;
  options.clients = arguments.clients;
  options.speed = arguments.speed;
  options.target.block_bytes = arguments.block_bytes;
  options.target.socket = context.socket;
  std::optional<PrivateDaemon> spawned;
  if (arguments.spawn) {
    KVT_ASSIGN_OR_RETURN(spawned, Spawn(arguments));
    options.target.socket = spawned->socket();
  } else {
    KVT_ASSIGN_OR_RETURN(options.target.device, FindDevice(context, arguments.device));
  }
  const Terminal terminal(stderr);
  options.on_progress = [&terminal](uint64_t played, uint64_t requests) {
    terminal.ShowProgress(fmt::format("played {} of {} requests", played, requests));
  };
  Result<ReplayReport> report = Replay(trace, options);
  terminal.ShowProgress("");
  return report;
}

std::string PreciseShare(uint64_t part, uint64_t whole) {
  if (whole == 0) return "-";
  return fmt::format("{:.1f} %", 100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

std::string FormatReport(const ReplayReport& report) {
  using enum Table::Align;
  Table table({{"", kLeft}, {"blocks"}, {"share"}, {"tokens"}, {"share"}, {"GB/s waited"}});
  const auto add = [&](std::string name, uint64_t blocks, uint64_t tokens, std::string rate) {
    table.AddRow({std::move(name), FormatCount(blocks), PreciseShare(blocks, report.blocks.asked),
                  FormatCount(tokens), PreciseShare(tokens, report.tokens.asked), std::move(rate)});
  };
  const auto rate = [&report](Tier tier) {
    const OnloadTime& onload = report.onload[static_cast<int>(tier)];
    return onload.bytes == 0 ? "" : fmt::format("{:.2f}", onload.GigabytesPerSecond());
  };
  add("asked", report.blocks.asked, report.tokens.asked, "");
  add("pool", report.blocks.hit[0], report.tokens.hit[0], "");
  add("host", report.blocks.hit[1], report.tokens.hit[1], rate(Tier::kHost));
  add("disk", report.blocks.hit[2], report.tokens.hit[2], rate(Tier::kDisk));
  add("miss", report.blocks.miss, report.tokens.miss, "");
  std::vector<double> samples = report.acquire_us;
  return fmt::format(
      "{}\n{} requests in {:.1f} s; acquire p50 {:.0f} us, p99 {:.0f} us; wrong blocks: {}\n",
      table.Render(), FormatCount(report.requests), report.seconds, Percentile(samples, 0.50),
      Percentile(samples, 0.99), report.wrong_blocks);
}

// Warns of facts that the table and the JSON do not show, but the user should know.
void WarnOfShortfalls(const ReplayReport& report) {
  const Terminal terminal(stderr);
  const auto warn = [&terminal](uint64_t count, std::string_view what) {
    if (count == 0) return;
    fmt::print(stderr, "kvtierctl: {}\n",
               terminal.Style(fmt::format("{} {}", count, what), TextStyle::kWarning));
  };
  warn(report.requests_without_daemon, "requests found no daemon, or lost it");
  warn(report.requests_without_room, "requests found no room in the pool for their missed blocks");
  warn(report.blocks_lost_loading, "blocks were promised but could not be loaded");
  warn(report.errors, "calls were refused by the daemon");
}

void PrintReport(const ReplayReport& report, CommandContext* context) {
  context->Print(context->json ? report.ToJson() : FormatReport(report));
  WarnOfShortfalls(report);
  if (report.wrong_blocks > 0) {
    context->exit_code = ExitCode::kIntegrity;
  } else if (!report.Complete()) {
    context->exit_code = ExitCode::kPartial;
  }
}

void AddTraceOptions(CLI::App* command, ReplayArguments* arguments) {
  command->add_option("traces", arguments->traces, "Trace files.")->required()->type_name("TRACE");
  const std::map<std::string, TraceFormat> formats = {{"auto", TraceFormat::kAuto},
                                                      {"mooncake", TraceFormat::kMooncake},
                                                      {"qwen", TraceFormat::kQwen},
                                                      {"agentic", TraceFormat::kAgentic}};
  command->add_option("--format", arguments->format, "auto, mooncake, qwen or agentic.")
      ->transform(CLI::CheckedTransformer(formats, CLI::ignore_case).description(""))
      ->default_str("auto")
      ->type_name("FORMAT");
  command->add_option("--limit", arguments->limit, "Play the first N requests only.")
      ->check(CLI::Range(int64_t{1}, kMaxCount))
      ->type_name("N");
  command
      ->add_option("--seed", arguments->seed,
                   "Another seed: the same requests for blocks that no tier has.")
      ->check(CLI::Range(int64_t{0}, kMaxCount))
      ->type_name("N");
  command
      ->add_option_function<std::string>(
          "--speed",
          [arguments](const std::string& text) {
            if (text == "max") return;
            if (!CLI::detail::lexical_cast(text, arguments->speed) || !(arguments->speed > 0)) {
              throw CLI::ValidationError("--speed: a number above 0, or max");
            }
          },
          "How many times as fast as recorded; max: no pauses.")
      ->default_str("max")
      ->type_name("X");
}

void AddClientOptions(CLI::App* command, ReplayArguments* arguments) {
  command->add_option("--clients", arguments->clients, "Inference clients side by side.")
      ->check(CLI::Range(1, 1024))
      ->type_name("N")
      ->capture_default_str();
  AddSizeOption(command, "--block-bytes", &arguments->block_bytes, "Bytes of one block.");
  AddDeviceOption(
      command, &arguments->device,
      "Whose pool is used: host or cuda:N, which the daemon must have; a private daemon "
      "makes its pool there.");
}

void AddSpawnOptions(CLI::App* command, ReplayArguments* arguments) {
  auto* spawn = command->add_flag("--spawn", arguments->spawn,
                                  "Start a private daemon in a temporary directory.");
  AddSizeOption(command, "--pool", &arguments->pool_bytes, "Its pool.");
  AddSizeOption(command, "--host", &arguments->host_bytes, "Its host tier.");
  AddSizeOption(command, "--disk", &arguments->disk_bytes, "Its disk tier; 0B: none.");
  command
      ->add_option("--directory", arguments->parent_directory,
                   "Where to make the temporary directory.")
      ->type_name("DIRECTORY");
  command->add_option("--set", arguments->settings, "More settings of it: section.key=value.")
      ->type_name("SETTING")
      ->allow_extra_args(false);
  for (const char* name : {"--pool", "--host", "--disk", "--directory", "--set"}) {
    command->get_option(name)->needs(spawn);
  }
}

}  // namespace

void AddReplayCommand(CLI::App* app, CommandContext* context) {
  CLI::App* command = app->add_subcommand(
      "replay", "Play recorded requests against a daemon; check every byte it serves.");
  const auto arguments = std::make_shared<ReplayArguments>();
  AddTraceOptions(command, arguments.get());
  AddClientOptions(command, arguments.get());
  AddSpawnOptions(command, arguments.get());
  command->callback([arguments, context] {
    const auto report = RunReplay(*arguments, *context);
    if (!report) return context->Fail(report.error());
    PrintReport(*report, context);
  });
}

}  // namespace kvtier
