// SPDX-License-Identifier: Apache-2.0
// kvtierctl config: the configuration in effect, and what in it is not the default.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <boost/json.hpp>
#include <memory>

#include "tools/kvtierctl/ask.h"
#include "tools/kvtierctl/command.h"
#include "tools/support/terminal.h"

namespace kvtier {
namespace {

namespace json = boost::json;

// A key to show, and whether its value is not the default.
struct Key {
  std::string name;
  json::value value;
  json::value standard;
  [[nodiscard]] bool changed() const { return value != standard; }
};
struct Section {
  std::string header;
  std::vector<Key> keys;
};

Section SectionOf(std::string header, const json::object& values, const json::object* standard) {
  Section section{std::move(header), {}};
  for (const auto& [name, value] : values) {
    const json::value* known = standard != nullptr ? standard->if_contains(name) : nullptr;
    section.keys.push_back({name, value, known != nullptr ? *known : json::value()});
  }
  return section;
}

std::vector<Section> SectionsOf(const json::object& config, const json::object& defaults) {
  std::vector<Section> sections;
  for (const auto& [name, value] : config) {
    const std::string text(name);
    const json::value* standard = defaults.if_contains(name);
    if (const json::object* values = value.if_object()) {
      sections.push_back(SectionOf(fmt::format("[{}]", text), *values,
                                   standard != nullptr ? standard->if_object() : nullptr));
    }
    if (!value.is_array()) continue;
    // The defaults have one element, of which each key is at its default.
    const json::array* const defaults_of_one = standard != nullptr ? standard->if_array() : nullptr;
    const bool known = defaults_of_one != nullptr && !defaults_of_one->empty();
    for (const json::value& element : value.get_array()) {
      if (const json::object* values = element.if_object()) {
        sections.push_back(SectionOf(fmt::format("[[{}]]", text), *values,
                                     known ? defaults_of_one->front().if_object() : nullptr));
      }
    }
  }
  return sections;
}

std::string ToToml(const std::vector<Section>& sections, bool changed_only,
                   const Terminal& terminal) {
  std::string text;
  for (const Section& section : sections) {
    std::string keys;
    for (const Key& key : section.keys) {
      if (changed_only && !key.changed()) continue;
      // TOML and JSON write texts, numbers, booleans and lists alike.
      const std::string line = fmt::format("{} = {}", key.name, json::serialize(key.value));
      keys += terminal.Style(line, key.changed() ? TextStyle::kBold : TextStyle::kPlain);
      if (key.changed() && !key.standard.is_null()) {
        keys += fmt::format("  # default {}", json::serialize(key.standard));
      }
      keys += '\n';
    }
    if (changed_only && keys.empty()) continue;
    text += fmt::format("{}{}\n{}", text.empty() ? "" : "\n", section.header, keys);
  }
  return text.empty() ? "# everything is as by default" : text;
}

std::string ToJson(const std::vector<Section>& sections, const json::object& config) {
  json::array changed;
  for (const Section& section : sections) {
    for (const Key& key : section.keys) {
      if (!key.changed()) continue;
      const size_t brackets = section.header.starts_with("[[") ? 2 : 1;
      const std::string name =
          section.header.substr(brackets, section.header.size() - 2 * brackets);
      changed.push_back(
          {{"key", name + "." + key.name}, {"value", key.value}, {"default", key.standard}});
    }
  }
  json::object document = config;
  document.stable_erase("schema");
  return json::serialize(json::object{{"schema", "kvtier.effective_config/1"},
                                      {"config", std::move(document)},
                                      {"changed", std::move(changed)}});
}

void ShowConfig(bool changed_only, CommandContext* context) {
  const auto config = Ask(*context, "config");
  if (!config) return context->Fail(config.error());
  const auto defaults = Ask(*context, "config_defaults");
  if (!defaults) return context->Fail(defaults.error());
  const std::vector<Section> sections = SectionsOf(config->get_object(), defaults->get_object());
  context->Print(context->json ? ToJson(sections, config->get_object())
                               : ToToml(sections, changed_only, Terminal(stdout)));
}

}  // namespace

void AddConfigCommand(CLI::App* app, CommandContext* context) {
  CLI::App* command = app->add_subcommand(
      "config", "Show the configuration in effect, and what in it is not the default.");
  const auto changed_only = std::make_shared<bool>(false);
  command->add_flag("--changed", *changed_only, "Only values that are not the default.");
  command->footer(
      "The output is a configuration file that kvtierd takes.\n"
      "Example:\n"
      "  kvtierctl config --changed");
  command->callback([changed_only, context] { ShowConfig(*changed_only, context); });
}

}  // namespace kvtier
