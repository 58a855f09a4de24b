// SPDX-License-Identifier: Apache-2.0
// The one table of configuration keys. Reading, checking, showing and documenting the configuration
// are all driven by it; this header declares the table, the conversion of single values
// (config_value.cc) and the texts that are made from it (config_reference.cc).
//
// All functions are pure and may be called from any thread. A key that is added to the table is
// thereby read, checked, shown, compared on reload and documented.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/result.h"
#include "daemon/config/config.h"
#include "daemon/config/toml_document.h"

namespace kvtier {

// A value out of a fixed list of names, as its position in ConfigKey::choices, whatever its enum.
struct ChoiceField {
  std::function<size_t()> get;
  std::function<void(size_t)> set;
};

// Several values out of such a list, in the order in which they were given.
struct ChoiceListField {
  std::function<std::vector<size_t>()> get;
  std::function<void(std::vector<size_t>)> set;
};

// One size, a list of them, or a share of the memory that is free.
struct SizesField {
  struct Value {
    std::vector<uint64_t> bytes;  // empty: `share` counts
    double share = 0;
  };
  std::function<Value()> get;
  std::function<void(const Value&)> set;
};

// Where a key's value lives in a Config: a pointer into it, or a pair of accessors. Valid as long
// as the Config is neither destroyed nor given other tenants.
using ConfigField = std::variant<bool*, uint32_t*, uint64_t*, int64_t*, double*, std::string*,
                                 std::vector<uint32_t>*, std::vector<std::string>*, SizesField,
                                 ChoiceField, ChoiceListField>;

// How a value is written in the file.
enum class ConfigType : uint8_t {
  kBoolean,
  kCount,         // uint32_t: an integer
  kSize,          // uint64_t: a string with a unit of bytes
  kDuration,      // int64_t: a string with a unit of time
  kMilliseconds,  // int64_t: an integer; the key's name ends in _ms
  kFraction,      // double
  kText,          // std::string
  kPath,          // std::string
  kChoice,        // ChoiceField: one of `choices`
  kIdList,        // std::vector<uint32_t>: user or group ids
  kNameList,      // std::vector<std::string>: names of users
  kSizes,         // SizesField: a string with a unit of bytes or "N%", or a list of the former
  kChoiceList,    // ChoiceListField: one of `choices`, or a list of them
};

// One row of the table. Rows live as long as the process.
struct ConfigKey {
  std::string_view section;
  std::string_view name;
  ConfigType type = ConfigType::kText;
  // The field in `config`; for keys of [[tenant]], in the last of its tenants.
  ConfigField (*field)(Config& config) = nullptr;
  // Inclusive, in the type's own unit (bytes, milliseconds, items); unused where it has none.
  double min = 0;
  double max = 0;
  std::vector<std::string_view> choices;
  std::string_view help;
  // A running daemon takes a new value over on SIGHUP; otherwise it takes a restart.
  bool reloadable = false;
};

struct ConfigSection {
  std::string_view name;
  bool repeated = false;  // [[name]]
  std::string_view help;
};

inline constexpr std::string_view kTenantSection = "tenant";

// As it stands above the section's keys: "[pool]", "[[tenant]]".
[[nodiscard]] std::string SectionHeader(const ConfigSection& section);

// In the order in which they are shown.
[[nodiscard]] std::span<const ConfigSection> ConfigSections();
[[nodiscard]] std::span<const ConfigKey> ConfigKeys();

// Sets `key` in `config`. Errors: kInvalidArgument "config_wrong_type" or "config_out_of_range";
// the context names the allowed values, but not the place in the file.
[[nodiscard]] Status AssignConfigValue(const ConfigKey& key, const TomlValue& value,
                                       Config* config);

// The value of `key` as it would be written in the file.
[[nodiscard]] std::string FormatConfigValue(const ConfigKey& key, const Config& config);

// For people: `a size with a unit, "64KiB" to "1GiB"`.
[[nodiscard]] std::string DescribeAllowed(const ConfigKey& key);

// "256MiB": the largest binary unit that expresses `bytes` exactly.
[[nodiscard]] std::string FormatExactByteSize(uint64_t bytes);

// Every key with its value in effect, as a TOML document that LoadConfig reads back to the same.
[[nodiscard]] std::string FormatConfig(const Config& config);

// The configuration that packages install: every key explained and commented out.
[[nodiscard]] std::string ConfigExampleToml();

// The sections of docs/CONFIGURATION.md.
[[nodiscard]] std::string ConfigReferenceMarkdown();

// "all", "host", "cuda:3".
[[nodiscard]] std::string DeviceChoiceName(DeviceChoice choice);

// The N of cuda:N. REQUIRES: `choice` is a GPU's.
[[nodiscard]] int OrdinalOf(DeviceChoice choice);

}  // namespace kvtier
