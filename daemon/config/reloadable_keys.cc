// SPDX-License-Identifier: Apache-2.0
#include "daemon/config/reloadable_keys.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "base/result.h"

namespace kvtier {
namespace {

constexpr std::array<std::string_view, 25> kReloadable = {
    "server.max_clients",
    "tenant.name",
    "tenant.uids",
    "tenant.gids",
    "tenant.users",
    "tenant.pool_max_bytes",
    "tenant.host_max_bytes",
    "tenant.disk_max_bytes",
    "tenant.memory_ttl",
    "tenant.extended_ttl",
    "tenant.max_age",
    "disk.admission",
    "disk.write_budget_per_day",
    "retention.memory_ttl",
    "retention.extended_ttl",
    "retention.max_age",
    "retention.persist_after",
    "cache.pool_clean_fraction",
    "cache.host_clean_fraction",
    "cache.max_wait_ms",
    "cache.max_disk_read_bytes",
    "kept_memory.keep_for",
    "kept_memory.max_bytes",
    "log.level",
    "drain.deadline",
};

}  // namespace

void MarkReloadable(std::vector<ConfigKey>* keys) {
  for (const std::string_view path : kReloadable) {
    const size_t dot = path.find('.');
    const auto key = std::ranges::find_if(*keys, [&](const ConfigKey& candidate) {
      return candidate.section == path.substr(0, dot) && candidate.name == path.substr(dot + 1);
    });
    KVT_CHECK(key != keys->end());
    key->reloadable = true;
  }
}

}  // namespace kvtier
