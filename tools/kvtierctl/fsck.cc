// SPDX-License-Identifier: Apache-2.0
// kvtierctl fsck: checks the disk tier of a daemon that does not run.
#include "tiers/index/fsck.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <boost/json.hpp>
#include <memory>

#include "base/clock.h"
#include "base/units.h"
#include "daemon/config/config_loader.h"
#include "tools/kvtierctl/command.h"
#include "tools/support/table.h"

namespace kvtier {
namespace {

namespace json = boost::json;

struct FsckArguments {
  std::string config;  // empty: the options count, and their defaults
  bool rebuild_index = false;
  bool payloads = false;
  std::vector<std::string> directories;  // in place of the configuration's
};

Result<FsckOptions> ToOptions(const FsckArguments& arguments) {
  KVT_ASSIGN_OR_RETURN(const Config config, LoadConfig(arguments.config, {}));
  FsckOptions options;
  options.directories = config.disk.Places();
  if (!arguments.directories.empty()) {
    options.directories = {arguments.directories.begin(), arguments.directories.end()};
  }
  options.verify_payloads = arguments.payloads;
  options.rebuild_index = arguments.rebuild_index;
  options.rebuild = {.now_ms = SystemClock().WallMs(),
                     .extended_ttl_ms = config.cache.extended_ttl_ms,
                     .max_age_ms = config.cache.max_age_ms,
                     .tenants = config.cache.tenants};
  options.on_progress = [terminal = Terminal(stderr)](const ScanProgress& progress) {
    terminal.ShowProgress(
        fmt::format("scanned {} of {} slabs", progress.slabs_done, progress.slabs));
  };
  return options;
}

json::object RebuiltJson(const RebuiltIndex& rebuilt, uint64_t blocks) {
  json::object rejected;
  for (int i = 0; i < kRebuildRejectCount; ++i) {
    rejected[RebuildRejectName(static_cast<RebuildReject>(i))] = rebuilt.rejected[i];
  }
  return {{"entries", blocks}, {"slabs_bad", rebuilt.slabs_bad}, {"rejected", std::move(rejected)}};
}

// Every slot with a valid header that was not rejected is an entry of the new index.
uint64_t RebuiltEntries(const RebuiltIndex& rebuilt) {
  uint64_t entries = rebuilt.slots - rebuilt.slots_empty;
  for (const uint64_t rejected : rebuilt.rejected) entries -= std::min(entries, rejected);
  return entries;
}

std::string ReportJson(const FsckReport& report) {
  json::object faults;
  for (int i = 0; i < kFsckFaultCount; ++i) {
    const auto fault = static_cast<FsckFault>(i);
    faults[FsckFaultName(fault)] = report.count(fault);
  }
  json::array findings;
  for (const FsckFinding& finding : report.findings) {
    findings.push_back({{"fault", FsckFaultName(finding.fault)},
                        {"harmless", IsHarmless(finding.fault)},
                        {"detail", finding.detail}});
  }
  json::object document{{"schema", "kvtier.fsck/1"},
                        {"clean", report.clean()},
                        {"index", IndexStateName(report.index_state)},
                        {"files", report.geometry.files()},
                        {"bytes", report.geometry.bytes()},
                        {"slots", report.slots},
                        {"slots_empty", report.slots_empty},
                        {"blocks", report.blocks},
                        {"blocks_expired", report.blocks_expired},
                        {"entries", report.entries},
                        {"entries_good", report.entries_good},
                        {"payloads_checked", report.payloads_checked},
                        {"payload_bytes_checked", report.payload_bytes_checked},
                        {"faults", std::move(faults)},
                        {"findings", std::move(findings)}};
  document["rebuilt"] =
      report.rebuilt ? json::value(RebuiltJson(*report.rebuilt, RebuiltEntries(*report.rebuilt)))
                     : json::value(nullptr);
  return json::serialize(document);
}

// A rebuilt index mends whatever was wrong with the old one; nothing mends a payload.
bool Mended(const FsckReport& report) {
  return report.rebuilt && report.count(FsckFault::kPayloadCorrupt) == 0;
}

std::string ReportText(const FsckReport& report, const Terminal& terminal) {
  std::string text = fmt::format(
      "{} files, {}; {} slots hold {} blocks, {} of them expired\n"
      "index {}: {} entries, {} of them good\n",
      report.geometry.files(), FormatByteSize(report.geometry.bytes()), FormatCount(report.slots),
      FormatCount(report.blocks), FormatCount(report.blocks_expired),
      IndexStateName(report.index_state), FormatCount(report.entries),
      FormatCount(report.entries_good));
  if (report.payloads_checked > 0) {
    text += fmt::format("payloads checked: {}, {}\n", FormatCount(report.payloads_checked),
                        FormatByteSize(report.payload_bytes_checked));
  }
  for (const FsckFinding& finding : report.findings) {
    // A healthy tier has many of these, and nothing has to be done about any: JSON lists them.
    if (IsHarmless(finding.fault)) continue;
    text += fmt::format("{}  {}\n", terminal.Style(FsckFaultName(finding.fault), TextStyle::kBad),
                        finding.detail);
  }
  for (int i = 0; i < kFsckFaultCount; ++i) {
    const auto fault = static_cast<FsckFault>(i);
    const uint64_t count = report.count(fault);
    if (IsHarmless(fault) ? count > 0 : count > FsckReport::kMaxFindingsPerFault) {
      text += fmt::format("{}  {} in all{}\n", FsckFaultName(fault), FormatCount(count),
                          IsHarmless(fault) ? ", harmless" : "");
    }
  }
  if (report.rebuilt) {
    text +=
        fmt::format("index rebuilt: {} entries\n", FormatCount(RebuiltEntries(*report.rebuilt)));
  }
  if (report.clean()) return text + terminal.Style("clean", TextStyle::kGood);
  if (Mended(report)) return text + terminal.Style("clean now", TextStyle::kGood);
  return text + terminal.Style("not clean", TextStyle::kBad);
}

void Fsck(const FsckArguments& arguments, CommandContext* context) {
  const auto options = ToOptions(arguments);
  if (!options) return context->Fail(options.error());
  const auto report = RunFsck(*options);
  Terminal(stderr).ShowProgress("");
  if (!report) return context->Fail(report.error());
  context->Print(context->json ? ReportJson(*report) : ReportText(*report, Terminal(stdout)));
  if (!report->clean() && !Mended(*report)) context->exit_code = ExitCode::kIntegrity;
}

}  // namespace

void AddFsckCommand(CLI::App* app, CommandContext* context) {
  CLI::App* command = app->add_subcommand(
      "fsck", "Check the disk tier of a daemon that does not run; changes nothing by itself.");
  const auto arguments = std::make_shared<FsckArguments>();
  command
      ->add_option("--config", arguments->config,
                   "The daemon's configuration: its disk.directory or disk.directories, and how "
                   "long blocks live, those "
                   "of each tenant.")
      ->type_name("FILE");
  command
      ->add_option("--directory", arguments->directories,
                   "The daemon's disk.directory, in place of the configuration's; for each drive "
                   "of disk.directories once.")
      ->type_name("DIRECTORY")
      ->default_str(Config().disk.directory);
  command->add_flag("--rebuild-index", arguments->rebuild_index,
                    "Write the index anew from the headers.");
  command->add_flag("--payloads", arguments->payloads, "Also read and check every payload.");
  command->footer(
      "Ends with 5 if something is wrong that a new index does not mend.\n"
      "Examples:\n"
      "  kvtierctl fsck --config /etc/kvtier/kvtierd.toml --rebuild-index\n"
      "  kvtierctl fsck --directory /var/lib/kvtier --payloads");
  command->callback([arguments, context] { Fsck(*arguments, context); });
}

}  // namespace kvtier
