// SPDX-License-Identifier: Apache-2.0
#include "tools/papers/completion.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace kvtier {
namespace {

enum class ValueKind { kFlag, kChoice, kFile, kDirectory, kOther };

ValueKind KindOf(const OptionRow& option) {
  if (!option.choices.empty()) return ValueKind::kChoice;
  if (option.argument.empty()) return ValueKind::kFlag;
  if (option.argument == "DIRECTORY") return ValueKind::kDirectory;
  const bool file =
      option.argument == "FILE" || option.argument == "PATH" || option.argument == "TRACE";
  return file ? ValueKind::kFile : ValueKind::kOther;
}

std::string Joined(const std::vector<std::string>& words, std::string_view separator) {
  std::string text;
  for (const std::string& word : words) {
    if (!text.empty()) text += separator;
    text += word;
  }
  return text;
}

std::string FunctionName(const CommandRow& table) {
  std::string name = "_" + table.name;
  std::ranges::replace(name, '-', '_');
  return name;
}

std::vector<std::string> OptionNames(const CommandRow& command) {
  std::vector<std::string> names;
  for (const OptionRow& option : command.options) {
    names.insert(names.end(), option.names.begin(), option.names.end());
  }
  return names;
}

std::vector<std::string> CommandNames(const CommandRow& table) {
  std::vector<std::string> names;
  for (const CommandRow& command : table.commands) names.push_back(command.name);
  return names;
}

// ---- bash ----

std::string BashValues(const OptionRow& option) {
  switch (KindOf(option)) {
    case ValueKind::kChoice:
      return fmt::format("COMPREPLY=($(compgen -W '{}' -- \"$cur\"))", Joined(option.choices, " "));
    case ValueKind::kFile:
      return "COMPREPLY=($(compgen -f -- \"$cur\")); compopt -o filenames 2>/dev/null";
    case ValueKind::kDirectory:
      return "COMPREPLY=($(compgen -d -- \"$cur\")); compopt -o filenames 2>/dev/null";
    default:
      return "COMPREPLY=()";
  }
}

// The cases of "command:option" whose value is being typed.
std::string BashValueCases(const CommandRow& command, std::string_view name) {
  std::string cases;
  for (const OptionRow& option : command.options) {
    if (option.positional() || KindOf(option) == ValueKind::kFlag) continue;
    std::vector<std::string> patterns;
    for (const std::string& option_name : option.names) {
      patterns.push_back(fmt::format("{}:{}", name, option_name));
    }
    cases += fmt::format("    {}) {}; return ;;\n", Joined(patterns, "|"), BashValues(option));
  }
  return cases;
}

std::string BashWordCases(const CommandRow& command) {
  std::string positional;
  for (const OptionRow& option : command.options) {
    if (option.positional() && positional.empty()) positional = BashValues(option);
  }
  return fmt::format("    {}) options='{}'; {} ;;\n", command.name,
                     Joined(OptionNames(command), " "),
                     positional.empty() ? "COMPREPLY=()" : positional);
}

// ---- zsh ----

// Within single quotes, and within the [description] of an argument.
std::string ZshText(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '\'') {
      escaped += "'\\''";
      continue;
    }
    if (c == '[' || c == ']' || c == ':' || c == '\\') escaped += '\\';
    escaped += c;
  }
  return escaped;
}

std::string ZshAction(const OptionRow& option) {
  switch (KindOf(option)) {
    case ValueKind::kChoice:
      return fmt::format(":{}:({})", option.argument, Joined(option.choices, " "));
    case ValueKind::kFile:
      return fmt::format(":{}:_files", option.argument);
    case ValueKind::kDirectory:
      return fmt::format(":{}:_files -/", option.argument);
    case ValueKind::kOther:
      return fmt::format(":{}: ", ZshText(option.argument));
    case ValueKind::kFlag:
      break;
  }
  return "";
}

std::string ZshSpecs(const CommandRow& command, std::string_view indent) {
  std::string specs;
  for (const OptionRow& option : command.options) {
    if (option.positional()) {
      specs += fmt::format(" \\\n{}'{}{}'", indent, option.repeated ? "*" : "1", ZshAction(option));
      continue;
    }
    for (const std::string& name : option.names) {
      specs += fmt::format(" \\\n{}'{}[{}]{}'", indent, option.repeated ? "*" + name : name,
                           ZshText(option.help), ZshAction(option));
    }
  }
  return specs;
}

// ---- fish ----

std::string FishText(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '\'' || c == '\\') escaped += '\\';
    escaped += c;
  }
  return escaped;
}

