// SPDX-License-Identifier: Apache-2.0
// kvtierctl inspect: one block, where it is, and why it was not there when it was asked for.
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "base/acquired.h"
#include "base/units.h"
#include "tiers/types/cache_stats.h"
#include "tools/kvtierctl/blocks.h"
#include "tools/kvtierctl/command.h"
#include "tools/support/table.h"

namespace kvtier {
namespace {

struct InspectArguments {
  BlockSelection selection;
  std::string hash;
};

// `reasons` has names and meanings.
std::string Explain(const auto& reasons, const std::string& reason) {
  for (const auto& [name, meaning] : reasons) {
    if (name == reason) return fmt::format("{}: {}", reason, meaning);
  }
  return reason;
}

std::string When(int64_t when_s, int64_t now_s) {
  return fmt::format("{:%Y-%m-%d %H:%M:%S}, {} ago", fmt::localtime(when_s),
                     FormatElapsed((now_s - when_s) * 1000));
}

void AppendLine(std::string_view name, std::string_view value, std::string* text) {
  *text += fmt::format("{:<11} {}\n", name, value);
}

std::string Expiry(JsonView block, int64_t now_ms) {
  const auto pinned_until_ms = static_cast<int64_t>(block["pinned_until_ms"].Count());
  if (pinned_until_ms > now_ms) {
    return fmt::format("{}, pinned for {}", block["retention"].Text(),
                       FormatElapsed(pinned_until_ms - now_ms));
  }
  const auto left_ms = static_cast<int64_t>(block["expires_ms"].Count()) - now_ms;
  if (block["references"].Count() > 0) return block["retention"].Text() + ", in use";
  return fmt::format("{}, expires in {}", block["retention"].Text(),
                     FormatElapsed(std::max<int64_t>(0, left_ms)));
}

void AppendCached(JsonView block, int64_t now_ms, std::string* text) {
  std::string where = TierNames(block["tiers"]);
  if (block["moving"].IsTrue()) where += where.empty() ? "on the move" : ", on the move";
  if (block["disk_unverified"].IsTrue()) where += " (not read since the index was rebuilt)";
  AppendLine("where", where, text);
  AppendLine("tokens",
             fmt::format("{}, after {} blocks", block["tokens"].Count(), block["depth"].Count()),
             text);
  AppendLine("retention", Expiry(block, now_ms), text);
  if (block["persist_failed"].IsTrue()) {
    AppendLine("disk", "not to be written before its next use", text);
  }
  AppendLine("created", When(static_cast<int64_t>(block["created_s"].Count()), now_ms / 1000),
             text);
  AppendLine("last used", When(static_cast<int64_t>(block["last_use_s"].Count()), now_ms / 1000),
             text);
  AppendLine("uses", FormatCount(block["uses"].Count()), text);
  AppendLine("references", FormatCount(block["references"].Count()), text);
}

std::string BlockText(JsonView block, int64_t now_ms) {
  std::string text;
  const std::string name = block["model_name"].Text();
  AppendLine("tenant", block["tenant"].Text(), &text);
  AppendLine("model", fmt::format("{} {:.12}", name, block["model"].Text()), &text);
  AppendLine("bytes", FormatByteSize(block["block_bytes"].Count()), &text);
  if (block["cached"].IsTrue()) {
    AppendCached(block, now_ms, &text);
  } else {
    AppendLine("where", "not cached", &text);
  }
  if (const JsonView drop = block["last_drop"]; drop["when_s"].present()) {
    AppendLine("last drop",
               fmt::format("from {}, {}", drop["tier"].Text(),
                           When(static_cast<int64_t>(drop["when_s"].Count()), now_ms / 1000)),
               &text);
    AppendLine("", Explain(kDropReasonTexts, drop["reason"].Text()), &text);
  }
  if (const JsonView miss = block["last_miss"]; miss["when_s"].present()) {
    AppendLine("last miss", When(static_cast<int64_t>(miss["when_s"].Count()), now_ms / 1000),
               &text);
    AppendLine("", Explain(kMissReasonTexts, miss["reason"].Text()), &text);
  }
  return text;
}

void Inspect(const InspectArguments& arguments, CommandContext* context) {
  const auto hashes = ResolveHashes(*context, arguments.selection, {arguments.hash});
  if (!hashes) return context->Fail(hashes.error());
  if (hashes->size() != 1) {
    return context->Fail({ErrorCode::kInvalidArgument, "bad_hash", "one hash is expected"});
  }
  bool cached = false;
  const Status asked = CallWithHashes(
      *context, arguments.selection.ToRequest("inspect"), *hashes, [&](JsonView reply) {
        const auto now_ms = static_cast<int64_t>(reply["now_ms"].Count());
        std::string text = "block       " + reply["hash"].Text() + "\n";
        bool known = false;
        reply["blocks"].ForEach([&](JsonView block) {
          text += (known ? "\n" : "") + BlockText(block, now_ms);
          known = true;
          cached |= block["cached"].IsTrue();
        });
        if (!known) AppendLine("where", "not cached, and not asked for or dropped lately", &text);
        context->Print(context->json ? boost::json::serialize(*reply.value()) : text);
      });
  if (!asked) return context->Fail(asked.error());
  if (!cached) context->exit_code = ExitCode::kNotFound;
}

}  // namespace

void AddInspectCommand(CLI::App* app, CommandContext* context) {
  CLI::App* command = app->add_subcommand(
      "inspect", "Show one block: where it is, its times and references, and why it was missed.");
  const auto arguments = std::make_shared<InspectArguments>();
  command
      ->add_option("hash", arguments->hash,
                   "The block's hash; its first digits do if it is cached.")
      ->required()
      ->type_name("HASH");
  AddNamespaceOptions(command, &arguments->selection);
  command->footer(
      "Ends with 4 if the block is not cached. Drops and misses are remembered for the latest\n"
      "tens of thousands of blocks; a miss is noted for the block at which an acquire stopped.\n"
      "Example:\n"
      "  kvtierctl inspect 3fb1c09d22aa");
  command->callback([arguments, context] { Inspect(*arguments, context); });
}

}  // namespace kvtier
