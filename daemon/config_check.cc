#include "daemon/config_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/digest.h"
#include "daemon/loopback_address.h"
#include "tiers/disk_geometry.h"

namespace kvtier {
namespace {

template <typename... Args>
tl::unexpected<Error> Conflict(fmt::format_string<Args...> format, Args&&... args) {
  return MakeError(ErrorCode::kInvalidArgument, "config_conflict",
                   fmt::format(format, std::forward<Args>(args)...));
}

bool IsTenantName(std::string_view name) {
  return !name.empty() && std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  });
}

Status CheckTenants(const std::vector<TenantConfig>& tenants) {
  std::set<std::string_view> names;
  std::map<uint32_t, std::string_view> uids;
  std::map<uint32_t, std::string_view> gids;
  for (const TenantConfig& tenant : tenants) {
    if (!IsTenantName(tenant.name)) {
      return Conflict("tenant.name \"{}\" must be letters, digits, '.', '_' and '-'", tenant.name);
    }
    if (!names.insert(tenant.name).second) {
      return Conflict("tenant.name \"{}\" is given twice", tenant.name);
    }
    if (tenant.uids.empty() && tenant.gids.empty()) {
      return Conflict("tenant \"{}\" has neither tenant.uids nor tenant.gids", tenant.name);
    }
    for (const uint32_t uid : tenant.uids) {
      const auto [owner, fresh] = uids.emplace(uid, tenant.name);
      if (!fresh)
        return Conflict("uid {} is in two tenants: \"{}\" and \"{}\"", uid, owner->second,
                        tenant.name);
    }
    for (const uint32_t gid : tenant.gids) {
      const auto [owner, fresh] = gids.emplace(gid, tenant.name);
      if (!fresh)
        return Conflict("gid {} is in two tenants: \"{}\" and \"{}\"", gid, owner->second,
                        tenant.name);
    }
  }
  return {};
}

Status CheckServer(const ServerConfig& server) {
  if (server.socket == server.admin_socket) {
    return Conflict("server.socket and server.admin_socket are both \"{}\"", server.socket);
  }
  // A call's fixed fields are far below one page.
  const uint64_t needed = uint64_t{server.max_hashes_per_call} * sizeof(BlockHash) + 4 * kKiB;
  if (server.max_frame_bytes < needed) {
    return Conflict(
        "server.max_frame_bytes {} is too small for server.max_hashes_per_call {}: at "
        "least {} bytes",
        server.max_frame_bytes, server.max_hashes_per_call, needed);
  }
  return {};
}

Status CheckTiers(const Config& config) {
  const uint64_t chunk = config.cache.chunk_bytes;
  if (chunk % (4 * kKiB) != 0) {
    return Conflict("cache.chunk_bytes {} must be a multiple of 4KiB", chunk);
  }
  if (config.host.bytes < chunk) {
    return Conflict("host.bytes {} is less than one chunk (cache.chunk_bytes {})",
                    config.host.bytes, chunk);
  }
  if (config.disk.bytes == 0) return {};
  // Each file loses a part of its share to its superblocks.
  const uint64_t needed = (chunk + kFirstChunkOffset) * config.disk.files;
  if (config.disk.bytes < needed) {
    return Conflict(
        "disk.bytes {} is too small for one chunk (cache.chunk_bytes {}) in each of {} "
        "files (disk.files): at least {} bytes",
        config.disk.bytes, chunk, config.disk.files, needed);
  }
  return {};
}

Status CheckMetrics(const MetricsConfig& metrics) {
  if (metrics.listen.empty()) return {};
  const Result<LoopbackAddress> address = ParseLoopbackAddress(metrics.listen);
  if (!address) return Conflict("metrics.listen {}", address.error().context);
  return {};
}

}  // namespace

Status CheckConfig(const Config& config) {
  KVT_RETURN_IF_ERROR(CheckServer(config.server));
  KVT_RETURN_IF_ERROR(CheckTenants(config.tenants));
  KVT_RETURN_IF_ERROR(CheckTiers(config));
  KVT_RETURN_IF_ERROR(CheckMetrics(config.metrics));
  if (Status cache = config.cache.Validate(); !cache) {
    return Conflict("{}", cache.error().context);
  }
  return {};
}

}  // namespace kvtier
