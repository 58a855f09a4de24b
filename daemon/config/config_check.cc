// SPDX-License-Identifier: Apache-2.0
#include "daemon/config/config_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <initializer_list>
#include <map>
#include <set>

#include "base/digest.h"
#include "base/units.h"
#include "daemon/config/config_schema.h"
#include "daemon/config/endpoints.h"
#include "daemon/config/tenants.h"
#include "tiers/storage/disk_geometry.h"

namespace kvtier {
namespace {

template <typename... Args>
tl::unexpected<Error> ConflictAt(std::string_view place, fmt::format_string<Args...> format,
                                 Args&&... args) {
  return MakeError(ErrorCode::kInvalidArgument, "config_conflict",
                   fmt::format("{}: {}", place, fmt::format(format, std::forward<Args>(args)...)));
}

// At the first of `keys` that was given: the one that can be changed.
template <typename... Args>
tl::unexpected<Error> Conflict(const Config& config, std::initializer_list<std::string_view> keys,
                               fmt::format_string<Args...> format, Args&&... args) {
  const auto given =
      std::ranges::find_if(keys, [&](std::string_view key) { return config.places.contains(key); });
  return ConflictAt(PlaceOfKey(config, given == keys.end() ? *keys.begin() : *given), format,
                    std::forward<Args>(args)...);
}

// Names stand in logs, labels of metrics and namespaces on disk, none of which should need quoting.
bool IsTenantName(std::string_view name) {
  return !name.empty() && std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  });
}

// A user or group in two tenants would make it a matter of luck whose blocks a process sees.
Status CheckTenants(const std::vector<TenantConfig>& tenants) {
  std::set<std::string_view> names;
  std::map<uint32_t, std::string_view> uids;
  std::map<uint32_t, std::string_view> gids;
  for (const TenantConfig& tenant : tenants) {
    const auto named = tenant.places.find("name");
    const std::string& place = named == tenant.places.end() ? tenant.place : named->second;
    if (!IsTenantName(tenant.name)) {
      return ConflictAt(place, "tenant.name \"{}\" must be letters, digits, '.', '_' and '-'",
                        tenant.name);
    }
    if (!names.insert(tenant.name).second) {
      return ConflictAt(place, "tenant.name \"{}\" is given twice; rename one", tenant.name);
    }
    if (tenant.users.empty() && tenant.uids.empty() && tenant.gids.empty()) {
      return ConflictAt(tenant.place,
                        "tenant \"{}\" has neither tenant.users nor tenant.uids nor tenant.gids; "
                        "give one of them",
                        tenant.name);
    }
    std::vector<uint32_t> all_uids = tenant.uids;
    all_uids.insert(all_uids.end(), tenant.user_uids.begin(), tenant.user_uids.end());
    for (const uint32_t uid : all_uids) {
      const auto [owner, fresh] = uids.emplace(uid, tenant.name);
      if (fresh || owner->second == tenant.name) continue;
      return ConflictAt(tenant.place,
                        "tenant.uids: uid {} is in two tenants, \"{}\" and \"{}\"; remove it "
                        "from one",
                        uid, owner->second, tenant.name);
    }
    for (const uint32_t gid : tenant.gids) {
      const auto [owner, fresh] = gids.emplace(gid, tenant.name);
      if (fresh || owner->second == tenant.name) continue;
      return ConflictAt(tenant.place,
                        "tenant.gids: gid {} is in two tenants, \"{}\" and \"{}\"; remove it "
                        "from one",
                        gid, owner->second, tenant.name);
    }
  }
  return {};
}

// Without "." and ".." and a final slash, so that equal paths compare equal. Links are not
// followed: the paths may not exist yet.
std::filesystem::path Normal(const std::string& path) {
  std::filesystem::path normal = std::filesystem::path(path).lexically_normal();
  return normal.has_filename() ? normal : normal.parent_path();
}

bool IsWithin(const std::filesystem::path& path, const std::filesystem::path& directory) {
  return std::ranges::mismatch(directory, path).in1 == directory.end();
}

// Where the daemon listens: at a path, or, if that is empty, at an address.
struct OwnPlace {
  std::string_view key;
  std::filesystem::path path;
  ListenAddress address;
};

