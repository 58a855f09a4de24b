// SPDX-License-Identifier: Apache-2.0
// kvtierctl: looks at a kvtierd, and exercises one. `--help` is written from the table of commands
// here, and manual page and completions are written from `--help` (tools/manual).
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "kvtier/kvtier.h"
#include "tools/kvtierctl/command.h"

namespace kvtier {
namespace {

constexpr const char* kFooter =
    "\"kvtierctl help COMMAND\" is \"kvtierctl COMMAND --help\", \"kvtierctl version\" --version.\n"
    "Exit codes: 0 ok, 1 failed, 2 usage, 3 daemon unreachable, 4 not found,\n"
    "5 integrity, 6 timeout, 7 permission, 8 partial.";

void AddGlobalOptions(CLI::App* app, CommandContext* context) {
  app->set_version_flag("-V,--version", std::string("kvtierctl ") + kvt_version(),
                        "Print the version and end.");
  app->add_option("--socket", context->socket,
                  "The daemon's socket. Administration uses admin.sock beside it, or this one if "
                  "there is none. Default: $KVTIER_SOCKET, else that of this user's own daemon "
                  "(kvtierd --dev), else /run/kvtier/kvtier.sock.")
      ->type_name("PATH");
  app->add_option("--admin-socket", context->admin_socket, "The daemon's admin socket.")
      ->type_name("PATH");
  app->add_flag("--json", context->json, "Answer in JSON.");
  app->add_option("--timeout", context->timeout_s, "Seconds to wait for a sign of the daemon.")
      ->check(CLI::Range(1, 86400))
      ->type_name("SECONDS")
      ->capture_default_str();
}

// The fault of the command's name, after parsing has failed; empty if it is something else.
std::string WrongCommand(const CLI::App& app) {
  if (!app.get_subcommands().empty()) return {};
  const std::vector<std::string> rest = app.remaining();
  if (!rest.empty() && rest.front().starts_with('-')) return {};
  std::string names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    names += (names.empty() ? "" : ", ") + command->get_name();
  }
  const std::string what =
      rest.empty() ? "a command is missing" : "there is no command \"" + rest.front() + "\"";
  return what + "; the commands are\n" + names;
}

// Parsing fills `context`, which outlives the table, and runs the command.
std::unique_ptr<CLI::App> MakeKvtierctlApp(CommandContext* context) {
  auto app = std::make_unique<CLI::App>("Looks at a kvtierd, checks its blocks, and exercises it.",
                                        "kvtierctl");
  app->set_help_flag("-h,--help", "Print this help and end.");
  AddGlobalOptions(app.get(), context);
  app->require_subcommand(1);
  app->fallthrough();
  for (const auto add :
       {AddStatusCommand, AddTopCommand,    AddLsCommand,     AddInspectCommand,
        AddPinCommand,    AddUnpinCommand,  AddEvictCommand,  AddUsageCommand,
        AddModelsCommand, AddForgetCommand, AddEraseCommand,  AddReleaseMemoryCommand,
        AddDrainCommand,  AddStopCommand,   AddVerifyCommand, AddTraceCommand,
        AddConfigCommand, AddSizeCommand,   AddDoctorCommand, AddBenchCommand,
        AddReplayCommand}) {
    add(app.get(), context);
  }
  // Last: commands without a footer would take this one.
  app->footer(kFooter);
  return app;
}

// The first word that is neither an option nor the value of one before the command.
std::vector<std::string>::iterator FirstWord(const CLI::App& app, std::vector<std::string>* words) {
  auto word = words->begin();
  while (word != words->end() && word->starts_with('-')) {
    const CLI::Option* const option = app.get_option_no_throw(*word++);
    if (option != nullptr && option->get_items_expected() > 0 && word != words->end()) ++word;
  }
  return word;
}

// A first word that is no command, where help is asked for: CLI11 would show the program's own, as
// if the command were there. Empty if there is none.
std::string UnknownCommand(const CLI::App& app, std::vector<std::string>* words) {
  const auto asks = [](std::string_view word) { return word == "--help" || word == "-h"; };
  const auto first = FirstWord(app, words);
  if (first == words->end() || std::ranges::none_of(*words, asks)) return {};
  const auto is_named = [&](const CLI::App* command) { return command->get_name() == *first; };
  return app.get_subcommands(is_named).empty() ? *first : std::string();
}

// The words after the program's name. "help", "help COMMAND" and "version" are taken for the flags
// that they mean.
std::vector<std::string> WordsOf(const CLI::App& app, std::span<char*> arguments) {
  std::vector<std::string> words(arguments.begin() + 1, arguments.end());
  const auto first = FirstWord(app, &words);
  if (first == words.end()) return words;
  if (*first == "version") *first = "--version";
  if (*first == "help") {
    words.erase(first);
    words.push_back("--help");
  }
  return words;
}

int UsageError(CommandContext* context, std::string_view what) {
  if (context->json) {
    context->Fail({ErrorCode::kInvalidArgument, "usage", std::string(what)});
  } else {
    fmt::print(stderr, "kvtierctl: {}\nRun with --help for more information.\n", what);
  }
  return static_cast<int>(ExitCode::kUsage);
}

int Main(int argc, char** argv) {
  CommandContext context;
  const std::unique_ptr<CLI::App> app = MakeKvtierctlApp(&context);
  std::vector<std::string> words = WordsOf(*app, {argv, static_cast<size_t>(argc)});
  // Before all options are understood, for the errors of those that are not.
  context.json = std::ranges::find(words, "--json") != words.end();
  // A script's variable without a value would stand for all tenants, models or times.
  if (std::ranges::any_of(words, &std::string::empty)) {
    return UsageError(&context, "an argument is empty");
  }
  const std::string unknown = UnknownCommand(*app, &words);
  if (!unknown.empty()) {
    return UsageError(&context, fmt::format("there is no command \"{}\"", unknown));
  }
  try {
    // CLI11 takes words from the end of a vector.
    std::ranges::reverse(words);
    app->parse(std::move(words));
  } catch (const CLI::Success& asked) {
    return app->exit(asked), static_cast<int>(ExitCode::kOk);
  } catch (const CLI::ParseError& error) {
    const bool lacks = dynamic_cast<const CLI::RequiredError*>(&error) != nullptr;
    const std::string wrong = lacks ? WrongCommand(*app) : "";
    return UsageError(&context, wrong.empty() ? error.what() : wrong);
  }
  return static_cast<int>(context.exit_code);
}

}  // namespace
}  // namespace kvtier

int main(int argc, char** argv) {
  // A reader that went away, `kvtierctl status | head`, is not worth a message.
  std::signal(SIGPIPE, SIG_DFL);
  try {
    return kvtier::FinishOutput(kvtier::Main(argc, argv));
  } catch (const std::system_error& error) {
    // fmt throws it when a long text cannot be written.
    return kvtier::FinishOutput(static_cast<int>(kvtier::ExitCode::kFailed), error.code().value());
  }
}
