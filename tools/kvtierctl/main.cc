// kvtierctl: looks at a kvtierd, and exercises one.
#include <CLI/CLI.hpp>
#include <csignal>

#include "client/kvtier.h"
#include "tools/kvtierctl/command.h"

namespace kvtier {
namespace {

constexpr const char* kFooter =
    "Exit codes: 0 ok, 1 failed, 2 usage, 3 daemon unreachable, 4 not found,\n"
    "5 integrity, 6 timeout, 7 permission, 8 partial.";

int Main(int argc, char** argv) {
  CommandContext context;
  CLI::App app("Looks at a kvtierd, checks what it keeps, and exercises it.", "kvtierctl");
  app.set_version_flag("--version", std::string("kvtierctl ") + kvt_version());
  app.add_option("--socket", context.socket,
                 "The daemon's socket. Administration uses admin.sock beside it, or this one if "
                 "there is none.")
      ->capture_default_str();
  app.add_option("--admin-socket", context.admin_socket, "The daemon's admin socket.");
  app.add_flag("--json", context.json, "Answer in JSON.");
  app.add_option("--timeout", context.timeout_s, "Seconds to wait for a sign of the daemon.")
      ->check(CLI::Range(1, 86400))
      ->capture_default_str();
  app.require_subcommand(1);
  app.fallthrough();
  app.footer(kFooter);
  AddStatusCommand(&app, &context);
  AddFsckCommand(&app, &context);
  AddVerifyCommand(&app, &context);
  AddDrainCommand(&app, &context);
  AddReplayCommand(&app, &context);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const bool asked_for_help = app.exit(error) == 0;
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
