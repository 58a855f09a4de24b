// SPDX-License-Identifier: Apache-2.0
// kvtierctl ls: the blocks that the daemon holds, as they come.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "tools/kvtierctl/blocks.h"
#include "tools/kvtierctl/command.h"
#include "tools/support/short_names.h"
#include "tools/support/table.h"

namespace kvtier {
namespace {

namespace json = boost::json;

constexpr size_t kShortHashDigits = 12;
constexpr size_t kOwnerColumns = 16;

struct LsArguments {
  BlockSelection selection;
  uint64_t limit = 0;
  bool full = false;
  bool hashes_only = false;
};

std::string Age(const ListedBlock& listed, std::string_view member) {
  const auto since_s = static_cast<int64_t>(listed.block[member].Count());
  return FormatAge(listed.now_s - since_s);
}

std::string Owner(JsonView name_space) {
  const std::string name = name_space["model_name"].Text();
  return fmt::format("{}/{}", name_space["tenant"].Text(),
                     name.empty() ? name_space["model"].Text() : name);
}

// Columns are as wide as their widest likely cell: rows are shown as they come, before the widest
// real one is known. Together they fill 80 columns.
void PrintRow(std::string_view hash, std::string_view tiers, std::string_view tokens,
              std::string_view depth, std::string_view age, std::string_view idle,
              std::string_view references, std::string_view owner, bool full) {
  fmt::print("{:<{}}  {:<14}  {:>6}  {:>6}  {:>4}  {:>4}  {:>4}  {}\n", hash,
             full ? 64 : kShortHashDigits, tiers, tokens, depth, age, idle, references, owner);
}

void PrintHeading(const LsArguments& arguments) {
  if (arguments.hashes_only) return;
  PrintRow("hash", "tiers", "tokens", "depth", "age", "idle", "refs", "tenant/model",
           arguments.full);
}

void PrintBlock(const LsArguments& arguments, const ListedBlock& listed, ShortNames* owners) {
  const std::string hash = listed.block["hash"].Text();
  if (arguments.hashes_only) {
    fmt::print("{}\n", hash);
    return;
  }
  const std::string owner = Owner(listed.name_space);
  PrintRow(arguments.full ? hash : hash.substr(0, kShortHashDigits),
           TierNames(listed.block["tiers"]), std::to_string(listed.block["tokens"].Count()),
           std::to_string(listed.block["depth"].Count()), Age(listed, "created_s"),
           Age(listed, "last_use_s"), std::to_string(listed.block["references"].Count()),
           arguments.full ? owner : owners->Of(owner), arguments.full);
}

json::object BlockJson(const ListedBlock& listed) {
  json::object block = *listed.block.object();
  block.stable_erase("namespace");
  for (const char* member : {"tenant", "model", "model_name", "block_bytes"}) {
    if (listed.name_space[member].present()) block[member] = *listed.name_space[member].value();
  }
  return block;
}

// One document, a block a line, written as the blocks come.
Status PrintJson(const LsArguments& arguments, const CommandContext& context) {
  uint64_t count = 0;
  const Status listed =
      ForEachBlock(context, arguments.selection, arguments.limit, [&](const ListedBlock& block) {
        fmt::print("{}{}", count++ == 0 ? "{\"schema\":\"kvtier.ls/1\",\"blocks\":[\n" : ",\n",
                   json::serialize(BlockJson(block)));
      });
  if (count == 0 && !listed) return listed;
  if (count == 0) fmt::print("{{\"schema\":\"kvtier.ls/1\",\"blocks\":[");
  // A listing that broke off must not look like a whole one.
  fmt::print("\n],\"count\":{},\"complete\":{}}}\n", count, listed.has_value());
  return listed;
}

Status PrintTable(const LsArguments& arguments, const CommandContext& context) {
  bool headed = false;
  ShortNames owners(kOwnerColumns);
  const Status listed =
      ForEachBlock(context, arguments.selection, arguments.limit, [&](const ListedBlock& block) {
        if (!std::exchange(headed, true)) PrintHeading(arguments);
        PrintBlock(arguments, block, &owners);
      });
  if (listed && !headed && !arguments.hashes_only) fmt::print(stderr, "no blocks\n");
  return listed;
}

void Ls(const LsArguments& arguments, CommandContext* context) {
  const Status listed =
      context->json ? PrintJson(arguments, *context) : PrintTable(arguments, *context);
  if (!listed) context->Fail(listed.error());
}

}  // namespace

void AddLsCommand(CLI::App* app, CommandContext* context) {
  CLI::App* command = app->add_subcommand(
      "ls", "List cached blocks: their tiers, tokens, depth, age, idle time and references.");
  const auto arguments = std::make_shared<LsArguments>();
  AddTierOption(command, &arguments->selection,
                "Blocks held by this tier only; cold: those that this host knows there.",
                {"pool", "host", "disk", "cold"});
  AddNamespaceOptions(command, &arguments->selection);
  command
      ->add_option("--prefix", arguments->selection.prefix,
                   "Blocks whose hash begins with these hexadecimal digits only.")
      ->type_name("DIGITS");
  command->add_option("--limit", arguments->limit, "The first N only; 0: all.")
      ->check(CLI::Range(int64_t{0}, kMaxCount))
      ->type_name("N")
      ->capture_default_str();
  command->add_flag("--full", arguments->full, "Whole hashes and names, wider than 80 columns.");
  command->add_flag("--hashes", arguments->hashes_only, "The hashes alone, one a line.");
  command->footer(
      "Blocks come in no particular order; those that come or go meanwhile may be missing.\n"
      "Examples:\n"
      "  kvtierctl ls --tier host --limit 20\n"
      "  kvtierctl ls --model my-model --hashes | kvtierctl evict -");
  command->callback([arguments, context] { Ls(*arguments, context); });
}

}  // namespace kvtier
