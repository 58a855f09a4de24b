// SPDX-License-Identifier: Apache-2.0
// kvtierd: see docs/CONFIGURATION.md.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "daemon/app/dev_mode.h"
#include "daemon/app/service.h"
#include "daemon/app/start_doubts.h"
#include "daemon/config/config_loader.h"
#include "daemon/config/config_schema.h"
#include "daemon/metrics/metrics.h"
#include "daemon/runtime/process.h"
#include "gpu/gpus.h"

namespace kvtier {
namespace {

constexpr int kExitUsage = 2;

// The command line. At most one of the flags takes effect, in the order of main().
struct DaemonArguments {
  std::string config_path;
  std::vector<std::string> overrides;
  bool dev = false;  // not together with a path
  bool check_config = false;
  bool print_version = false;
  bool print_reference = false;
  bool print_example = false;
  bool print_metrics_reference = false;
};

// Names and describes `app`; parsing fills `arguments`, which outlives it.
void AddDaemonOptions(CLI::App* app, DaemonArguments* arguments) {
  app->name("kvtierd");
  app->description("Keeps KV cache blocks of LLM inference in three tiers.");
  app->set_help_flag("-h,--help", "Print this help and end.");
  CLI::Option* const config =
      app->add_option("--config", arguments->config_path, "The configuration; see kvtierd.toml(5).")
          ->check([](const std::string& path) { return path.empty() ? "the path is empty" : ""; })
          ->type_name("FILE");
  app->add_flag(
         "--dev", arguments->dev,
         "Serve this user alone, without a configuration: sockets in $XDG_RUNTIME_DIR/kvtier, "
         "blocks in ~/.cache/kvtier, sizes chosen from the machine.")
      ->excludes(config);
  app->add_option("--set", arguments->overrides,
                  "section.key=value; overrides the file, repeatable.")
      ->type_name("SETTING")
      ->allow_extra_args(false);
  app->add_flag("--check-config", arguments->check_config,
                "Check the configuration, print all values in effect, and end.");
  app->add_flag("--version", arguments->print_version, "Print the version and end.");
  app->add_flag("--print-config-example", arguments->print_example,
                "Print a configuration file with every key explained, and end.");
  app->add_flag("--print-config-reference", arguments->print_reference,
                "Print the tables of docs/CONFIGURATION.md, and end.");
  app->add_flag("--print-metrics-reference", arguments->print_metrics_reference,
                "Print the tables of docs/METRICS.md, and end.");
}

// Returns nothing if the daemon should go on, or the exit code with which to end.
std::optional<int> ParseArguments(int argc, char** argv, DaemonArguments* arguments) {
  CLI::App app;
  AddDaemonOptions(&app, arguments);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kExitUsage;
  }
  return std::nullopt;
}

// Whether all that was printed has been written.
bool Flushed() {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return true;
  fmt::print(stderr, "kvtierd: standard output cannot be written\n");
  return false;
}

// For errors before there is a log. The context of a configuration error says where the mistake
// stands and what to do; its code would add nothing.
// Each mistake of a configuration is a line of it.
int Complain(const Error& error, int exit_code) {
  std::istringstream lines(error.context.empty() ? error.ToString() : error.context);
  for (std::string line; std::getline(lines, line);) fmt::print(stderr, "kvtierd: {}\n", line);
  return exit_code;
}

int Main(int argc, char** argv) {
  ReportUncaughtExceptions();
  DaemonArguments arguments;
  if (const std::optional<int> exit_code = ParseArguments(argc, argv, &arguments)) {
    return *exit_code;
  }
  if (arguments.print_version) {
    fmt::print("kvtierd {} (built {})\n", Version(), KVTIER_BUILT);
    return 0;
  }
  if (arguments.print_reference) {
    fmt::print("{}", ConfigReferenceMarkdown());
    return 0;
  }
  if (arguments.print_metrics_reference) {
    fmt::print("{}", MetricsReferenceMarkdown());
    return 0;
  }
  if (arguments.print_example) {
    fmt::print("{}", ConfigExampleToml());
    return 0;
  }
  DevFacts facts;
  if (arguments.dev) {
    // A mere check must not change how long a keeper keeps.
    Result<DevFacts> gathered =
        GatherDevFacts(arguments.check_config ? nullptr : &arguments.overrides);
    if (!gathered) return Complain(gathered.error(), kExitConfiguration);
    facts = *std::move(gathered);
  }
  // Owns its arguments: a read may outlive this function on a thread that hangs. The facts stay
  // those of the start: a reload must not change sizes because the machine is busier by then.
  const auto read = [arguments, facts] {
    if (arguments.dev) return DevConfig(facts, arguments.overrides);
    return LoadConfig(arguments.config_path, arguments.overrides);
  };
  const Result<Config> config = read();
  if (!config && arguments.check_config) return Complain(config.error(), kExitConfiguration);
  if (!config) return Complain(config.error(), ExitCodeOfFailedStart(config.error()));
  if (arguments.check_config) {
    fmt::print("{}", FormatConfig(*config));
    int exit_code = 0;
    for (const StartDoubt& doubt : DoubtsOfStart(*config, CudaGpus())) {
      fmt::print(stderr, "kvtierd: {}{}\n", doubt.is_final ? "" : "warning: ", doubt.text);
      if (doubt.is_final) exit_code = kExitConfiguration;
    }
    return Flushed() ? exit_code : kExitFailure;
  }
  return Service(*config, read, arguments.dev ? DevScreen(facts, *config) : "").Run();
}

}  // namespace

}  // namespace kvtier

int main(int argc, char** argv) { return kvtier::Main(argc, argv); }