// Leaves out what cannot be read: mistakes in it are found where it is checked.
std::vector<OwnPlace> OwnPlaces(const Config& config) {
  std::vector<OwnPlace> places = {{"server.socket", Normal(config.server.socket), {}},
                                  {"server.admin_socket", Normal(config.server.admin_socket), {}}};
  if (const auto page = ParseListenAddress(config.metrics.listen, /*beyond_loopback=*/true)) {
    places.push_back({"metrics.listen", {}, *page});
  }
  for (const auto& [key, text] :
       {std::pair("events.endpoint", &config.events.endpoint),
        std::pair("events.replay_endpoint", &config.events.replay_endpoint)}) {
    if (const auto endpoint = ParseEventEndpoint(*text, /*beyond_loopback=*/true)) {
      places.push_back({key, Normal(endpoint->path), endpoint->address});
    }
  }
  return places;
}

// Each has to have its own, and the disk tier treats its directory as its own: a socket in it would
// be in its way.
Status CheckPaths(const Config& config) {
  const std::vector<OwnPlace> places = OwnPlaces(config);
  for (auto place = places.begin(); place != places.end(); ++place) {
    const auto other = std::find_if(place + 1, places.end(), [place](const OwnPlace& that) {
      return place->path.empty() ? Collide(place->address, that.address) : place->path == that.path;
    });
    if (other == places.end()) continue;
    return Conflict(config, {other->key, place->key},
                    "{} and {} are one address; give one of them another", place->key, other->key);
  }
  if (config.disk.bytes == 0) return {};
  const std::string_view disk_key = DirectoryKey(config);
  for (const std::filesystem::path& wanted : config.disk.Places()) {
    const auto directory = Normal(wanted);
    for (const auto& [key, path, address] : places) {
      if (path.empty()) continue;
      if (!IsWithin(path, directory) && !IsWithin(directory, path)) continue;
      return Conflict(config, {key, disk_key},
                      "{} \"{}\" and {} \"{}\" overlap; that directory is the disk tier's "
                      "alone, put the socket elsewhere",
                      key, path.native(), disk_key, directory.native());
    }
  }
  return {};
}

// Paths that lead to one directory by links are found when it is looked at: see DiskSet.
Status CheckDirectories(const Config& config) {
  const std::vector<std::string>& directories = config.disk.directories;
  if (directories.empty()) return {};
  if (config.places.contains("disk.directory")) {
    return Conflict(config, {"disk.directories"},
                    "disk.directories and disk.directory are both given; name all drives in the "
                    "one and leave out the other");
  }
  if (directories.size() > kMaxDrives) {
    return Conflict(config, {"disk.directories"}, "disk.directories names {} drives, at most {}",
                    directories.size(), kMaxDrives);
  }
  for (size_t i = 0; i < directories.size(); ++i) {
    const auto directory = Normal(directories[i]);
    for (size_t other = 0; other < directories.size(); ++other) {
      if (other == i || !IsWithin(directory, Normal(directories[other]))) continue;
      if (directory == Normal(directories[other])) {
        return Conflict(config, {"disk.directories"},
                        "disk.directories names \"{}\" twice; remove one", directory.native());
      }
      return Conflict(config, {"disk.directories"},
                      "disk.directories: \"{}\" lies within \"{}\"; give each drive a directory "
                      "of its own",
                      directory.native(), directories[other]);
    }
  }
  return {};
}

Status CheckPools(const Config& config) {
  const PoolConfig& pool = config.pool;
  for (const DeviceChoice choice : pool.devices) {
    const auto times = std::ranges::count(pool.devices, choice);
    if (choice == DeviceChoice::kAll && pool.devices.size() > 1) {
      return Conflict(config, {"pool.device"},
                      "pool.device \"all\" must stand alone; name the devices instead");
    }
    if (choice == DeviceChoice::kAll && !pool.device_bytes.empty()) {
      return Conflict(config, {"pool.bytes", "pool.device"},
                      "pool.bytes with a size for each device needs devices with names, and "
                      "pool.device is \"all\"; give one size, which holds for each");
    }
    if (choice != DeviceChoice::kHost && times > 1) {
      return Conflict(config, {"pool.device"}, "pool.device names \"{}\" {} times; remove one",
                      DeviceChoiceName(choice), times);
    }
  }
  if (pool.device_bytes.empty()) return {};
  if (pool.device_bytes.size() != pool.devices.size()) {
    return Conflict(config, {"pool.bytes", "pool.device"},
                    "pool.bytes has {} sizes for the {} devices of pool.device; give one for each",
                    pool.device_bytes.size(), pool.devices.size());
  }
  return {};
}

