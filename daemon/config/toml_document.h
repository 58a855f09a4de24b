// SPDX-License-Identifier: Apache-2.0
// A TOML file as plain values that know where they stood, so that every complaint about a
// configuration can name a line and a column.
//
// The library that parses stays inside toml_document.cc. Values own their texts; nothing points
// into the parsed text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/result.h"

namespace kvtier {

// Line and column are counted from 1.
struct TomlPosition {
  uint32_t line = 0;
  uint32_t column = 0;
};

struct TomlEntry;
struct TomlValue;
using TomlArray = std::vector<TomlValue>;
// In the file's order.
using TomlTable = std::vector<TomlEntry>;

// Dates and times, which the configuration has no use for, are std::monostate.
struct TomlValue {
  std::variant<std::monostate, bool, int64_t, double, std::string, TomlArray, TomlTable> data;
  TomlPosition position;

  // Names the kind of value in messages: "an integer", "a string", ...
  [[nodiscard]] std::string_view KindName() const;
};

struct TomlEntry {
  std::string key;
  TomlPosition position;
  TomlValue value;
};

struct TomlSyntaxError {
  std::string message;
  TomlPosition position;
};

// Parses a whole document. Any thread.
[[nodiscard]] tl::expected<TomlTable, TomlSyntaxError> ParseToml(std::string_view text);

}  // namespace kvtier
