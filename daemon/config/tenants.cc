// SPDX-License-Identifier: Apache-2.0
#include "daemon/config/tenants.h"

#include <fmt/format.h>
#include <pwd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "daemon/config/config_schema.h"
#include "tiers/storage/disk_geometry.h"
#include "tiers/types/cache_options.h"

namespace kvtier {
namespace {

// Where the key was given, or where the tenant begins if it was not.
std::string PlaceIn(const TenantConfig& tenant, std::string_view key) {
  const auto place = tenant.places.find(key);
  return place == tenant.places.end() ? tenant.place : place->second;
}

tl::unexpected<Error> ConflictIn(const TenantConfig& tenant, std::string_view key,
                                 std::string_view message) {
  return MakeError(
      ErrorCode::kInvalidArgument, "config_conflict",
      fmt::format("{}: tenant.{} of \"{}\" {}", PlaceIn(tenant, key), key, tenant.name, message));
}

// Rounded up: a reserve is kept in whole slabs. Without a sum that could overflow.
uint64_t SlabsOf(uint64_t bytes, uint64_t slab_bytes) {
  return bytes / slab_bytes + (bytes % slab_bytes != 0);
}

// How many slabs the tier will have if it gets all of its configured bytes.
uint64_t SlabsIn(const Config& config, Tier tier) {
  const uint64_t slab = config.cache.slab_bytes;
  if (tier == Tier::kHost) return config.host.bytes / slab;
  const uint64_t drives = config.disk.Places().size();
  const uint64_t in_file = config.disk.bytes / drives;
  return (in_file - std::min(in_file, kFirstSlabOffset)) / slab * drives;
}

// Pools are not cut into slabs of this size, so that only the first check concerns them.
Status CheckTierQuota(const Config& config, const TenantConfig& tenant, Tier tier) {
  const auto at = static_cast<size_t>(tier);
  const TierQuota& quota = tenant.quota.tiers[at];
  const std::string max_key = fmt::format("{}_max_bytes", kTierNames[at]);
  const std::string reserved_key = fmt::format("{}_reserved_bytes", kTierNames[at]);
  if (quota.max_bytes > 0 && quota.reserved_bytes > quota.max_bytes) {
    return ConflictIn(tenant, reserved_key,
                      fmt::format("is {}, more than its {} of {}; lower the one or raise the other",
                                  FormatExactByteSize(quota.reserved_bytes), max_key,
                                  FormatExactByteSize(quota.max_bytes)));
  }
  if (tier == Tier::kPool) return {};
  const uint64_t slab = config.cache.slab_bytes;
  if (quota.max_bytes > 0 && quota.max_bytes < slab) {
    return ConflictIn(tenant, max_key,
                      fmt::format("is {}, less than one slab (cache.slab_bytes {}); raise the one "
                                  "or lower the other",
                                  FormatExactByteSize(quota.max_bytes), FormatExactByteSize(slab)));
  }
  if (tier == Tier::kDisk && config.disk.bytes == 0 && quota.reserved_bytes > 0) {
    return ConflictIn(tenant, reserved_key,
                      "is given, and there is no disk tier (disk.bytes 0B); remove the one or give "
                      "the other");
  }
  return {};
}

// The error names the first tenant with which the reserves are more than the tier has.
Status CheckReserves(const Config& config, Tier tier) {
  const auto at = static_cast<size_t>(tier);
  const uint64_t slab = config.cache.slab_bytes;
  const uint64_t slabs = SlabsIn(config, tier);
  const std::string key = fmt::format("{}_reserved_bytes", kTierNames[at]);
  uint64_t reserved = 0;
  for (const TenantQuota& row : config.cache.tenants) {
    const uint64_t bytes = row.tiers[at].reserved_bytes;
    if (bytes == 0) continue;
    reserved += SlabsOf(bytes, slab);
    if (reserved < slabs) continue;
    const TenantConfig removed{.name = row.name, .place = std::string(kPlaceOfRemoved)};
    const auto tenant = std::ranges::find(config.tenants, row.name, &TenantConfig::name);
    return ConflictIn(
        tenant == config.tenants.end() ? removed : *tenant, key,
        fmt::format("makes {} slabs of {} (cache.slab_bytes) reserved by all tenants, and "
                    "{}.bytes has {}, of which one must be left to all; reserve less or "
                    "raise {}.bytes",
                    reserved, FormatExactByteSize(slab), kTierNames[at], slabs, kTierNames[at]));
  }
  return {};
}

// The configured bytes of pools on all devices together.
uint64_t ConfiguredPoolBytes(const Config& config) {
  const std::vector<uint64_t>& each = config.pool.device_bytes;
  if (each.empty()) return config.cache.pool_bytes * config.pool.devices.size();
  return std::accumulate(each.begin(), each.end(), uint64_t{0});
}

Status CheckPoolReserves(const Config& config) {
  // A share of the device is known only when the daemon starts.
  if (config.pool.free_fraction > 0) return {};
  const uint64_t configured = ConfiguredPoolBytes(config);
  uint64_t reserved = 0;
  for (const TenantConfig& tenant : config.tenants) {
    reserved += tenant.quota.tiers[static_cast<size_t>(Tier::kPool)].reserved_bytes;
    if (reserved <= configured) continue;
    return ConflictIn(
        tenant, "pool_reserved_bytes",
        fmt::format("makes {} reserved by all tenants, more than pool.bytes {} of all devices; "
                    "reserve less or raise pool.bytes",
                    FormatExactByteSize(reserved), FormatExactByteSize(configured)));
  }
  return {};
}

}  // namespace

bool HasQuota(const TenantConfig& tenant) { return tenant.quota != TenantQuota{}; }

std::vector<TenantQuota> QuotasOf(const std::vector<TenantConfig>& tenants) {
  std::vector<TenantQuota> quotas;
  for (const TenantConfig& tenant : tenants) {
    if (!HasQuota(tenant)) continue;
    quotas.push_back(tenant.quota);
    quotas.back().name = tenant.name;
  }
  return quotas;
}

uint64_t ReservedSlabs(const std::vector<TenantQuota>& tenants, Tier tier, uint64_t slab_bytes) {
  uint64_t slabs = 0;
  for (const TenantQuota& tenant : tenants) {
    slabs += SlabsOf(tenant.tiers[static_cast<size_t>(tier)].reserved_bytes, slab_bytes);
  }
  return slabs;
}

uint64_t ReservedPoolBytes(const std::vector<TenantQuota>& tenants) {
  uint64_t bytes = 0;
  for (const TenantQuota& tenant : tenants) {
    bytes += tenant.tiers[static_cast<size_t>(Tier::kPool)].reserved_bytes;
  }
  return bytes;
}

Status CheckQuotas(const Config& config) {
  size_t with_quotas = 0;
  for (const TenantConfig& tenant : config.tenants) {
    with_quotas += HasQuota(tenant);
    if (with_quotas > CacheOptions::kMaxTenants) {
      return MakeError(
          ErrorCode::kInvalidArgument, "config_conflict",
          fmt::format("{}: tenant \"{}\" is the {}th with quotas, {} may have some; "
                      "put users with equal quotas into one tenant",
                      tenant.place, tenant.name, with_quotas, CacheOptions::kMaxTenants));
    }
    for (const Tier tier : {Tier::kPool, Tier::kHost, Tier::kDisk}) {
      KVT_RETURN_IF_ERROR(CheckTierQuota(config, tenant, tier));
    }
  }
  KVT_RETURN_IF_ERROR(CheckPoolReserves(config));
  KVT_RETURN_IF_ERROR(CheckReserves(config, Tier::kHost));
  return config.disk.bytes == 0 ? Status() : CheckReserves(config, Tier::kDisk);
}

namespace {

// Far more than any entry of the user database takes; a longer one is reported as an error.
constexpr size_t kEntryBytes = 64 * 1024;

Status LookUp(const std::string& name, const TenantConfig& tenant, uint32_t* uid) {
  std::vector<char> buffer(kEntryBytes);
  passwd entry{};
  passwd* found = nullptr;
  const int error = ::getpwnam_r(name.c_str(), &entry, buffer.data(), buffer.size(), &found);
  if (found != nullptr) {
    *uid = entry.pw_uid;
    return {};
  }
  const auto place = tenant.places.find("users");
  return MakeError(ErrorCode::kInvalidArgument, "config_unknown_user",
                   fmt::format("{}: tenant.users: there is no user \"{}\" on this machine{}; make "
                               "it, name another, or give its number in tenant.uids",
                               place == tenant.places.end() ? tenant.place : place->second, name,
                               error == 0 ? "" : fmt::format(" ({})", std::strerror(error))));
}

}  // namespace

Status LookUpUsers(Config* config) {
  for (TenantConfig& tenant : config->tenants) {
    tenant.user_uids.clear();
    for (const std::string& name : tenant.users) {
      uint32_t uid = 0;
      KVT_RETURN_IF_ERROR(LookUp(name, tenant, &uid));
      tenant.user_uids.push_back(uid);
    }
  }
  return {};
}

}  // namespace kvtier
