// SPDX-License-Identifier: Apache-2.0
// kvtierctl drain: writes what should survive a restart to disk. kvtierctl verify: reads every
// persisted block back and checks it, while the daemon serves. Both are admin calls that take long
// and say how far they are.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <string>

#include "base/units.h"
#include "tools/kvtierctl/ask.h"
#include "tools/kvtierctl/command.h"
#include "tools/support/json_view.h"
#include "tools/support/table.h"

namespace kvtier {
namespace {

// A reply's meaning for a person and for a script.
struct Outcome {
  std::string text;
  ExitCode exit_code = ExitCode::kOk;
};

// Calls `operation`, shows its progress as "VERB ...", and prints the outcome.
void RunLongCall(CommandContext* context, std::string_view operation, std::string_view verb,
                 const std::function<Outcome(JsonView)>& outcome_of) {
  const auto reply = Ask(*context, operation, ShowBlockProgress(std::string(verb)));
  ClearProgress();
  if (!reply) return context->Fail(reply.error());
  const Outcome outcome = outcome_of(JsonView(&*reply));
  context->Print(context->json ? boost::json::serialize(*reply) : outcome.text);
  context->exit_code = outcome.exit_code;
}

Outcome DrainOutcome(JsonView result) {
  const uint64_t left = result["left"].Count();
  return {fmt::format("{} blocks had to be written; {} could not be; {:.1f} s",
                      FormatCount(result["blocks"].Count()), FormatCount(left),
                      result["seconds"].Number()),
          left > 0 ? ExitCode::kPartial : ExitCode::kOk};
}

Outcome VerifyOutcome(JsonView result) {
  const uint64_t bad = result["bad"].Count();
  const uint64_t unread = result["unread"].Count();
  std::string left;
  if (result["absent"].Count() > 0) {
    left += fmt::format("; {} not there any more", FormatCount(result["absent"].Count()));
  }
  if (unread > 0) left += fmt::format("; {} that could not be read", FormatCount(unread));
  const std::string gone = result["gone"].Text();
  if (!gone.empty()) {
    left += fmt::format("; {} was deleted or replaced: blocks on disk end with the daemon", gone);
  }
  std::string outcome = !gone.empty() ? "all could be read" : unread > 0 ? "none bad" : "all good";
  if (bad > 0) outcome = fmt::format("{} bad, now quarantined", FormatCount(bad));
  return {fmt::format(
              "verified {} blocks, {}, in {:.1f} s: {}{}", FormatCount(result["checked"].Count()),
              FormatByteSize(result["bytes"].Count()), result["seconds"].Number(), outcome, left),
          bad > 0 || !gone.empty() ? ExitCode::kIntegrity
          : unread > 0             ? ExitCode::kPartial
                                   : ExitCode::kOk};
}

}  // namespace

void AddDrainCommand(CLI::App* app, CommandContext* context) {
  CLI::App* command =
      app->add_subcommand("drain", "Write every block that should survive a restart to disk.");
  command->footer("Ends with 8 if some of the blocks could not be written.");
  const auto before_stop = std::make_shared<bool>(false);
  command->add_flag("--before-stop", *before_stop,
                    "Take as long as drain.deadline at most; for a unit's ExecStop=");
  command->callback([context, before_stop] {
    RunLongCall(context, *before_stop ? "drain_before_stop" : "drain", "written", DrainOutcome);
  });
}

void AddVerifyCommand(CLI::App* app, CommandContext* context) {
  CLI::App* command = app->add_subcommand(
      "verify", "Read every block on disk back and check it, while the daemon serves.");
  const auto tier = std::make_shared<std::string>("disk");
  command
      ->add_option("--tier", *tier,
                   "cold: objects of the store that this host wrote or read; bad ones are deleted")
      ->check(CLI::IsMember({"disk", "cold"}))
      ->capture_default_str();
  command->footer("Ends with 5 if some of the blocks are bad, with 8 if some could not be read.");
  command->callback([context, tier] {
    RunLongCall(context, *tier == "cold" ? "verify_cold" : "verify", "verified", VerifyOutcome);
  });
}

}  // namespace kvtier
