// SPDX-License-Identifier: Apache-2.0
#include "daemon/config/config_loader.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <numeric>

#include "daemon/config/config_check.h"
#include "daemon/config/config_schema.h"
#include "daemon/config/tenants.h"
#include "daemon/config/toml_document.h"

namespace kvtier {
namespace {

// Levenshtein's distance. One row of the matrix at a time: keys are short, and this runs only for a
// mistake.
size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, diagonal + 1, row[j] + 1});
    }
  }
  return row.back();
}

std::string_view Nearest(std::string_view word, const std::vector<std::string_view>& known) {
  return *std::ranges::min_element(
      known, {}, [word](std::string_view candidate) { return EditDistance(word, candidate); });
}

// Null if there is no such section.
const ConfigSection* FindSection(std::string_view name) {
  const auto sections = ConfigSections();
  const auto found = std::ranges::find(sections, name, &ConfigSection::name);
  return found == sections.end() ? nullptr : &*found;
}

// REQUIRES: there is such a section.
std::string HeaderOf(std::string_view name) { return SectionHeader(*FindSection(name)); }

const ConfigKey* FindKey(std::string_view section, std::string_view name) {
  for (const ConfigKey& key : ConfigKeys()) {
    if (key.section == section && key.name == name) return &key;
  }
  return nullptr;
}

// Where a document came from: messages name line and column for a file only, since an override is a
// single value.
enum class SourceKind : uint8_t { kFile, kOverride };

// Reads one document into a Config, past each mistake but one of TOML's own syntax; after a mistake
// the Config is to be discarded. Later documents overwrite earlier values, and `places` says for
// each key which one it came from.
class Reader {
 public:
  Reader(std::string_view source, SourceKind kind, Config* config)
      : source_(source), kind_(kind), config_(config) {}

  Status ReadDocument(std::string_view text) {
    const auto table = ParseToml(text);
    if (!table) return Fail(table.error().position, "config_syntax", table.error().message);
    Mistakes mistakes;
    for (const TomlEntry& entry : *table) mistakes.Add(ReadSection(entry));
    return std::move(mistakes).Take();
  }

 private:
  [[nodiscard]] std::string PlaceOf(TomlPosition position) const {
    if (kind_ == SourceKind::kOverride) return source_;
    return fmt::format("{}:{}:{}", source_, position.line, position.column);
  }

  tl::unexpected<Error> Fail(TomlPosition position, std::string reason,
                             std::string_view message) const {
    return MakeError(ErrorCode::kInvalidArgument, std::move(reason),
                     fmt::format("{}: {}", PlaceOf(position), message));
  }

  Status ReadSection(const TomlEntry& entry) {
    const ConfigSection* section = FindSection(entry.key);
    if (section == nullptr) return UnknownSection(entry);
    if (section->repeated) return ReadTenants(entry);
    const auto* table = std::get_if<TomlTable>(&entry.value.data);
    if (table == nullptr) {
      return Fail(entry.position, "config_wrong_type",
                  fmt::format("\"{0}\" must be a table, [{0}], not {1}", entry.key,
                              entry.value.KindName()));
    }
    return ReadKeys(*section, *table);
  }

  // The keys of a tenant go to the last of the list, where the table's accessors expect them.
  Status ReadTenants(const TomlEntry& entry) {
    const auto* items = std::get_if<TomlArray>(&entry.value.data);
    const auto is_table = [](const TomlValue& item) {
      return std::holds_alternative<TomlTable>(item.data);
    };
    if (items == nullptr || !std::ranges::all_of(*items, is_table)) {
      return Fail(entry.position, "config_wrong_type",
                  "\"tenant\" must be a list of tables, [[tenant]]");
    }
    Mistakes mistakes;
    for (const TomlValue& item : *items) {
      config_->tenants.emplace_back().place = PlaceOf(item.position);
      mistakes.Add(ReadKeys(*FindSection(kTenantSection), std::get<TomlTable>(item.data)));
    }
    return std::move(mistakes).Take();
  }

  Status ReadKeys(const ConfigSection& section, const TomlTable& table) {
    Mistakes mistakes;
    for (const TomlEntry& entry : table) mistakes.Add(ReadKey(section, entry));
    return std::move(mistakes).Take();
  }

  Status ReadKey(const ConfigSection& section, const TomlEntry& entry) {
    const ConfigKey* key = FindKey(section.name, entry.key);
    if (key == nullptr) return UnknownKey(section, entry);
    if (Status assigned = AssignConfigValue(*key, entry.value, config_); !assigned) {
      return Fail(entry.value.position, assigned.error().reason,
                  fmt::format("{}.{} {}", section.name, key->name, assigned.error().context));
    }
    const std::string place = PlaceOf(entry.value.position);
    if (section.repeated) {
      config_->tenants.back().places[std::string(key->name)] = place;
    } else {
      config_->places[fmt::format("{}.{}", section.name, key->name)] = place;
    }
    return {};
  }