std::string FishOption(const std::string& program, const std::string& condition,
                       const OptionRow& option) {
  std::string line = fmt::format("complete -c {}{}", program, condition);
  for (const std::string& name : option.names) {
    line += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
  }
  switch (KindOf(option)) {
    case ValueKind::kFlag:
      break;
    case ValueKind::kChoice:
      line += fmt::format(" -x -a '{}'", Joined(option.choices, " "));
      break;
    case ValueKind::kFile:
    case ValueKind::kDirectory:
      line += " -r -F";
      break;
    case ValueKind::kOther:
      line += " -x";
      break;
  }
  return fmt::format("{} -d '{}'\n", line, FishText(option.help));
}

std::string FishCommand(const std::string& program, const CommandRow& command) {
  const std::string condition = fmt::format(" -n '__fish_seen_subcommand_from {}'", command.name);
  std::string text = fmt::format("complete -c {} -n __fish_use_subcommand -a {} -d '{}'\n", program,
                                 command.name, FishText(command.help));
  for (const OptionRow& option : command.options) {
    const bool file = KindOf(option) == ValueKind::kFile;
    if (!option.positional()) {
      text += FishOption(program, condition, option);
    } else if (file) {
      text += fmt::format("complete -c {}{} -F\n", program, condition);
    }
  }
  return text;
}

}  // namespace

std::string BashCompletion(const CommandRow& table) {
  const std::string function = FunctionName(table);
  std::vector<std::string> takes_value;
  std::string value_cases = BashValueCases(table, "*");
  std::string word_cases;
  for (const CommandRow& command : table.commands) {
    value_cases += BashValueCases(command, command.name);
    word_cases += BashWordCases(command);
  }
  for (const OptionRow& option : table.options) {
    if (KindOf(option) == ValueKind::kFlag) continue;
    takes_value.insert(takes_value.end(), option.names.begin(), option.names.end());
  }
  std::string text = fmt::format("# bash completion of {}. Generated; do not edit.\n", table.name);
  text += fmt::format("{}() {{\n", function);
  text +=
      "  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} command= options= i\n"
      "  for ((i = 1; i < COMP_CWORD; i++)); do\n"
      "    case ${COMP_WORDS[i]} in\n";
  if (!takes_value.empty()) text += fmt::format("      {}) ((i++)) ;;\n", Joined(takes_value, "|"));
  text +=
      "      -*) ;;\n"
      "      *) command=${COMP_WORDS[i]}; break ;;\n"
      "    esac\n"
      "  done\n"
      "  case $command:$prev in\n" +
      value_cases + "  esac\n";
  text += fmt::format(
      "  COMPREPLY=()\n"
      "  case $command in\n"
      "    '') COMPREPLY=($(compgen -W '{}' -- \"$cur\")) ;;\n",
      Joined(CommandNames(table), " "));
  text += word_cases + "  esac\n";
  text += fmt::format(
      "  [[ $cur == -* ]] && COMPREPLY=($(compgen -W \"$options {}\" -- \"$cur\"))\n"
      "  return 0\n"
      "}}\n"
      "complete -F {} {}\n",
      Joined(OptionNames(table), " "), function, table.name);
  return text;
}

std::string ZshCompletion(const CommandRow& table) {
  const std::string function = FunctionName(table);
  std::string text =
      fmt::format("#compdef {}\n# Generated; do not edit.\n\n{}() {{\n", table.name, function);
  if (table.commands.empty()) {
    text += "  _arguments -s" + ZshSpecs(table, "    ") + "\n}\n";
    return text + fmt::format("\n{} \"$@\"\n", function);
  }
  text += "  local context state state_descr line\n  typeset -A opt_args\n";
  text += "  _arguments -s -C" + ZshSpecs(table, "    ") +
          " \\\n    '1: :->command' '*:: :->arguments' && return\n";
  text += "  case $state in\n    command)\n      local -a commands\n      commands=(\n";
  for (const CommandRow& command : table.commands) {
    text += fmt::format("        '{}:{}'\n", command.name, ZshText(command.help));
  }
  text += "      )\n      _describe command commands ;;\n    arguments)\n      case $line[1] in\n";
  for (const CommandRow& command : table.commands) {
    CommandRow all = command;
    all.options.insert(all.options.end(), table.options.begin(), table.options.end());
    // Help is offered by both.
    std::erase_if(all.options, [seen = false](const OptionRow& option) mutable {
      const bool help = !option.positional() && option.names.back() == "--help";
      return help && std::exchange(seen, true);
    });
    text +=
        fmt::format("        {}) _arguments -s{} ;;\n", command.name, ZshSpecs(all, "          "));
  }
  text += "      esac ;;\n  esac\n}\n";
  return text + fmt::format("\n{} \"$@\"\n", function);
}

std::string FishCompletion(const CommandRow& table) {
  std::string text = fmt::format(
      "# fish completion of {0}. Generated; do not edit.\ncomplete -c {0} -f\n", table.name);
  for (const OptionRow& option : table.options) {
    if (!option.positional()) text += FishOption(table.name, "", option);
  }
  for (const CommandRow& command : table.commands) text += FishCommand(table.name, command);
  return text;
}

}  // namespace kvtier
