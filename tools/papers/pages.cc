// SPDX-License-Identifier: Apache-2.0
#include "tools/papers/pages.h"

#include <fmt/format.h>

#include "daemon/config/config_schema.h"
#include "daemon/config/config_value.h"
#include "tools/papers/roff.h"

namespace kvtier {
namespace {

bool IsHelp(const OptionRow& option) {
  return !option.positional() && option.names.back() == "--help";
}

std::string Term(const OptionRow& option) {
  std::string term;
  for (const std::string& name : option.names) term += (term.empty() ? "" : ", ") + name;
  if (option.positional()) return option.argument + (option.repeated ? "..." : "");
  return option.argument.empty() ? term : term + " " + option.argument;
}

std::string Meaning(const OptionRow& option) {
  std::string text = option.help;
  if (!option.choices.empty()) {
    std::string list;
    for (const std::string& choice : option.choices) {
      list += (list.empty() ? "" : ", ") + fmt::format("`{}`", choice);
    }
    text += fmt::format(" One of {}.", list);
  }
  if (!option.standard.empty() && option.standard != "\"\"") {
    text += fmt::format(" The default is `{}`.", option.standard);
  }
  return text;
}

void AddOptions(const std::vector<OptionRow>& options, bool with_help, RoffPage* page) {
  for (const OptionRow& option : options) {
    if (!IsHelp(option) || with_help) page->Item(Term(option), Meaning(option));
  }
}

std::string Usage(const CommandRow& command) {
  std::string usage = command.name;
  bool any_option = false;
  for (const OptionRow& option : command.options)
    any_option |= !option.positional() && !IsHelp(option);
  if (any_option) usage += " [OPTIONS]";
  for (const OptionRow& option : command.options) {
    if (option.positional()) {
      usage += option.required ? " " + Term(option) : fmt::format(" [{}]", Term(option));
    }
  }
  return usage;
}

void AddCommand(const CommandRow& command, RoffPage* page) {
  page->Subsection(Usage(command));
  page->Paragraph(command.help);
  AddOptions(command.options, false, page);
  if (!command.notes.empty()) page->Paragraph(command.notes);
  std::string examples;
  for (const std::string& example : command.examples) examples += example + "\n";
  if (!examples.empty()) page->Example(examples);
}

void AddKvtierctlEnd(RoffPage* page) {
  page->Section("Exit status");
  page->Item("0", "Done.");
  page->Item("1", "Failed.");
  page->Item("2", "The command line is wrong, or the daemon refused what it asks for.");
  page->Item("3", "The daemon cannot be reached.");
  page->Item("4", "What was asked for is not there.");
  page->Item("5", "Bytes are not what they should be.");
  page->Item("6", "The daemon was silent for too long; see `--timeout`.");
  page->Item("7",
             "This user may not do that: administration is for root and the daemon's own user.");
  page->Item("8", "Done, but not all of it.");
  page->Section("Environment");
  page->Item("NO_COLOR", "If set and not empty, nothing is coloured.");
  page->Item("TERM", "If `dumb`, nothing is coloured or repainted.");
  page->Item("TMPDIR", "Where private daemons of `--spawn` work; `/tmp` if not set.");
  page->Section("See also");
  page->Paragraph("`kvtierd`(8), `kvtierd.toml`(5)");
}

}  // namespace

std::string KvtierctlPage(const CommandRow& table, const PageEdition& edition) {
  RoffPage page({"kvtierctl", "1", edition.date, edition.version,
                 "look at a KV cache daemon, check what it keeps, and exercise it"});
  page.Section("Synopsis");
  page.Paragraph("`kvtierctl` [OPTIONS] COMMAND [ARGUMENTS]");
  page.Section("Description");
  page.Paragraph(
      "`kvtierctl` speaks to a `kvtierd` on this host. Most commands use the daemon's admin socket "
      "and so need root or the daemon's own user. Results go to standard output, progress and "
      "complaints to standard error. With `--json` a result is one JSON document whose member "
      "`schema` names its form and version; members are only ever added to a version. An error is "
      "then a document, too, with the schema `kvtier.error/1`.");
  page.Section("Options");
  page.Paragraph("These may stand before or after the command.");
  AddOptions(table.options, true, &page);
  page.Section("Commands");
  for (const CommandRow& command : table.commands) AddCommand(command, &page);
  AddKvtierctlEnd(&page);
  return page.text();
}

std::string KvtierdPage(const CommandRow& table, const PageEdition& edition) {
  RoffPage page({"kvtierd", "8", edition.date, edition.version,
                 "keep KV cache blocks of LLM inference in three tiers"});
  page.Section("Synopsis");
  page.Paragraph("`kvtierd` [OPTIONS]");
  page.Section("Description");
  page.Paragraph(
      "`kvtierd` owns a pool of KV cache blocks that inference processes map and use in place. "
      "Blocks that nobody references sink from the pool to host memory to disk, and come back when "
      "a prompt begins with them. It runs in the foreground and logs to standard error; once it "
      "serves, it prints a line that begins with `READY` to standard output.");
  page.Section("Options");
  AddOptions(table.options, true, &page);
  page.Section("Signals");
  page.Item("SIGTERM, SIGINT",
            "Writes the blocks that should survive to disk, for as long as `drain.deadline` "
            "allows, and ends. A second one ends at once.");
  page.Item("SIGHUP",
            "Reads the configuration again: takes what can change while the daemon runs, and logs "
            "what waits for a restart. A mistake changes nothing.");
  page.Section("Exit status");
  page.Item("0", "Ended as asked.");
  page.Item("1", "Failed.");
  page.Item("2", "The command line is wrong.");
  page.Item("78", "The configuration is wrong; starting again will not help.");
  page.Section("Files");
  page.Item("/run/kvtier/kvtier.sock", "The socket for inference processes.");
  page.Item("/run/kvtier/admin.sock", "The socket for `kvtierctl`.");
  page.Item("/var/lib/kvtier", "The disk tier.");
  page.Section("See also");
  page.Paragraph("`kvtierctl`(1), `kvtierd.toml`(5)");
  return page.text();
}

std::string ConfigPage(const PageEdition& edition) {
  RoffPage page({"kvtierd.toml", "5", edition.date, edition.version, "configuration of kvtierd"});
  page.Section("Description");
  page.Paragraph(
      "`kvtierd --config FILE` reads a TOML file. What it does not understand is an error that "
      "names line, column and what is allowed. `kvtierd --config FILE --check-config` checks a "
      "file and prints all values in effect. `--set section.key=value` overrides the file.");
  page.Paragraph(
      "Sizes are strings with a unit (\"256MiB\", \"1.5TiB\", \"4GB\"; B, KiB to TiB are powers of "
      "1,024, kB to TB of 1,000). Durations are whole numbers with a unit (\"500ms\", \"30s\", "
      "\"10min\", \"24h\", \"7d\"); keys that end in _ms are plain integers of milliseconds. A "
      "number without a unit is never taken for either.");
  Config defaults;
  // The schema's accessors look at the last tenant.
  defaults.tenants.emplace_back();
  for (const ConfigSection& section : ConfigSections()) {
    page.Section(section.repeated ? fmt::format("[[{}]]", section.name)
                                  : fmt::format("[{}]", section.name));
    page.Paragraph(section.help);
    for (const ConfigKey& key : ConfigKeys()) {
      if (key.section != section.name) continue;
      page.Item(key.name, fmt::format("{} Allowed: {}. The default is `{}`.", key.help,
                                      DescribeAllowed(key), FormatConfigValue(key, defaults)));
    }
  }
  page.Section("See also");
  page.Paragraph("`kvtierd`(8), `kvtierctl`(1)");
  return page.text();
}

}  // namespace kvtier
