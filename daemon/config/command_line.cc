// SPDX-License-Identifier: Apache-2.0
#include "daemon/config/command_line.h"

#include <CLI/CLI.hpp>

namespace kvtier {

void AddDaemonOptions(CLI::App* app, DaemonArguments* arguments) {
  app->name("kvtierd");
  app->description("Keeps KV cache blocks of LLM inference in three tiers.");
  app->set_help_flag("-h,--help", "Print this help and end.");
  app->add_option("--config", arguments->config_path, "The configuration; see kvtierd.toml(5).")
      ->type_name("FILE");
  app->add_option("--set", arguments->overrides,
                  "section.key=value; overrides the file, repeatable.")
      ->type_name("SETTING")
      ->allow_extra_args(false);
  app->add_flag("--check-config", arguments->check_config,
                "Check the configuration, print all values in effect, and end.");
  app->add_flag("--version", arguments->print_version, "Print the version and end.");
  app->add_flag("--print-config-example", arguments->print_example,
                "Print a configuration file with every key explained, and end.");
  app->add_flag("--print-config-reference", arguments->print_reference)->group("");
  app->add_flag("--print-metrics-reference", arguments->print_metrics_reference)->group("");
}

}  // namespace kvtier
