// SPDX-License-Identifier: Apache-2.0
// kvtierctl: looks at a kvtierd, and exercises one.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <csignal>

#include "tools/kvtierctl/app.h"

namespace kvtier {
namespace {

int Main(int argc, char** argv) {
  CommandContext context;
  const std::unique_ptr<CLI::App> app = MakeKvtierctlApp(&context);
  try {
    app->parse(argc, argv);
  } catch (const CLI::RequiredError& error) {
    const std::string wrong = WrongCommand(*app);
    if (wrong.empty()) return app->exit(error), static_cast<int>(ExitCode::kUsage);
    fmt::print(stderr, "kvtierctl: {}\nRun with --help for more information.\n", wrong);
    return static_cast<int>(ExitCode::kUsage);
  } catch (const CLI::ParseError& error) {
    const bool asked_for_help = app->exit(error) == 0;
    return static_cast<int>(asked_for_help ? ExitCode::kOk : ExitCode::kUsage);
  }
  return static_cast<int>(context.exit_code);
}

}  // namespace
}  // namespace kvtier

int main(int argc, char** argv) {
  // A reader that went away, `kvtierctl status | head`, is not worth a message.
  std::signal(SIGPIPE, SIG_DFL);
  return kvtier::Main(argc, argv);
}
