// SPDX-License-Identifier: Apache-2.0
#include "daemon/config/reload.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/units.h"
#include "daemon/config/config_check.h"
#include "daemon/config/config_schema.h"
#include "daemon/config/tenants.h"
#include "tiers/storage/disk_geometry.h"

namespace kvtier {
namespace {

std::string NameOf(const ConfigKey& key) { return fmt::format("{}.{}", key.section, key.name); }

// A tier that is not there cannot be made or ended while the daemon runs.
bool TakenNow(const ConfigKey& key, const Config& running, const Config& wanted) {
  const bool makes_or_ends = (running.disk.bytes == 0) != (wanted.disk.bytes == 0);
  return key.reloadable && !(makes_or_ends && NameOf(key) == "disk.bytes");
}

// REQUIRES: both are the field of one key, of two Configs.
void CopyField(const ConfigField& from, const ConfigField& to) {
  std::visit(
      [&to](const auto& source) {
        using Field = std::decay_t<decltype(source)>;
        if constexpr (requires { source.get(); }) {
          std::get<Field>(to).set(source.get());
        } else {
          *std::get<Field>(to) = *source;
        }
      },
      from);
}

std::string ValueOf(const ConfigKey& key, const TenantConfig& tenant) {
  // The schema's accessors look at the last tenant.
  Config only;
  only.tenants = {tenant};
  return FormatConfigValue(key, only);
}

std::string FormatTenants(const std::vector<TenantConfig>& tenants) {
  std::string text;
  for (const TenantConfig& tenant : tenants) {
    text += fmt::format("{}{} (", text.empty() ? "" : ", ", tenant.name);
    std::string_view separator;
    for (const ConfigKey& key : ConfigKeys()) {
      if (key.section != kTenantSection || key.name == "name") continue;
      const std::string value = ValueOf(key, tenant);
      if (value == ValueOf(key, TenantConfig{})) continue;
      text += fmt::format("{}{} {}", separator, key.name, value);
      separator = ", ";
    }
    text += ")";
  }
  return text.empty() ? "none" : text;
}

// The wanted tenants and, behind them, those that are not wanted any more and have `rows`, without
// users and quotas.
std::vector<TenantConfig> WithRemoved(std::vector<TenantConfig> wanted,
                                      const std::vector<TenantQuota>& rows) {
  for (const TenantQuota& row : rows) {
    if (std::ranges::find(wanted, row.name, &TenantConfig::name) != wanted.end()) continue;
    wanted.push_back({.name = row.name, .place = std::string(kPlaceOfRemoved)});
  }
  return wanted;
}

// Takes from `wanted` the reloadable keys of tenants that had quotas when the daemon started
// (`rows`, by name), and leaves the rest as it is `running`.
std::vector<TenantConfig> TakeTenants(const std::vector<TenantConfig>& running,
                                      const std::vector<TenantQuota>& rows,
                                      const std::vector<TenantConfig>& wanted) {
  std::vector<TenantConfig> taken = wanted;
  for (TenantConfig& tenant : taken) {
    const auto row = std::ranges::find(rows, tenant.name, &TenantQuota::name);
    if (row == rows.end()) {
      const auto before = std::ranges::find(running, tenant.name, &TenantConfig::name);
      tenant.quota = before == running.end() ? TenantQuota{} : before->quota;
      continue;
    }
    // The schema's accessors look at the last tenant.
    Config started;
    started.tenants = {TenantConfig{.quota = *row}};
    Config now;
    now.tenants = {tenant};
    for (const ConfigKey& key : ConfigKeys()) {
      if (key.section != kTenantSection || key.reloadable) continue;
      CopyField(key.field(started), key.field(now));
    }
    tenant.quota = now.tenants.back().quota;
  }
  return taken;
}

// Lists the tenants' keys that a running daemon cannot take.
void CompareTenants(const std::vector<TenantConfig>& taken, const std::vector<TenantConfig>& wanted,
                    std::vector<ConfigDifference>* restart) {
  for (size_t i = 0; i < wanted.size(); ++i) {
    for (const ConfigKey& key : ConfigKeys()) {
      if (key.section != kTenantSection) continue;
      const std::string stays = ValueOf(key, taken[i]);
      const std::string asked = ValueOf(key, wanted[i]);
      if (stays == asked) continue;
      const auto place = wanted[i].places.find(key.name);
      // Each default of a tenant's key is the absence of a limit: "0B" would read as one.
      const std::string absent = ValueOf(key, TenantConfig{});
      restart->push_back({fmt::format("[[tenant]] \"{}\" {}", wanted[i].name, key.name),
                          stays == absent ? "none" : stays, asked == absent ? "none" : asked,
                          place == wanted[i].places.end() ? wanted[i].place : place->second});
    }
  }
}

}  // namespace

std::string_view CostOfRestart(std::string_view key) {
  if (key == "pool.bytes") return "; pools that it has room for then keep their blocks and sizes";
  if (key == "pool.device") return "; pools of devices that it does not name then end";
  if (key == "disk.encryption") return "; the disk tier then begins empty";
  return "";
}

ConfigDifferences CompareConfigs(const Config& running, const Config& wanted) {
  ConfigDifferences differences;
  for (const ConfigKey& key : ConfigKeys()) {
    if (key.section == kTenantSection) continue;
    const std::string name = NameOf(key);
    ConfigDifference difference{name, FormatConfigValue(key, running),
                                FormatConfigValue(key, wanted), PlaceOfKey(wanted, name)};
    if (difference.running == difference.wanted) continue;
    auto& list = TakenNow(key, running, wanted) ? differences.now : differences.restart;
    list.push_back(std::move(difference));
  }
  const std::vector<TenantQuota>& rows = running.cache.tenants;
  const std::vector<TenantConfig> asked = WithRemoved(wanted.tenants, rows);
  std::vector<TenantConfig> taken = TakeTenants(running.tenants, rows, asked);
  CompareTenants(taken, asked, &differences.restart);
  taken.resize(wanted.tenants.size());
  const std::string tenants = FormatTenants(running.tenants);
  const std::string wanted_tenants = FormatTenants(taken);
  if (tenants != wanted_tenants) {
    differences.now.push_back({"[[tenant]]", tenants, wanted_tenants,
                               wanted.tenants.empty() ? "(default)" : wanted.tenants[0].place});
  }
  return differences;
}

Config TakeReloadable(const Config& running, const Config& wanted) {
  Config taken = running;
  // The accessors of the table take a Config that can be changed, since they form pointers into it.
  Config source = wanted;
  for (const ConfigKey& key : ConfigKeys()) {
    if (key.section == kTenantSection || !TakenNow(key, running, wanted)) continue;
    CopyField(key.field(source), key.field(taken));
  }
  const std::vector<TenantQuota>& rows = running.cache.tenants;
  taken.tenants = TakeTenants(running.tenants, rows, WithRemoved(wanted.tenants, rows));
  for (TenantQuota& row : taken.cache.tenants) {
    const auto tenant = std::ranges::find(taken.tenants, row.name, &TenantConfig::name);
    row = tenant->quota;
    row.name = tenant->name;
  }
  taken.tenants.resize(wanted.tenants.size());
  taken.places = wanted.places;
  return taken;
}

Status CheckPinnedFit(const Config& wanted, uint64_t pinned_bytes) {
  // Pinned blocks are kept in the lowest tier, and a restart must find space for all of them there.
  const bool has_disk = wanted.disk.bytes > 0;
  const std::string_view key = has_disk ? "disk.bytes" : "host.bytes";
  const uint64_t bytes = has_disk ? wanted.disk.bytes : wanted.host.bytes;
  const uint64_t room = has_disk ? bytes - wanted.disk.Places().size() * kFirstSlabOffset : bytes;
  if (room >= pinned_bytes) return {};
  return MakeError(ErrorCode::kInvalidArgument, "config_below_pinned",
                   fmt::format("{}: {} {} has room for {} of blocks, less than the {} that are "
                               "pinned; unpin blocks (kvtierctl unpin) or ask for more",
                               PlaceOfKey(wanted, key), key, FormatExactByteSize(bytes),
                               FormatByteSize(room), FormatByteSize(pinned_bytes)));
}

}  // namespace kvtier