Status CheckTiers(const Config& config) {
  const uint64_t slab = config.cache.slab_bytes;
  if (slab % (4 * kKiB) != 0) {
    return Conflict(config, {"cache.slab_bytes"}, "cache.slab_bytes {} must be a multiple of 4KiB",
                    FormatExactByteSize(slab));
  }
  if (config.host.bytes < slab) {
    return Conflict(config, {"host.bytes", "cache.slab_bytes"},
                    "host.bytes {} is less than one slab (cache.slab_bytes {}); raise the one or "
                    "lower the other",
                    FormatExactByteSize(config.host.bytes), FormatExactByteSize(slab));
  }
  if (config.disk.bytes == 0) return {};
  // Each file loses a part of its share to its superblocks, and must hold one slab besides.
  const uint64_t directories = config.disk.Places().size();
  const uint64_t needed = (slab + kFirstSlabOffset) * directories;
  if (config.disk.bytes < needed) {
    return Conflict(config, {"disk.bytes", "cache.slab_bytes", "disk.directories"},
                    "disk.bytes {} is too small for one slab (cache.slab_bytes {}) in each of {} "
                    "directories (disk.directories): at least {}",
                    FormatExactByteSize(config.disk.bytes), FormatExactByteSize(slab), directories,
                    FormatExactByteSize(needed));
  }
  return {};
}

Status CheckDiskKeys(const Config& config) {
  const DiskConfig& disk = config.disk;
  if (disk.encryption == DiskEncryption::kNone && !disk.root_key.empty()) {
    return Conflict(config, {"disk.root_key"},
                    "disk.root_key is given, but nothing is encrypted; set disk.encryption");
  }
  if (disk.root_key.empty() && !disk.previous_root_key.empty()) {
    return Conflict(config, {"disk.previous_root_key"},
                    "disk.previous_root_key is given without a disk.root_key that follows it");
  }
  return {};
}

Status CheckMetrics(const Config& config) {
  if (config.metrics.listen.empty()) return {};
  const Result<ListenAddress> address =
      ParseListenAddress(config.metrics.listen, config.server.listen_beyond_loopback);
  if (!address) {
    return Conflict(config, {"metrics.listen"}, "metrics.listen {}", address.error().context);
  }
  return {};
}

// Keys of memory alone are one host's, and end with it: in a store that hosts share, what they
// encrypt could be read by none.
Status CheckCold(const Config& config) {
  const ColdConfig& cold = config.cold;
  if (cold.endpoint.empty()) return {};
  if (const auto parsed = ParseColdEndpoint(cold.endpoint); !parsed) {
    return Conflict(config, {"cold.endpoint"}, "cold.endpoint {}", parsed.error().context);
  }
  if (cold.endpoint.starts_with("file://") && !cold.password_file.empty()) {
    return Conflict(config, {"cold.endpoint", "cold.password_file"},
                    "cold.password_file is of no use to a directory: its files' rights decide who "
                    "reads them");
  }
  if (config.disk.encryption != DiskEncryption::kNone && config.disk.root_key.empty()) {
    return Conflict(config, {"cold.endpoint", "disk.encryption"},
                    "keys that are in memory only cannot encrypt what hosts share: set "
                    "disk.root_key to the same key on all hosts, or "
                    "turn disk.encryption or the cold tier off");
  }
  return {};
}

