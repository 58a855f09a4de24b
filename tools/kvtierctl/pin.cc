// SPDX-License-Identifier: Apache-2.0
// kvtierctl pin and unpin: blocks that are not to be forgotten for a while.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "tools/kvtierctl/blocks.h"
#include "tools/kvtierctl/command.h"
#include "tools/support/table.h"

namespace kvtier {
namespace {

constexpr double kMaxPinHours = 366 * 24;

struct PinArguments {
  BlockSelection selection;
  std::vector<std::string> hashes;
  double hours = 24;
};

// Pins for `ttl_ms`, or unpins if that is 0.
void Pin(const PinArguments& arguments, int64_t ttl_ms, CommandContext* context) {
  const auto hashes = ResolveHashes(*context, arguments.selection, arguments.hashes);
  if (!hashes) return context->Fail(hashes.error());
  boost::json::object request = arguments.selection.ToRequest("pin");
  request["ttl_ms"] = ttl_ms;
  uint64_t blocks = 0;
  uint64_t absent = 0;
  const Status asked = CallWithHashes(*context, std::move(request), *hashes, [&](JsonView reply) {
    blocks += reply["blocks"].Count();
    absent += reply["absent"].Count();
  });
  if (!asked) return context->Fail(asked.error());
  if (context->json) {
    context->Print(boost::json::serialize(boost::json::object{{"schema", "kvtier.pin/1"},
                                                              {"asked", hashes->size()},
                                                              {"blocks", blocks},
                                                              {"absent", absent},
                                                              {"ttl_ms", ttl_ms}}));
  } else {
    const std::string done =
        ttl_ms > 0 ? "pinned for " + FormatElapsed(ttl_ms) : "are pinned no more";
    context->Print(
        fmt::format("{} blocks {}{}", FormatCount(blocks), done,
                    absent == 0 ? "" : fmt::format("; {} not cached there", FormatCount(absent))));
  }
  if (absent > 0) context->exit_code = blocks == 0 ? ExitCode::kNotFound : ExitCode::kPartial;
}

void AddBlocks(CLI::App* command, PinArguments* arguments) {
  AddHashArguments(command, &arguments->hashes,
                   "Hashes, or their first digits; -: read them from standard input.");
  command->get_option("hashes")->required();
  AddNamespaceOptions(command, &arguments->selection);
}

}  // namespace

void AddPinCommand(CLI::App* app, CommandContext* context) {
  CLI::App* command =
      app->add_subcommand("pin", "Keep blocks from being forgotten, for some hours.");
  const auto arguments = std::make_shared<PinArguments>();
  AddBlocks(command, arguments.get());
  command->add_option("--hours", arguments->hours, "For how long, from now.")
      ->check(CLI::Range(0.001, kMaxPinHours))
      ->type_name("HOURS")
      ->capture_default_str();
  command->footer(
      "Ends with 8 if some of the blocks are not cached, with 4 if none is. At most\n"
      "half of the lowest tier can be pinned.\n"
      "Example:\n"
      "  kvtierctl ls --prefix 3fb1 --hashes | kvtierctl pin - --hours 2");
  command->callback([arguments, context] {
    Pin(*arguments, static_cast<int64_t>(arguments->hours * 3600 * 1000), context);
  });
}

void AddUnpinCommand(CLI::App* app, CommandContext* context) {
  CLI::App* command = app->add_subcommand("unpin", "Let go of pinned blocks.");
  const auto arguments = std::make_shared<PinArguments>();
  AddBlocks(command, arguments.get());
  command->footer(
      "Ends with 8 if some of the blocks are not cached, with 4 if none is.\n"
      "Example:\n"
      "  kvtierctl unpin 3fb1c09d22aa");
  command->callback([arguments, context] { Pin(*arguments, 0, context); });
}

}  // namespace kvtier
