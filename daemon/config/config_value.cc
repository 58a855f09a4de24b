// SPDX-License-Identifier: Apache-2.0
// Every value comes from a file that a person wrote, so that each refusal names the allowed
// values. A value is assigned only when it has been checked: on error the Config keeps the earlier
// value.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/result.h"
#include "base/units.h"
#include "daemon/config/config_schema.h"

namespace kvtier {
namespace {

constexpr double kMaxPercent = 99;

// The texts of both errors continue the key's name, which the reader puts before them.
tl::unexpected<Error> WrongType(const ConfigKey& key, const TomlValue& value) {
  return MakeError(ErrorCode::kInvalidArgument, "config_wrong_type",
                   fmt::format("must be {}, not {}", DescribeAllowed(key), value.KindName()));
}

// `units` are named where the value could not be read.
tl::unexpected<Error> OutOfRange(const ConfigKey& key, std::string_view shown,
                                 std::string_view units = "") {
  return MakeError(ErrorCode::kInvalidArgument, "config_out_of_range",
                   fmt::format("{} is not allowed; must be {}{}{}", shown, DescribeAllowed(key),
                               units.empty() ? "" : "; units are ", units));
}

template <typename T>
T& FieldOf(const ConfigKey& key, Config& config) {
  return *std::get<T*>(key.field(config));
}

template <typename T>
const T& FieldOf(const ConfigKey& key, const Config& config) {
  // The accessors of the table only form a pointer, so one table serves reading, too.
  return *std::get<T*>(key.field(const_cast<Config&>(config)));
}

template <typename T, typename Number>
Status AssignInRange(const ConfigKey& key, Number number, std::string_view shown, Config* config) {
  // Compared as double, which the bounds are, and in a form that refuses NaN as well.
  const auto wide = static_cast<double>(number);
  if (!(wide >= key.min && wide <= key.max)) return OutOfRange(key, shown);
  FieldOf<T>(key, *config) = static_cast<T>(number);
  return {};
}

template <typename T>
Status AssignInteger(const ConfigKey& key, const TomlValue& value, Config* config) {
  const auto* number = std::get_if<int64_t>(&value.data);
  if (number == nullptr) return WrongType(key, value);
  return AssignInRange<T>(key, *number, std::to_string(*number), config);
}

Status AssignFraction(const ConfigKey& key, const TomlValue& value, Config* config) {
  double number = 0;
  if (const auto* fraction = std::get_if<double>(&value.data)) {
    number = *fraction;
  } else if (const auto* whole = std::get_if<int64_t>(&value.data)) {
    number = static_cast<double>(*whole);
  } else {
    return WrongType(key, value);
  }
  return AssignInRange<double>(key, number, fmt::format("{}", number), config);
}

// A plain number is refused: whether 16 means bytes or GiB should not have to be guessed.
Result<uint64_t> ReadSize(const ConfigKey& key, const TomlValue& value) {
  const auto* text = std::get_if<std::string>(&value.data);
  if (text == nullptr) return WrongType(key, value);
  const Result<uint64_t> bytes = ParseByteSize(*text);
  if (!bytes) {
    return OutOfRange(key, fmt::format("\"{}\"", *text), "B, KiB, MiB, GiB, TiB, kB, MB, GB, TB");
  }
  const bool allowed =
      static_cast<double>(*bytes) >= key.min && static_cast<double>(*bytes) <= key.max;
  if (!allowed) return OutOfRange(key, fmt::format("\"{}\"", *text));
  return *bytes;
}

Status AssignSize(const ConfigKey& key, const TomlValue& value, Config* config) {
  KVT_ASSIGN_OR_RETURN(FieldOf<uint64_t>(key, *config), ReadSize(key, value));
  return {};
}

// A share of all is refused: what else uses the device needs some of it.
Result<double> ReadShare(const ConfigKey& key, const std::string& text) {
  double percent = 0;
  const char* const end = text.data() + text.size() - 1;
  const auto [read, error] = std::from_chars(text.data(), end, percent);
  if (error != std::errc() || read != end || !(percent > 0 && percent <= kMaxPercent)) {
    return OutOfRange(key, fmt::format("\"{}\"", text));
  }
  return percent / 100;
}

Status AssignSizes(const ConfigKey& key, const TomlValue& value, Config* config) {
  SizesField::Value sizes;
  const auto* const text = std::get_if<std::string>(&value.data);
  const auto* const items = std::get_if<TomlArray>(&value.data);
  if (text != nullptr && text->ends_with('%')) {
    KVT_ASSIGN_OR_RETURN(sizes.share, ReadShare(key, *text));
  } else if (items == nullptr) {
    KVT_ASSIGN_OR_RETURN(const uint64_t bytes, ReadSize(key, value));
    sizes.bytes = {bytes};
  } else {
    for (const TomlValue& item : *items) {
      KVT_ASSIGN_OR_RETURN(const uint64_t bytes, ReadSize(key, item));
      sizes.bytes.push_back(bytes);
    }
    if (sizes.bytes.empty()) return OutOfRange(key, "an empty list");
  }
  std::get<SizesField>(key.field(*config)).set(sizes);
  return {};
}

Status AssignDuration(const ConfigKey& key, const TomlValue& value, Config* config) {
  const auto* text = std::get_if<std::string>(&value.data);
  if (text == nullptr) return WrongType(key, value);
  const Result<int64_t> milliseconds = ParseDuration(*text);
  if (!milliseconds) return OutOfRange(key, fmt::format("\"{}\"", *text), "ms, s, min, h, d");
  return AssignInRange<int64_t>(key, *milliseconds, fmt::format("\"{}\"", *text), config);
}

// A NUL byte would end a path early for the kernel, and so name another file than the one shown.
Status AssignText(const ConfigKey& key, const TomlValue& value, Config* config) {
  const auto* text = std::get_if<std::string>(&value.data);
  if (text == nullptr) return WrongType(key, value);
  const auto length = static_cast<double>(text->size());
  if (length < key.min || length > key.max || text->find('\0') != std::string::npos) {
    return OutOfRange(key, fmt::format("a string of {} bytes", text->size()));
  }
  FieldOf<std::string>(key, *config) = *text;
  return {};
}

Result<size_t> ReadChoice(const ConfigKey& key, const TomlValue& value) {
  const auto* text = std::get_if<std::string>(&value.data);
  if (text == nullptr) return WrongType(key, value);
  const auto found = std::ranges::find(key.choices, *text);
  if (found == key.choices.end()) return OutOfRange(key, fmt::format("\"{}\"", *text));
  return static_cast<size_t>(found - key.choices.begin());
}

Status AssignChoice(const ConfigKey& key, const TomlValue& value, Config* config) {
  KVT_ASSIGN_OR_RETURN(const size_t choice, ReadChoice(key, value));
  std::get<ChoiceField>(key.field(*config)).set(choice);
  return {};
}

Status AssignChoiceList(const ConfigKey& key, const TomlValue& value, Config* config) {
  const auto* items = std::get_if<TomlArray>(&value.data);
  const TomlArray one = {value};
  if (items == nullptr) items = &one;
  const auto count = static_cast<double>(items->size());
  if (count < key.min || count > key.max) {
    return OutOfRange(key, fmt::format("a list of {}", items->size()));
  }
  std::vector<size_t> choices;
  for (const TomlValue& item : *items) {
    KVT_ASSIGN_OR_RETURN(const size_t choice, ReadChoice(key, item));
    choices.push_back(choice);
  }
  std::get<ChoiceListField>(key.field(*config)).set(std::move(choices));
  return {};
}

Status AssignIdList(const ConfigKey& key, const TomlValue& value, Config* config) {
  const auto* items = std::get_if<TomlArray>(&value.data);
  if (items == nullptr) return WrongType(key, value);
  if (static_cast<double>(items->size()) > key.max) {
    return OutOfRange(key, fmt::format("a list of {}", items->size()));
  }
  std::vector<uint32_t> ids;
  for (const TomlValue& item : *items) {
    const auto* id = std::get_if<int64_t>(&item.data);
    if (id == nullptr) return WrongType(key, item);
    // The highest value means "no such id" to the kernel, and must not name a tenant's user.
    if (*id < 0 || *id >= UINT32_MAX) return OutOfRange(key, std::to_string(*id));
    ids.push_back(static_cast<uint32_t>(*id));
  }
  FieldOf<std::vector<uint32_t>>(key, *config) = std::move(ids);
  return {};
}

Status AssignNameList(const ConfigKey& key, const TomlValue& value, Config* config) {
  const auto* items = std::get_if<TomlArray>(&value.data);
  if (items == nullptr) return WrongType(key, value);
  if (static_cast<double>(items->size()) > key.max) {
    return OutOfRange(key, fmt::format("a list of {}", items->size()));
  }
  std::vector<std::string> names;
  for (const TomlValue& item : *items) {
    const auto* name = std::get_if<std::string>(&item.data);
    if (name == nullptr) return WrongType(key, item);
    if (name->empty() || name->find('\0') != std::string::npos) {
      return OutOfRange(key, "an empty name");
    }
    names.push_back(*name);
  }
  FieldOf<std::vector<std::string>>(key, *config) = std::move(names);
  return {};
}

// As a TOML basic string, which reads back to the same text.
std::string Quoted(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted.push_back('\\');
    if (static_cast<unsigned char>(c) < 0x20) {
      quoted += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      quoted.push_back(c);
    }
  }
  return quoted + "\"";
}

std::string FormatChoice(const ConfigKey& key, const Config& config) {
  const ConfigField field = key.field(const_cast<Config&>(config));
  return Quoted(key.choices[std::get<ChoiceField>(field).get()]);
}

std::string FormatList(const std::vector<std::string>& items) {
  return fmt::format("[{}]", fmt::join(items, ", "));
}

std::string FormatChoiceList(const ConfigKey& key, const Config& config) {
  const ConfigField field = key.field(const_cast<Config&>(config));
  std::vector<std::string> names;
  for (const size_t choice : std::get<ChoiceListField>(field).get()) {
    names.push_back(Quoted(key.choices[choice]));
  }
  return names.size() == 1 ? names.front() : FormatList(names);
}

std::string FormatSizes(const ConfigKey& key, const Config& config) {
  const SizesField::Value value =
      std::get<SizesField>(key.field(const_cast<Config&>(config))).get();
  if (value.share > 0) return fmt::format("\"{:g}%\"", value.share * 100);
  std::vector<std::string> sizes;
  for (const uint64_t bytes : value.bytes) sizes.push_back(Quoted(FormatExactByteSize(bytes)));
  return sizes.size() == 1 ? sizes.front() : FormatList(sizes);
}

// Names that count up behind a colon ("cuda:0", "cuda:1" and so on) become the first and the last.
std::string ChoicesText(const std::vector<std::string_view>& choices) {
  std::vector<std::string> parts;
  for (auto first = choices.begin(); first != choices.end();) {
    const size_t colon = first->find(':');
    const auto end = std::find_if_not(first + 1, choices.end(), [&](std::string_view name) {
      return colon != std::string_view::npos && name.starts_with(first->substr(0, colon + 1));
    });
    const bool counts = end - first > 1;
    parts.push_back(counts ? fmt::format("\"{}\" to \"{}\"", *first, *(end - 1)) : Quoted(*first));
    first = end;
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

}  // namespace

Status AssignConfigValue(const ConfigKey& key, const TomlValue& value, Config* config) {
  switch (key.type) {
    case ConfigType::kBoolean: {
      const auto* boolean = std::get_if<bool>(&value.data);
      if (boolean == nullptr) return WrongType(key, value);
      FieldOf<bool>(key, *config) = *boolean;
      return {};
    }
    case ConfigType::kCount:
      return AssignInteger<uint32_t>(key, value, config);
    case ConfigType::kMilliseconds:
      return AssignInteger<int64_t>(key, value, config);
    case ConfigType::kSize:
      return AssignSize(key, value, config);
    case ConfigType::kDuration:
      return AssignDuration(key, value, config);
    case ConfigType::kFraction:
      return AssignFraction(key, value, config);
    case ConfigType::kText:
    case ConfigType::kPath:
      return AssignText(key, value, config);
    case ConfigType::kChoice:
      return AssignChoice(key, value, config);
    case ConfigType::kIdList:
      return AssignIdList(key, value, config);
    case ConfigType::kNameList:
      return AssignNameList(key, value, config);
    case ConfigType::kSizes:
      return AssignSizes(key, value, config);
    case ConfigType::kChoiceList:
      return AssignChoiceList(key, value, config);
  }
  KVT_CHECK(false);
}

std::string FormatConfigValue(const ConfigKey& key, const Config& config) {
  switch (key.type) {
    case ConfigType::kBoolean:
      return FieldOf<bool>(key, config) ? "true" : "false";
    case ConfigType::kCount:
      return std::to_string(FieldOf<uint32_t>(key, config));
    case ConfigType::kMilliseconds:
      return std::to_string(FieldOf<int64_t>(key, config));
    case ConfigType::kSize:
      return Quoted(FormatExactByteSize(FieldOf<uint64_t>(key, config)));
    case ConfigType::kDuration:
      return Quoted(FormatDuration(FieldOf<int64_t>(key, config)));
    case ConfigType::kFraction:
      return fmt::format("{}", FieldOf<double>(key, config));
    case ConfigType::kText:
    case ConfigType::kPath:
      return Quoted(FieldOf<std::string>(key, config));
    case ConfigType::kChoice:
      return FormatChoice(key, config);
    case ConfigType::kIdList:
      return fmt::format("[{}]", fmt::join(FieldOf<std::vector<uint32_t>>(key, config), ", "));
    case ConfigType::kNameList: {
      std::vector<std::string> quoted;
      for (const std::string& name : FieldOf<std::vector<std::string>>(key, config)) {
        quoted.push_back(Quoted(name));
      }
      return fmt::format("[{}]", fmt::join(quoted, ", "));
    }
    case ConfigType::kSizes:
      return FormatSizes(key, config);
    case ConfigType::kChoiceList:
      return FormatChoiceList(key, config);
  }
  KVT_CHECK(false);
}

std::string DescribeAllowed(const ConfigKey& key) {
  const auto whole = [](double value) { return static_cast<int64_t>(value); };
  switch (key.type) {
    case ConfigType::kBoolean:
      return "true or false";
    case ConfigType::kCount:
      return fmt::format("an integer, {} to {}", whole(key.min), whole(key.max));
    case ConfigType::kMilliseconds:
      return fmt::format("an integer of milliseconds, {} to {}", whole(key.min), whole(key.max));
    case ConfigType::kSize:
      return fmt::format("a size with a unit, \"{}\" to \"{}\"",
                         FormatExactByteSize(static_cast<uint64_t>(key.min)),
                         FormatExactByteSize(static_cast<uint64_t>(key.max)));
    case ConfigType::kDuration:
      return fmt::format("a duration with a unit, \"{}\" to \"{}\"", FormatDuration(whole(key.min)),
                         FormatDuration(whole(key.max)));
    case ConfigType::kFraction:
      return fmt::format("a number, {} to {}", key.min, key.max);
    case ConfigType::kText:
    case ConfigType::kPath:
      return fmt::format("a string of {} to {} bytes", whole(key.min), whole(key.max));
    case ConfigType::kChoice:
      return "one of " + ChoicesText(key.choices);
    case ConfigType::kIdList:
      return "a list of numeric ids";
    case ConfigType::kNameList:
      return "a list of names";
    case ConfigType::kSizes:
      return fmt::format(
          "a size with a unit, \"{}\" to \"{}\", a list of sizes, or a share up to \"{:g}%\"",
          FormatExactByteSize(static_cast<uint64_t>(key.min)),
          FormatExactByteSize(static_cast<uint64_t>(key.max)), kMaxPercent);
    case ConfigType::kChoiceList:
      return fmt::format("one of {}, or a list of up to {} of them", ChoicesText(key.choices),
                         whole(key.max));
  }
  KVT_CHECK(false);
}

std::string FormatExactByteSize(uint64_t bytes) {
  // A size that was given in decimal units is one again.
  for (const auto& [unit, name] :
       {std::pair(uint64_t{1'000'000'000'000}, "TB"), std::pair(uint64_t{1'000'000'000}, "GB"),
        std::pair(uint64_t{1'000'000}, "MB")}) {
    const bool whole = bytes != 0 && bytes % unit == 0;
    if (whole && bytes % kMiB != 0) return fmt::format("{}{}", bytes / unit, name);
  }
  static constexpr std::string_view kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  while (bytes != 0 && bytes % kKiB == 0 && unit + 1 < std::size(kUnits)) {
    bytes /= kKiB;
    ++unit;
  }
  return fmt::format("{}{}", bytes, kUnits[unit]);
}

int OrdinalOf(DeviceChoice choice) {
  return static_cast<int>(choice) - static_cast<int>(DeviceChoice::kCuda);
}

std::string DeviceChoiceName(DeviceChoice choice) {
  if (choice == DeviceChoice::kAll) return "all";
  if (choice == DeviceChoice::kHost) return "host";
  return fmt::format("cuda:{}", OrdinalOf(choice));
}

}  // namespace kvtier
