// SPDX-License-Identifier: Apache-2.0
// kvtierctl evict: blocks to be forgotten now. kvtierctl release-memory: what engines have left for
// their next start, to be given back now.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <array>
#include <memory>
#include <set>

#include "base/units.h"
#include "tools/kvtierctl/ask.h"
#include "tools/kvtierctl/blocks.h"
#include "tools/kvtierctl/command.h"
#include "tools/support/json_view.h"
#include "tools/support/table.h"
#include "tools/support/terminal.h"

namespace kvtier {
namespace {

struct EvictArguments {
  BlockSelection selection;
  std::vector<std::string> hashes;
  bool all = false;
};

struct EvictRow {
  std::string_view name;
  std::string_view text;
  uint64_t count = 0;
};

Result<std::vector<std::string>> Chosen(const EvictArguments& arguments,
                                        const CommandContext& context) {
  if (arguments.all != arguments.hashes.empty()) {
    return MakeError(ErrorCode::kInvalidArgument, "nothing_chosen",
                     "give either hashes or --all, which --tenant, --model and --tier narrow");
  }
  if (!arguments.all) return ResolveHashes(context, arguments.selection, arguments.hashes);
  std::set<std::string> hashes;
  KVT_RETURN_IF_ERROR(ForEachBlock(
      context, arguments.selection, 0,
      [&hashes](const ListedBlock& listed) { hashes.insert(listed.block["hash"].Text()); }));
  return ListOf(hashes);
}

void Evict(const EvictArguments& arguments, CommandContext* context) {
  const auto hashes = Chosen(arguments, *context);
  if (!hashes) return context->Fail(hashes.error());
  std::array<EvictRow, 5> rows = {{{"evicted", "evicted"},
                                   {"absent", "not cached there"},
                                   {"referenced", "held by a session"},
                                   {"pinned", "pinned"},
                                   {"moving", "on the move between tiers: try again"}}};
  uint64_t done = 0;
  const Terminal progress(stderr);
  const Status asked = CallWithHashes(
      *context, arguments.selection.ToRequest("evict"), *hashes, [&](JsonView reply) {
        for (EvictRow& row : rows) row.count += reply[row.name].Count();
        done += reply["asked"].Count();
        progress.ShowProgress(
            fmt::format("evicted {} of {} blocks", FormatCount(done), FormatCount(hashes->size())));
      });
  progress.ShowProgress("");
  if (!asked) return context->Fail(asked.error());
  boost::json::object document{{"schema", "kvtier.evict/1"}, {"asked", hashes->size()}};
  std::string text;
  for (const EvictRow& row : rows) {
    document[row.name] = row.count;
    if (row.count == 0 && &row != &rows.front()) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : "; ", FormatCount(row.count), row.text);
  }
  context->Print(context->json ? boost::json::serialize(document) : text);
  const uint64_t evicted = rows.front().count;
  if (evicted == hashes->size()) return;
  const bool all_absent = rows[1].count == hashes->size();
  context->exit_code = all_absent ? ExitCode::kNotFound : ExitCode::kPartial;
}

void ReleaseMemory(bool all, CommandContext* context) {
  const boost::json::object request{{"op", "release_memory"}, {"all", all}};
  const auto reply = Ask(*context, request);
  if (!reply) return context->Fail(reply.error());
  const JsonView result(&*reply);
  const uint64_t released = result["released"].Count();
  context->Print(context->json ? boost::json::serialize(*reply)
                               : fmt::format("released {} kept {}, {}", FormatCount(released),
                                             released == 1 ? "memory" : "memories",
                                             FormatByteSize(result["bytes"].Count())));
}

}  // namespace

void AddReleaseMemoryCommand(CLI::App* app, CommandContext* context) {
  CLI::App* command = app->add_subcommand(
      "release-memory",
      "Give back the KV caches that ended engines have left for their next start.");
  const auto all = std::make_shared<bool>(false);
  command->add_flag("--all", *all,
                    "Also memory of engines that run: they go on, but leave nothing at their end.");
  command->callback([all, context] { ReleaseMemory(*all, context); });
}

void AddEvictCommand(CLI::App* app, CommandContext* context) {
  CLI::App* command = app->add_subcommand(
      "evict", "Forget blocks now, in one tier or in all; held and pinned ones stay.");
  const auto arguments = std::make_shared<EvictArguments>();
  AddHashArguments(command, &arguments->hashes,
                   "Hashes, or their first digits; -: read them from standard input.");
  command->add_flag("--all", arguments->all, "Every block that the other options leave.");
  AddTierOption(command, &arguments->selection, "From this tier only; copies in other tiers stay.");
  AddNamespaceOptions(command, &arguments->selection);
  command->footer(
      "Ends with 8 if some of the blocks stayed, with 4 if none was cached.\n"
      "Examples:\n"
      "  kvtierctl evict 3fb1c09d22aa\n"
      "  kvtierctl evict --all --model old-model");
  arguments->selection.all = true;
  command->callback([arguments, context] { Evict(*arguments, context); });
}

}  // namespace kvtier
