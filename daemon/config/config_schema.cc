// SPDX-License-Identifier: Apache-2.0
#include "daemon/config/config_schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/result.h"
#include "base/units.h"
#include "tiers/storage/disk_files.h"
#include "tiers/types/block_key.h"

namespace kvtier {
namespace {

using enum ConfigType;

// The field kMember of the section kSection.
template <auto kSection, auto kMember>
ConfigField At(Config& config) {
  return &(config.*kSection.*kMember);
}

template <auto kSection, auto kMember>
ConfigField ChoiceAt(Config& config) {
  auto* const field = &(config.*kSection.*kMember);
  using Enum = std::remove_pointer_t<decltype(field)>;
  return ChoiceField{[field] { return static_cast<size_t>(*field); },
                     [field](size_t value) { *field = static_cast<Enum>(value); }};
}

template <auto kSection, auto kMember>
ConfigField ChoiceListAt(Config& config) {
  auto* const field = &(config.*kSection.*kMember);
  using Enum = std::remove_pointer_t<decltype(field)>::value_type;
  return ChoiceListField{[field] {
                           std::vector<size_t> values;
                           for (const Enum value : *field) {
                             values.push_back(static_cast<size_t>(value));
                           }
                           return values;
                         },
                         [field](const std::vector<size_t>& values) {
                           field->clear();
                           for (const size_t value : values) {
                             field->push_back(static_cast<Enum>(value));
                           }
                         }};
}

// One size or share goes where all devices take theirs from, several sizes to the list.
ConfigField PoolSizesAt(Config& config) {
  return SizesField{
      [&config] {
        if (config.pool.free_fraction > 0) return SizesField::Value{{}, config.pool.free_fraction};
        const std::vector<uint64_t>& each = config.pool.device_bytes;
        return SizesField::Value{each.empty() ? std::vector{config.cache.pool_bytes} : each, 0};
      },
      [&config](const SizesField::Value& value) {
        config.pool.free_fraction = value.share;
        config.pool.device_bytes = value.bytes.size() > 1 ? value.bytes : std::vector<uint64_t>{};
        if (value.bytes.size() == 1) config.cache.pool_bytes = value.bytes.front();
      }};
}

template <auto kMember>
ConfigField TenantAt(Config& config) {
  return &(config.tenants.back().*kMember);
}

template <Tier kTier, auto kMember>
ConfigField TierQuotaAt(Config& config) {
  return &(config.tenants.back().quota.tiers[static_cast<size_t>(kTier)].*kMember);
}

template <auto kMember>
ConfigField QuotaAt(Config& config) {
  return &(config.tenants.back().quota.*kMember);
}

template <auto kMember>
constexpr auto kServer = &At<&Config::server, kMember>;
template <auto kMember>
constexpr auto kPool = &At<&Config::pool, kMember>;
template <auto kMember>
constexpr auto kHost = &At<&Config::host, kMember>;
template <auto kMember>
constexpr auto kDisk = &At<&Config::disk, kMember>;
template <auto kMember>
constexpr auto kCold = &At<&Config::cold, kMember>;
template <auto kMember>
constexpr auto kEvents = &At<&Config::events, kMember>;
template <auto kMember>
constexpr auto kCache = &At<&Config::cache, kMember>;

constexpr double kYearMs = 366.0 * kDayMs;
// Bounds that several keys share, far above any use; sums of values stay within 64 bits.
constexpr double kMaxBytes = 0x1p50;  // 1024 TiB
constexpr double kMaxColdBytes = 0x1p40;
constexpr double kMaxIds = 4096;
constexpr double kMaxPathBytes = 4095;
constexpr double kMaxSocketPathBytes = 107;  // sockaddr_un::sun_path less its terminator

// The names of the values of DeviceChoice, in their order.
constexpr std::array<std::string_view, 2 + kMaxCudaDevices> kDeviceChoices = {
    "all",    "host",   "cuda:0", "cuda:1",  "cuda:2",  "cuda:3",  "cuda:4",  "cuda:5",  "cuda:6",
    "cuda:7", "cuda:8", "cuda:9", "cuda:10", "cuda:11", "cuda:12", "cuda:13", "cuda:14", "cuda:15"};

constexpr std::array kSections = {
    ConfigSection{"server", false, "The sockets and what one client may cost."},
    ConfigSection{
        "tenant", true,
        "Users who may connect, and whose blocks are whose: the kernel tells the user and group "
        "of a connecting process, users are looked at first. Without any `[[tenant]]`, "
        "processes of the daemon's own user are the tenant `default` and no others may "
        "connect. docs/OPERATIONS.md explains quotas and reserves; a tenant's first quota and its "
        "reserves take a restart."},
    ConfigSection{"pool", false, "The tier in which inference processes use blocks in place."},
    ConfigSection{"host", false, "The tier in host memory; it is also the disk tier's buffer."},
    ConfigSection{"disk", false, "The tier on disk."},
    ConfigSection{"cold", false, "A store that hosts share (docs/OPERATIONS.md)."},
    ConfigSection{"retention", false, "How long blocks are kept."},
    ConfigSection{"cache", false, "Watermarks and bounds of the cache."},
    ConfigSection{"kernels", false, "Attention for clients that launch no kernels of their own."},
    ConfigSection{
        "kept_memory", false,
        "KV caches of engines that outlive their processes (docs/PROTOCOL.md): the daemon "
        "holds them for the engines' next start, on GPUs and in host memory."},
    ConfigSection{"log", false, "The log, on standard error or in the journal."},
    ConfigSection{"drain", false, "The end of the daemon on SIGTERM."},
    ConfigSection{"restart", false, "Memory that is kept over a restart (docs/OPERATIONS.md)."},
    ConfigSection{"metrics", false,
                  "The page for Prometheus (`/metrics`, docs/METRICS.md) and the one for people "
                  "(`/`), for processes on this machine."},
    ConfigSection{"events", false,
                  "Events that tell routers which blocks the tiers hold, as engines tell it "
                  "(docs/EVENTS.md)."},
};

using FieldOf = ConfigField (*)(Config&);

// `path` is "section.name".
ConfigKey Ranged(ConfigType type, std::string_view path, FieldOf field, double min, double max,
                 std::string_view help) {
  const size_t dot = path.find('.');
  return {.section = path.substr(0, dot),
          .name = path.substr(dot + 1),
          .type = type,
          .field = field,
          .min = min,
          .max = max,
          .help = help};
}
ConfigKey Count(std::string_view path, FieldOf field, double min, double max,
                std::string_view help) {
  return Ranged(kCount, path, field, min, max, help);
}
ConfigKey Size(std::string_view path, FieldOf field, double min, double max,
               std::string_view help) {
  return Ranged(kSize, path, field, min, max, help);
}
ConfigKey Duration(std::string_view path, FieldOf field, double min, double max,
                   std::string_view help) {
  return Ranged(kDuration, path, field, min, max, help);
}
ConfigKey Milliseconds(std::string_view path, FieldOf field, double min, double max,
                       std::string_view help) {
  return Ranged(kMilliseconds, path, field, min, max, help);
}
ConfigKey Fraction(std::string_view path, FieldOf field, double min, double max,
                   std::string_view help) {
  return Ranged(kFraction, path, field, min, max, help);
}
ConfigKey Text(std::string_view path, FieldOf field, double max_bytes, std::string_view help) {
  return Ranged(kText, path, field, 1, max_bytes, help);
}
ConfigKey Path(std::string_view path, FieldOf field, double max_bytes, std::string_view help) {
  return Ranged(kPath, path, field, 1, max_bytes, help);
}
ConfigKey IdList(std::string_view path, FieldOf field, std::string_view help) {
  return Ranged(kIdList, path, field, 0, kMaxIds, help);
}
ConfigKey NameList(std::string_view path, FieldOf field, std::string_view help) {
  return Ranged(kNameList, path, field, 0, kMaxIds, help);
}
ConfigKey Boolean(std::string_view path, FieldOf field, std::string_view help) {
  return Ranged(kBoolean, path, field, 0, 0, help);
}
ConfigKey Choice(std::string_view path, FieldOf field, std::vector<std::string_view> choices,
                 std::string_view help) {
  ConfigKey key = Ranged(kChoice, path, field, 0, 0, help);
  key.choices = std::move(choices);
  return key;
}

ConfigKey ChoiceList(std::string_view path, FieldOf field, std::vector<std::string_view> choices,
                     double max, std::string_view help) {
  ConfigKey key = Ranged(kChoiceList, path, field, 1, max, help);
  key.choices = std::move(choices);
  return key;
}

// Marks a key that a running daemon takes over: no part keeps a copy of its value that the Daemon
// does not change, and no client was told it. Most sizes and all paths are taken at the start, and
// clients learn of limits on their calls when they connect.
ConfigKey OnReload(ConfigKey key) {
  key.reloadable = true;
  return key;
}

std::vector<ConfigKey> ServerKeys() {
  return {
      Path("server.socket", kServer<&ServerConfig::socket>, kMaxSocketPathBytes,
           "The Unix socket for inference processes. Any user may connect to it; who is served "
           "is decided by `[[tenant]]`."),
      Path("server.admin_socket", kServer<&ServerConfig::admin_socket>, kMaxSocketPathBytes,
           "The Unix socket for `kvtierctl`; only root and the daemon's own user are served."),
      OnReload(Count("server.max_clients", kServer<&ServerConfig::max_clients>, 1, 65536,
                     "Connections at once; one more is told so and closed. Each `[[tenant]]` has "
                     "some that no other takes: 16, or its share of a half.")),
      Boolean(
          "server.listen_beyond_loopback", kServer<&ServerConfig::listen_beyond_loopback>,
          "`metrics.listen` and the endpoints of `[events]` may be any address, as `0.0.0.0:9400`: "
          "other machines get events, `/metrics` and `/healthz` without a password, and no other "
          "page."),
  };
}

std::vector<ConfigKey> TenantKeys() {
  return {
      OnReload(Text(
          "tenant.name", &TenantAt<&TenantConfig::name>, kMaxTenantBytes,
          "The tenant's name: letters, digits, `.`, `_` and `-`. Kept with the blocks on disk.")),
      OnReload(NameList(
          "tenant.users", &TenantAt<&TenantConfig::users>,
          "Users by name, looked up when the configuration is read. No user may belong to two "
          "tenants.")),
      OnReload(IdList("tenant.uids", &TenantAt<&TenantConfig::uids>,
                      "User ids. No user may belong to two tenants.")),
      OnReload(IdList(
          "tenant.gids", &TenantAt<&TenantConfig::gids>,
          "Group ids (primary groups), for users that no tenant names. No group may belong to "
          "two tenants.")),
      OnReload(Size("tenant.pool_max_bytes", &TierQuotaAt<Tier::kPool, &TierQuota::max_bytes>, 0,
                    kMaxBytes,
                    "The tenant's pools together never take more; `0B`: no cap but `pool.bytes`.")),
      Size("tenant.pool_reserved_bytes", &TierQuotaAt<Tier::kPool, &TierQuota::reserved_bytes>, 0,
           kMaxBytes, "Pools of other tenants leave this much of `pool.bytes` to the tenant's."),
      OnReload(Size(
          "tenant.host_max_bytes", &TierQuotaAt<Tier::kHost, &TierQuota::max_bytes>, 0, kMaxBytes,
          "The tenant's blocks in host memory, with their headers, never take more: at its cap a "
          "tenant evicts its own coldest. At least one slab; `0B`: no cap but `host.bytes`.")),
      Size("tenant.host_reserved_bytes", &TierQuotaAt<Tier::kHost, &TierQuota::reserved_bytes>, 0,
           kMaxBytes,
           "Blocks of the tenant are not evicted for others while it has no more than this of host "
           "memory, and it gets this much back from them. In whole slabs, rounded up, which the "
           "tenant has to itself."),
      OnReload(Size("tenant.disk_max_bytes", &TierQuotaAt<Tier::kDisk, &TierQuota::max_bytes>, 0,
                    kMaxBytes, "The same as `host_max_bytes`, on disk.")),
      Size("tenant.disk_reserved_bytes", &TierQuotaAt<Tier::kDisk, &TierQuota::reserved_bytes>, 0,
           kMaxBytes, "The same as `host_reserved_bytes`, on disk."),
      OnReload(Duration("tenant.memory_ttl", &QuotaAt<&TenantQuota::memory_ttl_ms>, 0, kYearMs,
                        "In place of `retention.memory_ttl`; `0s`: the same.")),
      OnReload(Duration("tenant.extended_ttl", &QuotaAt<&TenantQuota::extended_ttl_ms>, 0, kYearMs,
                        "In place of `retention.extended_ttl`; `0s`: the same.")),
      OnReload(Duration("tenant.max_age", &QuotaAt<&TenantQuota::max_age_ms>, 0, kYearMs,
                        "In place of `retention.max_age`; `0s`: the same.")),
  };
}

std::vector<ConfigKey> PoolKeys() {
  return {
      ChoiceList("pool.device", &ChoiceListAt<&Config::pool, &PoolConfig::devices>,
                 {kDeviceChoices.begin(), kDeviceChoices.end()}, kMaxDevices,
                 "Which devices clients may attach to and lend memory of: every GPU (`all`; host "
                 "memory where there is none), host memory, the GPU with this number as "
                 "CUDA_VISIBLE_DEVICES numbers them for the daemon, or a list of these. Clients "
                 "name one by its position or by the GPU's UUID. No memory of a GPU is taken "
                 "before the first of them does."),
      Ranged(kSizes, "pool.bytes", &PoolSizesAt, 64 * kKiB, kMaxBytes,
             "Memory of all pools of a device together: a hard cap, taken as clients attach and "
             "rounded down to whole 2 MiB on a GPU. One size for each device, a list of one for "
             "each that `pool.device` names, or a share (\"80%\") of the memory that each device "
             "has free when the daemon starts."),
      Choice(
          "pool.eviction", &ChoiceAt<&Config::cache, &CacheOptions::pool_eviction>, {"cls", "lru"},
          "Which block a pool evicts: `lru` the least recently used; `cls` the one of the lowest "
          "rank by how often it was used and how long it has been idle, as the pool learns from "
          "its own blocks, while it measures that this serves more, and otherwise as `lru`. Host "
          "memory and disk evict the least recently used."),
      Size("pool.offload_bytes_per_s", kPool<&PoolConfig::offload_bytes_per_s>, 0, kMaxBytes,
           "How many bytes a second are copied from a GPU to host memory ahead of need; `0B`: no "
           "limit. Copies that a client waits for are never held back."),
  };
}

std::vector<ConfigKey> HostKeys() {
  return {
      OnReload(
          Size("host.bytes", kHost<&HostConfig::bytes>, 64 * kKiB, kMaxBytes,
               "Size of the arena: a hard cap. Rounded down to whole slabs (`cache.slab_bytes`). "
               "When a reload lowers it, the coldest blocks leave, and then the memory is given "
               "back.")),
  };
}

std::vector<ConfigKey> DiskKeys() {
  return {
      Path("disk.directory", kDisk<&DiskConfig::directory>, kMaxPathBytes,
           "Holds the tier's file, its index and its lock. Created if its parent exists."),
      NameList(
          "disk.directories", kDisk<&DiskConfig::directories>,
          "In place of `disk.directory`, one directory for each drive, in any order. They must "
          "be there. Drives may be added and taken away: see SECOND_DRIVE.md. The index lies "
          "in the first that has one."),
      OnReload(Size("disk.bytes", kDisk<&DiskConfig::bytes>, 0, kMaxBytes,
                    "Size of the files together, an equal share in each directory: a hard cap, "
                    "allocated at the first start and resized at a reload. `0B`: no disk tier, "
                    "which takes a restart, as does its end.")),
      Choice(
          "disk.encryption", &ChoiceAt<&Config::disk, &DiskConfig::encryption>,
          {"none", "aes-256-gcm"},
          "`aes-256-gcm`: what lies on disk is encrypted, by a key for each tenant and hour. Keys "
          "are in memory, kept over a restart as host memory is (`restart.keep_for`), and with "
          "`disk.root_key` in a file, too. Without its keys, and when this setting changes, the "
          "disk tier begins anew."),
      Ranged(kText, "disk.root_key", kDisk<&DiskConfig::root_key>, 0, kMaxPathBytes,
             "If not empty, encryption keys are also in a file, wrapped by this key, and survive a "
             "reboot: 32 bytes in a file closed to others, or the name of a credential."),
      Ranged(kText, "disk.previous_root_key", kDisk<&DiskConfig::previous_root_key>, 0,
             kMaxPathBytes, "Opens that file once, after a change of the root key."),
      Size("disk.free_floor_bytes", kDisk<&DiskConfig::free_floor_bytes>, 0, kMaxBytes,
           "Each file system keeps at least this much free: the files are made smaller than "
           "`disk.bytes` if it must be, and the log and `status` say so."),
      OnReload(
          Size("disk.write_budget_per_day", kCache<&CacheOptions::disk_write_budget_bytes_per_day>,
               0, kMaxBytes,
               "Bytes written per UTC day, to spare the disk; `0B`: no limit. Blocks refused for "
               "it are counted.")),
  };
}

std::vector<ConfigKey> ColdKeys() {
  return {
      Ranged(
          kText, "cold.endpoint", kCold<&ColdConfig::endpoint>, 0, kMaxPathBytes,
          "Where the store is: `resp://HOST:PORT`, `resp://USER@HOST:PORT` or `resp:///PATH` of a "
          "server that speaks RESP (the library `kvtier-cold-resp.so`), `file:///DIRECTORY` of a "
          "file system that hosts share, or `s3://BUCKET?region=REGION` (`kvtier-cold-s3.so`); "
          "docs/OPERATIONS.md has what may follow. Empty: no cold tier. Objects are plain bytes "
          "unless `disk.encryption` is on: hosts then need the same `disk.root_key`."),
      Ranged(kPath, "cold.password_file", kCold<&ColdConfig::password_file>, 0, kMaxPathBytes,
             "A file whose first line is the password. Empty: none is sent. For S3 a file of "
             "credentials as AWS's programs have it, of which `[default]` counts and which is read "
             "again when it changes; empty: the environment's `AWS_ACCESS_KEY_ID` and so on. With "
             "`&credentials=instance` in the endpoint neither: an EC2 instance's role counts."),
      Duration("cold.after", kCache<&CacheOptions::cold_after_ms>, 0, kYearMs,
               "An `extended` block that has been idle this long is written to the store; earlier "
               "if the disk is about to evict it for space."),
      Size("cold.write_bytes_per_s", kCache<&CacheOptions::cold_write_bytes_per_s>, 0,
           kMaxColdBytes,
           "The most that is written to the store in a second; `0B`: nothing, so that this host "
           "only reads what others wrote."),
      Milliseconds("cold.lookup_deadline_ms", kCache<&CacheOptions::cold_lookup_deadline_ms>, 1,
                   kMinuteMs,
                   "How long an acquire or a lookup waits at most to hear which missing blocks the "
                   "store has; twice for windows or states."),
      Milliseconds("cold.read_deadline_ms", kCache<&CacheOptions::cold_read_deadline_ms>, 1,
                   kMinuteMs, "How long a load waits at most for one block of the store."),
  };
}

std::vector<ConfigKey> RetentionKeys() {
  return {
      OnReload(
          Duration("retention.memory_ttl", kCache<&CacheOptions::memory_ttl_ms>, kSecondMs, kYearMs,
                   "A block of class `memory` is forgotten when it was not used for so long.")),
      OnReload(Duration(
          "retention.extended_ttl", kCache<&CacheOptions::extended_ttl_ms>, kSecondMs, kYearMs,
          "A block of class `extended` is forgotten when it was not used for so long.")),
      OnReload(Duration(
          "retention.max_age", kCache<&CacheOptions::max_age_ms>, 0, kYearMs,
          "A block older than this is forgotten, however often it is used; `0s`: no limit.")),
      OnReload(Duration(
          "retention.persist_after", kCache<&CacheOptions::persist_after_ms>, 0, kYearMs,
          "An `extended` block that was idle for so long is written to disk, pushed or not.")),
  };
}

std::vector<ConfigKey> CacheKeys() {
  return {
      Size("cache.slab_bytes", kCache<&CacheOptions::slab_bytes>, 64 * kKiB, 1 * kGiB,
           "Host arena and disk are cut into slabs, a slab into equal slots for one model. "
           "The largest block and its 4 KiB header must fit into one."),
      OnReload(
          Fraction("cache.pool_clean_fraction", kCache<&CacheOptions::pool_clean_fraction>, 0, 0.9,
                   "The coldest share of the pool that is copied to host memory ahead of need.")),
      OnReload(Fraction("cache.host_clean_fraction", kCache<&CacheOptions::host_clean_fraction>, 0,
                        0.9,
                        "The coldest share of host memory that is written to disk ahead of need.")),
      OnReload(
          Milliseconds("cache.max_wait_ms", kCache<&CacheOptions::max_wait_ms>, 0, kMinuteMs,
                       "How long an acquire may wait for blocks to be offloaded before unsaved "
                       "ones are dropped.")),
      OnReload(Size(
          "cache.max_disk_read_bytes", kCache<&CacheOptions::max_disk_read_bytes>, 64 * kKiB,
          64 * kGiB,
          "Bytes being read from disk and checked at once, over all files; the only bound on "
          "reads. More keeps a fast drive busier, and takes as much of host memory while blocks "
          "are read.")),
  };
}

std::vector<ConfigKey> KernelsKeys() {
  return {
      Boolean(
          "kernels.enabled", &At<&Config::kernels, &KernelsConfig::enabled>,
          "Whether the daemon computes attention. If so, it tries out its kernels before "
          "clients use them (on a GPU when that has its first pool), and says in the log and in "
          "`status` whether all was right; if not, it goes on without."),
  };
}

std::vector<ConfigKey> KeptMemoryKeys() {
  return {
      OnReload(Duration(
          "kept_memory.keep_for", &At<&Config::kept_memory, &KeptMemoryConfig::keep_for_ms>, 0,
          kYearMs,
          "How long the memory of an engine that has ended is kept for the next; `0s`: not at "
          "all. Until then no other process can use it: `kvtierctl release-memory` gives it "
          "back at once.")),
      OnReload(Size(
          "kept_memory.max_bytes", &At<&Config::kept_memory, &KeptMemoryConfig::max_bytes>, 0,
          kMaxBytes,
          "How much memory may be kept for all engines together, whether or not they run; `0B`: no "
          "limit. Beside `pool.bytes` and `host.bytes`.")),
  };
}

std::vector<ConfigKey> LogKeys() {
  return {
      OnReload(Choice("log.level", &ChoiceAt<&Config::log, &LogConfig::level>,
                      {"debug", "info", "warning", "error"},
                      "The least important messages shown.")),
      Choice("log.format", &ChoiceAt<&Config::log, &LogConfig::format>,
             {"auto", "text", "json", "journal"},
             "`text`: lines for people; `json`: one object per line; `journal`: entries of "
             "systemd's journal with the fields PRIORITY and KVTIER_ID. `auto`: `journal` where "
             "standard error leads there, else `text`."),
  };
}

std::vector<ConfigKey> DrainKeys() {
  return {
      OnReload(
          Duration("drain.deadline", &At<&Config::drain, &DrainConfig::deadline_ms>, 0, kDayMs,
                   "How long the daemon goes on writing `extended` blocks to disk before "
                   "it ends; `0s`: not at all. systemd's stop time-out is put off as needed.")),
  };
}

std::vector<ConfigKey> RestartKeys() {
  return {
      Duration(
          "restart.keep_for", &At<&Config::restart, &RestartConfig::keep_for_ms>, 0, kYearMs,
          "How long `kvtier-keeper` holds host memory and pools when the daemon has ended, whether "
          "by a crash or by SIGTERM: their blocks are hits after the next start. The memory is in "
          "use meanwhile. `0s`: nothing is kept. systemd's store knows no time: it holds until the "
          "unit is stopped. Host memory that is kept is shared memory, which has huge pages only "
          "where the kernel gives them to it "
          "(`/sys/kernel/mm/transparent_hugepage/shmem_enabled`)."),
  };
}

std::vector<ConfigKey> MetricsKeys() {
  return {
      Ranged(
          kText, "metrics.listen", &At<&Config::metrics, &MetricsConfig::listen>, 0, 64,
          "Address and port, for example `127.0.0.1:9400` or `[::1]:9400`; addresses of this "
          "machine alone are allowed, port 0 takes a free one and logs it. Every process of this "
          "machine may read the pages. Empty: no pages."),
  };
}

std::vector<ConfigKey> EventsKeys() {
  return {
      Ranged(kText, "events.endpoint", kEvents<&EventsConfig::endpoint>, 0, kMaxPathBytes,
             "Where routers subscribe, by ZMQ: `tcp://127.0.0.1:5557` or `ipc:///PATH`. Every "
             "process that can reach it learns which hashes are cached. Empty: no events."),
      Ranged(kText, "events.replay_endpoint", kEvents<&EventsConfig::replay_endpoint>, 0,
             kMaxPathBytes, "Where routers ask for batches that they missed. Empty: nowhere."),
      Ranged(kText, "events.pod", kEvents<&EventsConfig::pod>, 0, 253,
             "The daemon's name among routers. Empty: the host's name."),
      NameList("events.tenants", kEvents<&EventsConfig::tenants>,
               "Tenants whose blocks are told of, beside `default`."),
      NameList("events.token_ids", kEvents<&EventsConfig::token_ids>,
               "Tenants of whose blocks clients may tell which tokens they hold, and whose events "
               "then say it. Ids are prompts: they are kept in memory, and on disk with the index. "
               "Empty: no ids are taken."),
      Size("events.token_bytes", kEvents<&EventsConfig::token_bytes>, 1 * kMiB, kMaxBytes,
           "Memory for ids, shared equally among those tenants: 96 bytes for a block of 16 tokens. "
           "Blocks beyond it are told of without ids."),
      Choice(
          "events.format", &ChoiceAt<&Config::events, &EventsConfig::format>,
          {"vllm", "vllm-bytes", "llm-d", "llm-d-bytes", "sglang"},
          "The form of events: as vLLM (maps) or SGLang sends them, or arrays, for llm-d-kv-cache "
          "and AIBrix; hashes as 8 of their bytes, or with `-bytes` whole (docs/EVENTS.md)."),
  };
}

std::vector<ConfigKey> AllKeys() {
  std::vector<ConfigKey> all;
  for (const auto& keys :
       {ServerKeys(), TenantKeys(), PoolKeys(), HostKeys(), DiskKeys(), ColdKeys(), RetentionKeys(),
        CacheKeys(), KernelsKeys(), KeptMemoryKeys(), LogKeys(), DrainKeys(), RestartKeys(),
        MetricsKeys(), EventsKeys()}) {
    all.insert(all.end(), keys.begin(), keys.end());
  }
  return all;
}

}  // namespace

std::span<const ConfigSection> ConfigSections() { return kSections; }

std::string SectionHeader(const ConfigSection& section) {
  return section.repeated ? fmt::format("[[{}]]", section.name) : fmt::format("[{}]", section.name);
}

std::span<const ConfigKey> ConfigKeys() {
  static const std::vector<ConfigKey> keys = AllKeys();
  return keys;
}

}  // namespace kvtier
