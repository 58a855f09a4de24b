// SPDX-License-Identifier: Apache-2.0
// kvtierctl status: what the daemon holds and does.
#include <CLI/CLI.hpp>

#include "tools/kvtierctl/command.h"
#include "tools/kvtierctl/status_text.h"

namespace kvtier {

void AddStatusCommand(CLI::App* app, CommandContext* context) {
  CLI::App* command =
      app->add_subcommand("status", "Show tiers, pools, sessions, and the engines in use.");
  command->callback([context] {
    const auto status = context->CallAdmin("status");
    if (!status) return context->Fail(status.error());
    if (context->json) return context->Print(*status);
    const auto text = FormatStatus(*status, Terminal(stdout));
    if (!text) return context->Fail(text.error());
    context->Print(*text);
  });
}

}  // namespace kvtier