Status CheckEvents(const Config& config) {
  const EventsConfig& events = config.events;
  for (const auto& [key, endpoint] :
       {std::pair("events.endpoint", &events.endpoint),
        std::pair("events.replay_endpoint", &events.replay_endpoint)}) {
    if (endpoint->empty()) continue;
    const Result<EventEndpoint> parsed =
        ParseEventEndpoint(*endpoint, config.server.listen_beyond_loopback);
    if (!parsed) return Conflict(config, {key}, "{} {}", key, parsed.error().context);
  }
  if (events.endpoint.empty() && !events.replay_endpoint.empty()) {
    return Conflict(config, {"events.replay_endpoint"},
                    "events.replay_endpoint has nothing to replay without events.endpoint");
  }
  if (events.endpoint.empty() && !events.token_ids.empty()) {
    return Conflict(config, {"events.token_ids"},
                    "events.token_ids is of no use without events.endpoint");
  }
  for (const std::string& tenant : events.token_ids) {
    const auto& told = events.tenants;
    if (tenant == "default" || std::ranges::find(told, tenant) != told.end()) continue;
    return Conflict(config, {"events.token_ids", "events.tenants"},
                    "events.token_ids names the tenant {}, of whose blocks events.tenants lets "
                    "nothing be told",
                    tenant);
  }
  return {};
}

}  // namespace

std::vector<std::string> UnknownTenantsTold(const Config& config) {
  std::vector<std::string> unknown;
  for (const std::string& name : config.events.tenants) {
    if (config.events.endpoint.empty() || name == kDefaultTenant) continue;
    if (std::ranges::count(config.tenants, name, &TenantConfig::name) > 0) continue;
    unknown.push_back(fmt::format("{}: events.tenants names \"{}\", which no [[tenant]] is called",
                                  PlaceOfKey(config, "events.tenants"), name));
  }
  return unknown;
}

std::string_view DirectoryKey(const Config& config) {
  return config.disk.directories.empty() ? "disk.directory" : "disk.directories";
}

std::string PlaceOfKey(const Config& config, std::string_view key) {
  const auto place = config.places.find(key);
  return place == config.places.end() ? "(default)" : place->second;
}

Status CheckConfig(const Config& config) {
  Mistakes mistakes;
  mistakes.Add(CheckDirectories(config));
  mistakes.Add(CheckPaths(config));
  mistakes.Add(CheckTenants(config.tenants));
  mistakes.Add(CheckPools(config));
  const Status tiers = CheckTiers(config);
  mistakes.Add(tiers);
  // Quotas are counted in slabs of the tiers.
  if (tiers) mistakes.Add(CheckQuotas(config));
  mistakes.Add(CheckDiskKeys(config));
  mistakes.Add(CheckCold(config));
  mistakes.Add(CheckMetrics(config));
  mistakes.Add(CheckEvents(config));
  if (!mistakes.empty()) return std::move(mistakes).Take();
  if (Status cache = config.cache.Validate(); !cache) {
    return ConflictAt("[cache]", "{}", cache.error().context);
  }
  return {};
}

