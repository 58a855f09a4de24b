// SPDX-License-Identifier: Apache-2.0
// kvtierd's command line. Its man page and completions are written from the same table.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace kvtier {

struct DaemonArguments {
  std::string config_path;
  std::vector<std::string> overrides;
  bool check_config = false;
  bool print_version = false;
  bool print_reference = false;
  bool print_example = false;
  bool print_metrics_reference = false;
};

// Names and describes `app`; parsing fills `arguments`, which outlives it.
void AddDaemonOptions(CLI::App* app, DaemonArguments* arguments);

}  // namespace kvtier
