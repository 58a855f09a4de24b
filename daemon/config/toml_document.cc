// SPDX-License-Identifier: Apache-2.0
#include "daemon/config/toml_document.h"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <array>
#include <tuple>

namespace kvtier {
namespace {

TomlPosition PositionOf(const toml::source_region& region) {
  return {region.begin.line, region.begin.column};
}

TomlTable ConvertTable(const toml::table& table);

TomlValue Convert(const toml::node& node) {
  TomlValue value;
  value.position = PositionOf(node.source());
  if (const auto* boolean = node.as_boolean()) {
    value.data = boolean->get();
  } else if (const auto* integer = node.as_integer()) {
    value.data = integer->get();
  } else if (const auto* number = node.as_floating_point()) {
    value.data = number->get();
  } else if (const auto* text = node.as_string()) {
    value.data = text->get();
  } else if (const auto* array = node.as_array()) {
    TomlArray items;
    for (const toml::node& item : *array) items.push_back(Convert(item));
    value.data = std::move(items);
  } else if (const auto* table = node.as_table()) {
    value.data = ConvertTable(*table);
  }
  return value;
}

TomlTable ConvertTable(const toml::table& table) {
  TomlTable entries;
  for (const auto& [key, node] : table) {
    entries.push_back({std::string(key.str()), PositionOf(key.source()), Convert(node)});
  }
  // The library keeps keys sorted by name. In the file's order, the first mistake in the file is
  // the first one told.
  std::ranges::stable_sort(entries, {}, [](const TomlEntry& entry) {
    return std::tuple(entry.position.line, entry.position.column);
  });
  return entries;
}

// The line of the first header of a section; 0: none.
size_t LineOfSection(std::string_view text, std::string_view header) {
  for (size_t line = 1; !text.empty(); ++line) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view row = text.substr(0, end);
    const size_t begin = row.find_first_not_of(" \t");
    if (begin != row.npos && row.substr(begin).starts_with(header)) return line;
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return 0;
}

// Advice about mistakes that are made often, to follow the library's own words; empty for others.
std::string Advice(std::string_view text, const toml::parse_error& error) {
  const std::string_view what = error.description();
  if (what.find("expected digit, saw") != what.npos) {
    return "; sizes and durations stand in quotes: \"16GiB\", \"10min\"";
  }
  constexpr std::string_view kTwice = "redefine existing table '";
  if (const size_t at = what.find(kTwice); at != what.npos) {
    const std::string_view rest = what.substr(at + kTwice.size());
    const size_t line = LineOfSection(text, fmt::format("[{}]", rest.substr(0, rest.find('\''))));
    if (line > 0) return fmt::format("; it begins in line {}: put its keys there", line);
  }
  return {};
}

}  // namespace

std::string_view TomlValue::KindName() const {
  static constexpr std::array<std::string_view, 7> kNames = {
      "a date or time", "a boolean", "an integer", "a decimal number",
      "a string",       "a list",    "a table"};
  return kNames[data.index()];
}

tl::expected<TomlTable, TomlSyntaxError> ParseToml(std::string_view text) {
  try {
    return ConvertTable(toml::parse(text));
  } catch (const toml::parse_error& error) {
    return tl::unexpected(TomlSyntaxError{std::string(error.description()) + Advice(text, error),
                                          PositionOf(error.source())});
  }
}

}  // namespace kvtier