namespace {

// Advice to an operator about an error of the start, by the error's reason.
struct Remedy {
  std::string_view reason;
  std::string_view key;  // empty: the caller's
  std::string_view advice;
};

constexpr std::array kRemedies = {
    Remedy{"directory_owner", "",
           "give the directory to the daemon's user (chown -R), or name another"},
    Remedy{"file_owner", "",
           "give the file to the daemon's user (chown), or name another directory"},
    Remedy{
        "directory_locked", "",
        "stop that process, or give this daemon a directory of its own; a lock left by a process "
        "that is gone holds up no other"},
    Remedy{"disk_full", "disk.bytes",
           "free space there, or lower disk.bytes or disk.free_floor_bytes"},
    Remedy{"slab_bytes_changed", "cache.slab_bytes", ""},
    Remedy{"same_directory", "", "give each drive a directory of its own"},
    Remedy{"too_many_drives", "", "take drives away that are not needed any more"},
    Remedy{"arena_too_small", "host.bytes", "raise host.bytes or lower cache.slab_bytes"},
    Remedy{"arena_exceeds_memory", "host.bytes", "lower it"},
    Remedy{"pool_exceeds_memory", "pool.bytes", "lower it"},
    Remedy{"no_cuda", "pool.device", "set it to \"host\" or \"all\""},
    Remedy{"no_such_device", "pool.device", "name a GPU that is there, \"host\" or \"all\""},
    Remedy{"cuda_driver_too_old", "pool.device", "update the driver, or set it to \"host\""},
    Remedy{"pool_exceeds_vram", "pool.bytes", "lower it"},
    Remedy{"pool_below_granule", "pool.bytes", "raise it to one piece at least"},
    Remedy{"cold_library", "cold.endpoint", "install its library"},
    Remedy{"root_key_open", "disk.root_key",
           "name a file of mode 0400 or 0600 that the daemon's user can read, or the credential"},
    Remedy{"root_key_size", "disk.root_key", "head -c 32 /dev/urandom makes a key"},
    Remedy{"no_credentials", "disk.root_key",
           "give it to the service (LoadCredentialEncrypted= in a drop-in of the unit), or name a "
           "file"},
    Remedy{"previous_root_key", "disk.previous_root_key",
           "name the key of the last start, or remove this line"},
    Remedy{"wrong_root_key", "disk.root_key",
           "name the right one, or the old one as disk.previous_root_key; without it, remove the "
           "file, and the disk tier begins empty"},
    Remedy{"cold_password", "cold.password_file", "name a file that the daemon's user can read"},
    Remedy{"cold_endpoint", "cold.endpoint",
           "name resp://HOST:PORT, resp:///PATH, file:///DIRECTORY or s3://BUCKET?region=REGION"},
    Remedy{"socket_in_use", "", "stop that process, or name another path"},
    Remedy{"socket_path_taken", "", "remove the file there, or name another path"},
    Remedy{"socket_path_too_long", "", "name one of at most 107 bytes"},
    Remedy{"EADDRINUSE", "",
           "another process listens there (ss -ltnp): end it, or name another port; port 0 takes "
           "a free one"},
    Remedy{"EADDRNOTAVAIL", "", "name an address that this machine has (ip address)"},
    Remedy{"EACCES", "", "give the daemon's user access to it, or name another path"},
    Remedy{"EPERM", "", "give the daemon's user access to it, or name another path"},
    Remedy{"EROFS", "",
           "name a path that can be written; as a service, allow it with ReadWritePaths= in a "
           "drop-in of the unit (systemctl edit kvtierd)"},
    Remedy{"ENOENT", "", "make the directory above it, or name another path"},
    Remedy{"ENOTDIR", "", "name a path whose parents are directories"},
    Remedy{"EISDIR", "", "name a path that is no directory"},
    Remedy{"ELOOP", "", "name a path without circular links"},
    Remedy{"ENAMETOOLONG", "", "name a shorter path"},
    Remedy{"EINVAL", "", ""},
    Remedy{"ENOSPC", "", "free space there"},
    Remedy{"ENOMEM", "", "lower host.bytes or pool.bytes, or free memory"},
};

// Null for reasons that are about nothing that an operator can set.
const Remedy* FindRemedy(std::string_view reason) {
  const auto found = std::ranges::find(kRemedies, reason, &Remedy::reason);
  return found == kRemedies.end() ? nullptr : found;
}

}  // namespace

Error AnnotateWithKey(const Config& config, std::string_view key, Error error) {
  const Remedy* const remedy = FindRemedy(error.reason);
  if (remedy != nullptr && !remedy->key.empty()) key = remedy->key;
  std::string context = fmt::format("{}: {}: {}", PlaceOfKey(config, key), key, error.context);
  if (remedy != nullptr && !remedy->advice.empty()) {
    context += fmt::format("; {}", remedy->advice);
  }
  // Probably a user who wants to try it out.
  if (error.reason == "EACCES" && key.ends_with("socket") && !config.places.contains(key)) {
    context += "; a daemon for yourself: kvtierd --dev";
  }
  error.context = std::move(context);
  return error;
}

// A disk may be mounted yet, a driver loaded, room made, a user be known to a directory service,
// and a process that holds the directory may end. A file that is wrong in itself, or asks for a
// shape that the disk's files do not have, stays wrong until it is changed; one that cannot be
// read, until it is put there.
bool IsConfigurationError(const Error& error) {
  if (error.reason == "config_unknown_user") return false;
  if (error.reason == "config_unreadable") return true;
  return error.code == ErrorCode::kInvalidArgument || error.code == ErrorCode::kWrongState;
}

}  // namespace kvtier
