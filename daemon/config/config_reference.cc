// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cctype>

#include "daemon/config/config_schema.h"

namespace kvtier {
namespace {

constexpr std::string_view kExampleHead =
    R"(# The configuration of kvtierd. Every key is here with its default; remove the # before those
# that you want to change, and before the [section] above them. Or write sections of your own at
# the end. Check with:   kvtierd --check-config --config /etc/kvtier/kvtierd.toml
# Take over what can change at run time: systemctl reload kvtierd
)";

// The help as comment lines of at most 100 columns, without Markdown's backquotes.
std::string Commented(std::string_view help) {
  constexpr size_t kColumns = 100;
  std::string text(1, '#');
  size_t column = 1;
  std::string word;
  const auto end_word = [&] {
    if (column + 1 + word.size() > kColumns) {
      text.append("\n#");
      column = 1;
    }
    text.append(1, ' ').append(word);
    column += 1 + word.size();
    word.clear();
  };
  for (const char c : help) {
    if (c == ' ') end_word();
    if (c != ' ' && c != '`') word.push_back(c);
  }
  end_word();
  text.push_back('\n');
  return text;
}

std::string Capitalised(std::string text) {
  text[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(text[0])));
  return text;
}

// Escapes what would end a table cell.
std::string Cell(std::string_view text) {
  std::string cell;
  for (const char c : text) {
    if (c == '|') cell.push_back('\\');
    cell.push_back(c);
  }
  return cell;
}

void AppendKeys(const ConfigSection& section, const Config& config, std::string* text) {
  for (const ConfigKey& key : ConfigKeys()) {
    if (key.section != section.name) continue;
    // The two are not given together.
    const bool has_drives = !config.disk.directories.empty();
    if (has_drives && section.name == "disk" && key.name == "directory") continue;
    *text += fmt::format("{} = {}\n", key.name, FormatConfigValue(key, config));
  }
}

}  // namespace

std::string FormatConfig(const Config& config) {
  std::string text;
  for (const ConfigSection& section : ConfigSections()) {
    if (!section.repeated) {
      text += fmt::format("{}{}\n", text.empty() ? "" : "\n", SectionHeader(section));
      AppendKeys(section, config, &text);
      continue;
    }
    for (const TenantConfig& tenant : config.tenants) {
      // The schema's accessors look at the last tenant.
      Config only;
      only.tenants = {tenant};
      text += fmt::format("\n{}\n", SectionHeader(section));
      AppendKeys(section, only, &text);
    }
  }
  return text;
}

std::string ConfigExampleToml() {
  Config defaults;
  defaults.tenants.push_back({.name = "inference", .uids = {1000}});
  std::string text(kExampleHead);
  for (const ConfigSection& section : ConfigSections()) {
    text += fmt::format("\n{}", Commented(section.help));
    // A section that is there may not be written a second time, by an administrator who appends.
    text += fmt::format("#{}\n", SectionHeader(section));
    for (const ConfigKey& key : ConfigKeys()) {
      if (key.section != section.name) continue;
      text += fmt::format("\n{}{}#{} = {}\n", Commented(key.help),
                          Commented(Capitalised(DescribeAllowed(key)) + "."), key.name,
                          FormatConfigValue(key, defaults));
    }
  }
  return text;
}

std::string ConfigReferenceMarkdown() {
  Config defaults;
  defaults.tenants.emplace_back();
  std::string text;
  for (const ConfigSection& section : ConfigSections()) {
    text += fmt::format(
        "\n## {}\n\n{}\n\n| key | default | allowed | changes on | meaning "
        "|\n|---|---|---|---|---|\n",
        SectionHeader(section), section.help);
    for (const ConfigKey& key : ConfigKeys()) {
      if (key.section != section.name) continue;
      text += fmt::format("| `{}` | `{}` | {} | {} | {} |\n", key.name,
                          FormatConfigValue(key, defaults), Cell(DescribeAllowed(key)),
                          key.reloadable ? "reload" : "restart", Cell(key.help));
    }
  }
  return text;
}

}  // namespace kvtier
