// SPDX-License-Identifier: Apache-2.0
// kvtierctl verify: reads every persisted block back and checks it, while the daemon serves.
#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "base/byte_size.h"
#include "tools/kvtierctl/command.h"
#include "tools/kvtierctl/progress.h"
#include "tools/support/json_view.h"
#include "tools/support/table.h"

namespace kvtier {
namespace {

void Verify(CommandContext* context) {
  const auto reply = context->CallAdmin("verify", ShowBlockProgress("verified"));
  ClearProgress();
  if (!reply) return context->Fail(reply.error());
  boost::json::error_code error;
  const boost::json::value document = boost::json::parse(*reply, error);
  const JsonView result(error ? nullptr : &document);
  if (!result["checked"].present()) {
    return context->Fail({ErrorCode::kCorrupt, "bad_reply", *reply});
  }
  const uint64_t bad = result["bad"].Count();
  if (context->json) {
    context->Print(*reply);
  } else {
    context->Print(fmt::format(
        "verified {} blocks, {}, in {:.1f} s: {}", FormatCount(result["checked"].Count()),
        FormatByteSize(result["bytes"].Count()), result["seconds"].Number(),
        bad == 0 ? "all good" : fmt::format("{} bad, now quarantined", FormatCount(bad))));
  }
  if (bad > 0) context->exit_code = ExitCode::kIntegrity;
}

}  // namespace

void AddVerifyCommand(CLI::App* app, CommandContext* context) {
  CLI::App* command = app->add_subcommand(
      "verify", "Read every block on disk back and check it, while the daemon serves.");
  command->callback([context] { Verify(context); });
}

}  // namespace kvtier
