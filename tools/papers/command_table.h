// SPDX-License-Identifier: Apache-2.0
// A program's commands and options as plain data, read from the table that the program parses with.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace kvtier {

struct OptionRow {
  std::vector<std::string> names;  // "-h", "--help"; none for a positional argument
  std::string argument;            // "FILE"; empty for a flag
  std::string help;
  std::string standard;  // the default, as text; may be empty
  std::vector<std::string> choices;
  bool required = false;
  bool repeated = false;

  [[nodiscard]] bool positional() const { return names.empty(); }
};

struct CommandRow {
  std::string name;
  std::string help;
  std::string notes;                  // what there is to say besides
  std::vector<std::string> examples;  // command lines
  std::vector<OptionRow> options;
  std::vector<CommandRow> commands;
};

// Hidden options and commands (those without a group) are left out.
[[nodiscard]] CommandRow ReadCommandTable(const CLI::App& app);

}  // namespace kvtier
