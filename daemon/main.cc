// kvtierd: see docs/CONFIGURATION.md.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "daemon/config_loader.h"
#include "daemon/config_reference.h"
#include "daemon/metrics_reference.h"
#include "daemon/service.h"
#include "daemon/version.h"

namespace kvtier {
namespace {

constexpr int kExitUsage = 2;

struct Arguments {
  std::string config_path;
  std::vector<std::string> overrides;
  bool check_config = false;
  bool print_version = false;
  bool print_reference = false;
  bool print_example = false;
  bool print_metrics_reference = false;
};

// Nothing, or the exit code with which to end.
std::optional<int> ParseArguments(int argc, char** argv, Arguments* arguments) {
  CLI::App app("Keeps KV cache blocks of LLM inference in three tiers.", "kvtierd");
  app.add_option("--config", arguments->config_path, "TOML file (docs/CONFIGURATION.md)");
  app.add_option("--set", arguments->overrides, "section.key=value; overrides the file, repeatable")
      ->allow_extra_args(false);
  app.add_flag("--check-config", arguments->check_config,
               "check the configuration, print all values in effect, and exit");
  app.add_flag("--version", arguments->print_version, "print the version and exit");
  app.add_flag("--print-config-reference", arguments->print_reference)->group("");
  app.add_flag("--print-config-example", arguments->print_example,
               "print a configuration file with every key explained, and exit");
  app.add_flag("--print-metrics-reference", arguments->print_metrics_reference)->group("");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kExitUsage;
  }
  return std::nullopt;
}

int Complain(const Error& error, int exit_code) {
  fmt::print(stderr, "kvtierd: {}\n", error.context.empty() ? error.ToString() : error.context);
  return exit_code;
}

int Main(int argc, char** argv) {
  Arguments arguments;
  if (const std::optional<int> exit_code = ParseArguments(argc, argv, &arguments)) {
    return *exit_code;
  }
  if (arguments.print_version) {
    fmt::print("kvtierd {}\n", Version());
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
  const auto read = [&] { return LoadConfig(arguments.config_path, arguments.overrides); };
  const Result<Config> config = read();
  if (!config) return Complain(config.error(), kExitConfiguration);
  if (arguments.check_config) {
    fmt::print("{}", FormatConfig(*config));
    return 0;
  }
  return Service(*config, read).Run();
}

}  // namespace
}  // namespace kvtier

int main(int argc, char** argv) { return kvtier::Main(argc, argv); }
