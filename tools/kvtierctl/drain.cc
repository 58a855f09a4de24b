// SPDX-License-Identifier: Apache-2.0
// kvtierctl drain: writes what should survive a restart to disk.
#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "tools/kvtierctl/command.h"
#include "tools/kvtierctl/progress.h"
#include "tools/support/json_view.h"
#include "tools/support/table.h"

namespace kvtier {
namespace {

void Drain(CommandContext* context) {
  const auto reply = context->CallAdmin("drain", ShowBlockProgress("written"));
  ClearProgress();
  if (!reply) return context->Fail(reply.error());
  boost::json::error_code error;
  const boost::json::value document = boost::json::parse(*reply, error);
  const JsonView result(error ? nullptr : &document);
  if (!result["left"].present()) {
    return context->Fail({ErrorCode::kCorrupt, "bad_reply", *reply});
  }
  const uint64_t left = result["left"].Count();
  if (context->json) {
    context->Print(*reply);
  } else {
    context->Print(fmt::format("{} blocks had to be written; {} could not be; {:.1f} s",
                               FormatCount(result["blocks"].Count()), FormatCount(left),
                               result["seconds"].Number()));
  }
  if (left > 0) context->exit_code = ExitCode::kPartial;
}

}  // namespace

void AddDrainCommand(CLI::App* app, CommandContext* context) {
  CLI::App* command =
      app->add_subcommand("drain", "Write every block that should survive a restart to disk.");
  command->callback([context] { Drain(context); });
}

}  // namespace kvtier
