// SPDX-License-Identifier: Apache-2.0
#include "tools/papers/command_table.h"

#include <CLI/CLI.hpp>
#include <sstream>

namespace kvtier {
namespace {

// A check against a list of choices appends "{a,b}" to the name of the option's type.
std::vector<std::string> ChoicesIn(const std::string& type) {
  const size_t open = type.find('{');
  const size_t close = type.find('}', open);
  if (open == std::string::npos || close == std::string::npos) return {};
  std::vector<std::string> choices;
  std::istringstream list(type.substr(open + 1, close - open - 1));
  for (std::string choice; std::getline(list, choice, ',');) choices.push_back(choice);
  return choices;
}

OptionRow ReadOption(const CLI::Option& option) {
  OptionRow row;
  for (const std::string& name : option.get_snames()) row.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) row.names.push_back("--" + name);
  row.help = option.get_description();
  row.required = option.get_required();
  if (option.get_items_expected_max() == 0) return row;
  const std::string type = option.get_type_name();
  row.argument = type.substr(0, type.find(':'));
  // Ranges, too, show as types; what counts is written in the help.
  row.choices = ChoicesIn(type);
  row.standard = option.get_default_str();
  row.repeated = option.get_items_expected_max() > 1;
  return row;
}

// The footer: sentences, then "Example:" and indented command lines.
void ReadFooter(const std::string& footer, CommandRow* row) {
  bool examples = false;
  std::istringstream lines(footer);
  for (std::string line; std::getline(lines, line);) {
    if (line == "Example:" || line == "Examples:") {
      examples = true;
    } else if (examples) {
      row->examples.push_back(line.substr(std::min(line.find_first_not_of(' '), line.size())));
    } else {
      row->notes += (row->notes.empty() ? "" : " ") + line;
    }
  }
}

}  // namespace

CommandRow ReadCommandTable(const CLI::App& app) {
  CommandRow row;
  row.name = app.get_name();
  row.help = app.get_description();
  ReadFooter(app.get_footer(), &row);
  for (const CLI::Option* option : app.get_options()) {
    if (!option->get_group().empty()) row.options.push_back(ReadOption(*option));
  }
  const auto shown = [](const CLI::App* command) { return !command->get_group().empty(); };
  for (const CLI::App* command : app.get_subcommands(shown)) {
    row.commands.push_back(ReadCommandTable(*command));
  }
  return row;
}

}  // namespace kvtier