  Status UnknownSection(const TomlEntry& entry) const {
    std::vector<std::string> known;
    for (const ConfigKey& key : ConfigKeys()) {
      if (key.name == entry.key) known.push_back(HeaderOf(key.section));
    }
    // [name] or [[name]], and not name = value.
    const auto* const items = std::get_if<TomlArray>(&entry.value.data);
    const TomlValue& first = items != nullptr && !items->empty() ? items->front() : entry.value;
    if (!known.empty() && !std::holds_alternative<TomlTable>(first.data)) {
      return Fail(entry.position, "config_unknown_key",
                  fmt::format("\"{}\" stands in no section; write {} above it", entry.key,
                              fmt::join(known, " or ")));
    }
    std::vector<std::string_view> names;
    for (const ConfigSection& section : ConfigSections()) names.push_back(section.name);
    return Fail(entry.position, "config_unknown_key",
                fmt::format("there is no section [{}]; the nearest is {}", entry.key,
                            HeaderOf(Nearest(entry.key, names))));
  }

  Status UnknownKey(const ConfigSection& section, const TomlEntry& entry) const {
    std::vector<std::string_view> known;
    for (const ConfigKey& key : ConfigKeys()) {
      if (key.name == entry.key) {
        return Fail(entry.position, "config_unknown_key",
                    fmt::format("there is no key \"{}\" in {}; it belongs in {}", entry.key,
                                SectionHeader(section), HeaderOf(key.section)));
      }
      if (key.section == section.name) known.push_back(key.name);
    }
    return Fail(entry.position, "config_unknown_key",
                fmt::format("there is no key \"{}\" in {}; the nearest is \"{}\"", entry.key,
                            SectionHeader(section), Nearest(entry.key, known)));
  }

  const std::string source_;
  const SourceKind kind_;
  Config* const config_;
};

Status ApplyOverride(const std::string& text, Config* config) {
  const size_t equals = text.find('=');
  const size_t dot = text.find('.');
  if (equals == std::string::npos || dot == std::string::npos || dot > equals) {
    return MakeError(ErrorCode::kInvalidArgument, "config_bad_override",
                     fmt::format("--set {}: must be section.key=value", text));
  }
  const std::string section = text.substr(0, dot);
  if (section == kTenantSection) {
    return MakeError(ErrorCode::kInvalidArgument, "config_bad_override",
                     fmt::format("--set {}: tenants can only be given in the file", text));
  }
  const std::string key = text.substr(dot + 1, equals - dot - 1);
  const std::string value = text.substr(equals + 1);
  std::string document = fmt::format("[{}]\n{} = {}\n", section, key, value);
  if (!ParseToml(document)) document = fmt::format("[{}]\n{} = '{}'\n", section, key, value);
  return Reader("--set " + text, SourceKind::kOverride, config).ReadDocument(document);
}

}  // namespace

Result<Config> ParseConfig(std::string_view text, std::string_view source,
                           const std::vector<std::string>& overrides) {
  Config config;
  Mistakes mistakes;
  mistakes.Add(Reader(source, SourceKind::kFile, &config).ReadDocument(text));
  for (const std::string& override_text : overrides) {
    mistakes.Add(ApplyOverride(override_text, &config));
  }
  // Values that could not be read would be compared as their defaults, and confuse.
  KVT_RETURN_IF_ERROR(std::move(mistakes).Take());
  KVT_RETURN_IF_ERROR(LookUpUsers(&config));
  config.cache.tenants = QuotasOf(config.tenants);
  KVT_RETURN_IF_ERROR(CheckConfig(config));
  return config;
}

Result<Config> LoadConfig(const std::string& path, const std::vector<std::string>& overrides) {
  if (path.empty()) return ParseConfig("", "(defaults)", overrides);
  std::ifstream file(path, std::ios::binary);
  std::string text(kMaxConfigFileBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file.is_open() || file.bad()) {
    return MakeError(ErrorCode::kIoError, "config_unreadable",
                     fmt::format("{}: cannot be read: {}; it must be a file that the daemon's user "
                                 "may read",
                                 path, std::strerror(errno)));
  }
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.size() > kMaxConfigFileBytes) {
    return MakeError(ErrorCode::kInvalidArgument, "config_too_long",
                     fmt::format("{}: longer than {} bytes", path, kMaxConfigFileBytes));
  }
  return ParseConfig(text, path, overrides);
}

}  // namespace kvtier
