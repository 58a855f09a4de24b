// SPDX-License-Identifier: Apache-2.0
#include "daemon/config/config_schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/result.h"
#include "base/units.h"
#include "daemon/config/cold_keys.h"
#include "daemon/config/reloadable_keys.h"
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
constexpr auto kEvents = &At<&Config::events, kMember>;
template <auto kMember>
constexpr auto kCache = &At<&Config::cache, kMember>;

constexpr double kYearMs = 366.0 * kDayMs;
// Bounds that several keys share, far above any use; sums of values stay within 64 bits.
constexpr double kMaxBytes = 0x1p50;       // 1024 TiB
constexpr double kMaxRatedBytes = 0x1p62;  // many drives of many PiB; summed with nothing
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
        "Who may connect, and whose blocks are whose: the kernel tells the user and group "
        "of a connecting process, users are looked at first. Without any `[[tenant]]`, "
        "processes of the daemon's own user are the tenant `default` and no others may "
        "connect. What a tenant may take and what is kept for it is explained in "
        "docs/OPERATIONS.md; the first quota of a tenant and what is reserved take a restart."},
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
    ConfigSection{"drain", false, "What happens on SIGTERM."},
    ConfigSection{"restart", false, "What is kept in memory over a restart (docs/OPERATIONS.md)."},
    ConfigSection{"metrics", false,
                  "The page for Prometheus (`/metrics`, docs/METRICS.md) and the one for people "
                  "(`/`), for processes on this machine."},
    ConfigSection{"events", false,
                  "What the tiers hold, told to routers as engines tell it (docs/EVENTS.md)."},
    ConfigSection{"trace", false, "What `kvtierctl trace` shows (docs/TRACING.md)."},
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

std::vector<ConfigKey> ServerKeys() {
  return {
      Path("server.socket", kServer<&ServerConfig::socket>, kMaxSocketPathBytes,
           "The Unix socket for inference processes. Any user may connect to it; who is served "
           "is decided by `[[tenant]]`."),
      Path("server.admin_socket", kServer<&ServerConfig::admin_socket>, kMaxSocketPathBytes,
           "The Unix socket for `kvtierctl`; only root and the daemon's own user are served."),
      Count("server.max_clients", kServer<&ServerConfig::max_clients>, 1, 65536,
            "Connections at once; one more is told so and closed."),
      Size("server.max_frame_bytes", kServer<&ServerConfig::max_frame_bytes>, 64 * kKiB,
           wire::kMaxFrameBytes,
           "The longest message taken from a client; a longer one ends its session."),
      Count("server.max_hashes_per_call", kServer<&ServerConfig::max_hashes_per_call>, 1,
            wire::kMaxHashesPerCall, "Block hashes or block handles in one message."),
      Count("server.max_references_per_session", kCache<&CacheOptions::max_references_per_session>,
            1, 1 << 30, "Blocks that one session may hold at once."),
      Count("server.max_models_per_tenant", kServer<&ServerConfig::max_models_per_tenant>, 1, 65536,
            "Models that the sessions of one tenant may use at once. Weights that change, and "
            "each rank, are models of their own."),
      Size("server.max_outbound_bytes_per_client",
           kServer<&ServerConfig::max_outbound_bytes_per_client>, 64 * kKiB, 1 * kGiB,
           "Replies waiting for one client to read them. Above this the daemon stops reading that "
           "client's requests."),
      Milliseconds("server.slow_reader_timeout_ms", kServer<&ServerConfig::slow_reader_timeout_ms>,
                   10, kHourMs, "A client that leaves replies unread for so long is disconnected."),
      Milliseconds("server.hello_timeout_ms", kServer<&ServerConfig::hello_timeout_ms>, 10, kHourMs,
                   "A connection that does not introduce itself within this time is closed."),
  };
}

std::vector<ConfigKey> TenantKeys() {
  return {
      Text("tenant.name", &TenantAt<&TenantConfig::name>, kMaxTenantBytes,
           "The tenant's name: letters, digits, `.`, `_` and `-`. Kept with the blocks on disk."),
      NameList("tenant.users", &TenantAt<&TenantConfig::users>,
               "Users by name, looked up when the configuration is read. No user may belong to two "
               "tenants."),
      IdList("tenant.uids", &TenantAt<&TenantConfig::uids>,
             "User ids. No user may belong to two tenants."),
      IdList("tenant.gids", &TenantAt<&TenantConfig::gids>,
             "Group ids (primary groups), for users that no tenant names. No group may belong to "
             "two tenants."),
      Size("tenant.pool_max_bytes", &TierQuotaAt<Tier::kPool, &TierQuota::max_bytes>, 0, kMaxBytes,
           "The tenant's pools together never take more; `0B`: no cap but `pool.bytes`."),
      Size("tenant.pool_reserved_bytes", &TierQuotaAt<Tier::kPool, &TierQuota::reserved_bytes>, 0,
           kMaxBytes, "Pools of other tenants leave this much of `pool.bytes` to the tenant's."),
      Size("tenant.host_max_bytes", &TierQuotaAt<Tier::kHost, &TierQuota::max_bytes>, 0, kMaxBytes,
           "The tenant's blocks in host memory, with their headers, never take more: at its cap a "
           "tenant evicts its own coldest. At least one slab; `0B`: no cap but `host.bytes`."),
      Size("tenant.host_reserved_bytes", &TierQuotaAt<Tier::kHost, &TierQuota::reserved_bytes>, 0,
           kMaxBytes,
           "Blocks of the tenant are not evicted for others while it has no more than this of host "
           "memory, and it gets this much back from them. In whole slabs, rounded up, which the "
           "tenant has to itself."),
      Size("tenant.disk_max_bytes", &TierQuotaAt<Tier::kDisk, &TierQuota::max_bytes>, 0, kMaxBytes,
           "The same as `host_max_bytes`, on disk."),
      Size("tenant.disk_reserved_bytes", &TierQuotaAt<Tier::kDisk, &TierQuota::reserved_bytes>, 0,
           kMaxBytes, "The same as `host_reserved_bytes`, on disk."),
      Duration("tenant.memory_ttl", &QuotaAt<&TenantQuota::memory_ttl_ms>, 0, kYearMs,
               "In place of `retention.memory_ttl`; `0s`: the same."),
      Duration("tenant.extended_ttl", &QuotaAt<&TenantQuota::extended_ttl_ms>, 0, kYearMs,
               "In place of `retention.extended_ttl`; `0s`: the same."),
      Duration("tenant.max_age", &QuotaAt<&TenantQuota::max_age_ms>, 0, kYearMs,
               "In place of `retention.max_age`; `0s`: the same."),
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
      Size("pool.bytes", kCache<&CacheOptions::pool_bytes>, 64 * kKiB, kMaxBytes,
           "Memory of all pools of a device together: a hard cap, taken as clients attach. On a "
           "GPU it is rounded down to whole 2 MiB."),
      Ranged(kSizeList, "pool.device_bytes", kPool<&PoolConfig::device_bytes>, 64 * kKiB, kMaxBytes,
             "If not empty, takes the place of `pool.bytes`: one size for each device of "
             "`pool.device`, in their order."),
      Fraction(
          "pool.free_fraction", kPool<&PoolConfig::free_fraction>, 0, 0.99,
          "If not 0, takes the place of `pool.bytes`: this share of the memory that each device "
          "has free when the daemon starts."),
      Choice(
          "pool.eviction", &ChoiceAt<&Config::cache, &CacheOptions::pool_eviction>, {"cls", "lru"},
          "Which block a pool evicts: `lru` the least recently used; `cls` the one of the lowest "
          "rank by how often it was used and how long it has been idle, as the pool learns from "
          "its own blocks. Host memory and disk evict the least recently used."),
      Count("pool.copy_threads", kPool<&PoolConfig::copy_threads>, 1, 64,
            "Threads that copy between pool and host memory on the host device."),
      Size("pool.offload_bytes_per_s", kPool<&PoolConfig::offload_bytes_per_s>, 0, kMaxBytes,
           "How many bytes a second are copied from a GPU to host memory ahead of need; `0B`: no "
           "limit. What is waited for is never held back."),
      Boolean("pool.keep", kPool<&PoolConfig::keep>, "Whether pools outlive the daemon, too."),
  };
}

std::vector<ConfigKey> HostKeys() {
  return {
      Size("host.bytes", kHost<&HostConfig::bytes>, 64 * kKiB, kMaxBytes,
           "Size of the arena: a hard cap. Rounded down to whole slabs (`cache.slab_bytes`)."),
      Boolean("host.keep", kHost<&HostConfig::keep>,
              "Whether host memory outlives the daemon: its blocks are hits after a restart or a "
              "crash. systemd or `kvtier-keeper` holds it meanwhile; see `restart.keep_for`. It is "
              "shared memory then, which has huge pages only where the kernel gives them to it "
              "(`/sys/kernel/mm/transparent_hugepage/shmem_enabled`)."),
      Count("host.touch_threads", kHost<&HostConfig::touch_threads>, 0, 64,
            "Threads that allocate the arena's memory in the background after a start; it is "
            "used from the first part on. `0`: two fewer than the cores that the daemon may use, "
            "2 to 16."),
      Count("host.checksum_threads", kHost<&HostConfig::checksum_threads>, 0, 64,
            "Threads that compute checksums of payloads. They sleep when there is nothing to "
            "check, and give way (nice 10) to others that want their cores. `0`: two fewer than "
            "the cores that the daemon may use, 2 to 16. Where a quota of processor time is less "
            "than these cores (CPUQuota=, a container's limit), say how many."),
  };
}

std::vector<ConfigKey> DiskKeys() {
  return {
      Path("disk.directory", kDisk<&DiskConfig::directory>, kMaxPathBytes,
           "Holds the tier's files, its index and its lock. Created if its parent exists."),
      Size("disk.bytes", kDisk<&DiskConfig::bytes>, 0, kMaxBytes,
           "Size of the files together: a hard cap, allocated at the first start. `0B`: no "
           "disk tier."),
      Count("disk.files", kDisk<&DiskConfig::files>, 1, kMaxDiskFiles,
            "How many files (`blocks-00.kvt` and so on) the tier is striped over; symbolic links "
            "put them on several disks."),
      Choice("disk.engine", &ChoiceAt<&Config::disk, &DiskConfig::engine>,
             {"auto", "io_uring", "pread"},
             "How the files are read and written. `auto` takes io_uring where the kernel "
             "allows it, else a pool of threads, and says which."),
      Count("disk.pread_threads", kDisk<&DiskConfig::pread_threads>, 1, 256,
            "Threads of the `pread` engine."),
      Boolean("disk.reformat", kDisk<&DiskConfig::reformat>,
              "Allows files of another shape (`cache.slab_bytes`, `disk.files`) or with "
              "damaged superblocks to be emptied and made anew; otherwise the daemon refuses "
              "to start on them."),
      Choice("disk.encryption", &ChoiceAt<&Config::disk, &DiskConfig::encryption>,
             {"none", "aes-256-gcm"},
             "What lies on disk can be read with keys in memory (`disk.keys`), one for each tenant "
             "and hour, kept over a restart as host memory is (`restart.keep_for`). Without them, "
             "and when this setting changes, the disk tier begins anew."),
      Choice("disk.keys", &ChoiceAt<&Config::disk, &DiskConfig::keys>, {"memory", "persist"},
             "`persist`: they are also in a file, wrapped by a root key, and survive a reboot."),
      Ranged(kText, "disk.root_key", kDisk<&DiskConfig::root_key>, 0, kMaxPathBytes,
             "Wraps them, 32 bytes: a file closed to others, or the name of a credential."),
      Ranged(kText, "disk.previous_root_key", kDisk<&DiskConfig::previous_root_key>, 0,
             kMaxPathBytes, "Opens that file once, after a change of the root key."),
      Size("disk.free_floor_bytes", kDisk<&DiskConfig::free_floor_bytes>, 0, kMaxBytes,
           "The file system keeps at least this much free: the files are made smaller than "
           "`disk.bytes` if it must be, and the log and `status` say so."),
      Size("disk.rated_writes", kDisk<&DiskConfig::rated_write_bytes>, 0, kMaxRatedBytes,
           "Bytes that the drive may be written in its life, as its maker says (TBW); of several "
           "drives, all together. For a metric alone; `0B`: not known."),
      Fraction("disk.admission", kCache<&CacheOptions::disk_admission>, 0, 0.9,
               "A block is written only if it is at least so likely to be used again before it "
               "expires, as the daemon learns from its own blocks, or if one that follows it is "
               "written; pinned blocks always are. 0: all `extended` blocks are written."),
      Size(
          "disk.write_budget_per_day", kCache<&CacheOptions::disk_write_budget_bytes_per_day>, 0,
          kMaxBytes,
          "Bytes written per UTC day, to spare the disk; `0B`: no limit. Blocks refused for "
          "it are counted. While more has been written than the day's share by now, blocks must be "
          "likelier to be used again than `disk.admission` says, so that it lasts for the day."),
  };
}

std::vector<ConfigKey> RetentionKeys() {
  return {
      Duration("retention.memory_ttl", kCache<&CacheOptions::memory_ttl_ms>, kSecondMs, kYearMs,
               "A block of class `memory` is forgotten when it was not used for so long."),
      Duration("retention.extended_ttl", kCache<&CacheOptions::extended_ttl_ms>, kSecondMs, kYearMs,
               "A block of class `extended` is forgotten when it was not used for so long."),
      Duration("retention.max_age", kCache<&CacheOptions::max_age_ms>, 0, kYearMs,
               "A block older than this is forgotten, however often it is used; `0s`: no limit."),
      Duration("retention.persist_after", kCache<&CacheOptions::persist_after_ms>, 0, kYearMs,
               "An `extended` block that was idle for so long is written to disk, pushed or not."),
      Duration("retention.keep_unusable", kCache<&CacheOptions::keep_unusable_ms>, 0, kYearMs,
               "Blocks that follow one that no tier holds any more cannot be hit; they are dropped "
               "when it has not come back for so long."),
  };
}

std::vector<ConfigKey> CacheKeys() {
  return {
      Size("cache.slab_bytes", kCache<&CacheOptions::slab_bytes>, 64 * kKiB, 1 * kGiB,
           "Host arena and disk are cut into slabs, a slab into equal slots for one model. "
           "The largest block and its 4 KiB header must fit into one."),
      Fraction("cache.pool_clean_fraction", kCache<&CacheOptions::pool_clean_fraction>, 0, 0.9,
               "The coldest share of the pool that is copied to host memory ahead of need."),
      Fraction("cache.host_clean_fraction", kCache<&CacheOptions::host_clean_fraction>, 0, 0.9,
               "The coldest share of host memory that is written to disk ahead of need."),
      Fraction("cache.disk_free_fraction", kCache<&CacheOptions::disk_free_fraction>, 0, 0.5,
               "The share of the disk's slots that is kept free."),
      Fraction("cache.pin_fraction", kCache<&CacheOptions::pin_fraction>, 0, 0.9,
               "The share of the lowest tier's blocks that may be pinned."),
      Milliseconds("cache.max_wait_ms", kCache<&CacheOptions::max_wait_ms>, 0, kMinuteMs,
                   "How long an acquire may wait for blocks to be offloaded before unsaved "
                   "ones are dropped."),
      Milliseconds("cache.read_slot_wait_ms", kCache<&CacheOptions::read_slot_wait_ms>, 0,
                   kMinuteMs,
                   "A read from disk that has waited so long for host memory takes that of a block "
                   "which has arrived in the pool; host then no longer holds that one."),
      Size("cache.max_load_bytes", kCache<&CacheOptions::max_load_bytes>, 64 * kKiB, 64 * kGiB,
           "Bytes being copied from host memory to the pool at once."),
      Size("cache.max_offload_bytes", kCache<&CacheOptions::max_offload_bytes>, 64 * kKiB,
           64 * kGiB, "Bytes being copied from the pool to host memory at once."),
      Size("cache.max_disk_read_bytes", kCache<&CacheOptions::max_disk_read_bytes>, 64 * kKiB,
           64 * kGiB,
           "Bytes being read from disk and checked at once, over all files; the only bound on "
           "reads. More keeps a fast drive busier, and takes as much of host memory while blocks "
           "are read."),
      Size("cache.max_disk_write_bytes", kCache<&CacheOptions::max_disk_write_bytes>, 64 * kKiB,
           64 * kGiB, "Bytes being written to disk at once."),
  };
}

std::vector<ConfigKey> KernelsKeys() {
  return {
      Boolean(
          "kernels.enabled", &At<&Config::kernels, &KernelsConfig::enabled>,
          "Whether the daemon computes attention. If so, it tries out what it computes with before "
          "clients use it (on a GPU when that has its first pool), and says in the log and in "
          "`status` whether all was right; if not, it goes on without."),
      Ranged(kPath, "kernels.library", &At<&Config::kernels, &KernelsConfig::library>, 0,
             kMaxPathBytes,
             "The kernels for pools on a GPU. Empty: `libkvtier_kernels.so` beside the program, in "
             "`lib` beside that, or where the dynamic linker finds it."),
      Count("kernels.threads", &At<&Config::kernels, &KernelsConfig::threads>, 1, 64,
            "Threads that compute for pools in host memory; one call runs on one of them."),
      Size(
          "kernels.workspace_bytes", &At<&Config::kernels, &KernelsConfig::workspace_bytes>, 0,
          64 * kGiB,
          "Memory for queries and results of all clients together, on the pool's device and beside "
          "`pool.bytes`: a hard cap, counted in 2 MiB."),
  };
}

std::vector<ConfigKey> KeptMemoryKeys() {
  return {
      Duration("kept_memory.keep_for", &At<&Config::kept_memory, &KeptMemoryConfig::keep_for_ms>, 0,
               kYearMs,
               "How long the memory of an engine that has ended is kept for the next; `0s`: not at "
               "all. Until then no other process can use it: `kvtierctl release-memory` gives it "
               "back at once."),
      Size(
          "kept_memory.max_bytes", &At<&Config::kept_memory, &KeptMemoryConfig::max_bytes>, 0,
          kMaxBytes,
          "How much memory may be kept for all engines together, whether or not they run; `0B`: no "
          "limit. Beside `pool.bytes` and `host.bytes`."),
  };
}

std::vector<ConfigKey> LogKeys() {
  return {
      Choice("log.level", &ChoiceAt<&Config::log, &LogConfig::level>,
             {"debug", "info", "warning", "error"}, "The least important messages shown."),
      Choice("log.format", &ChoiceAt<&Config::log, &LogConfig::format>,
             {"auto", "text", "json", "journal"},
             "`text`: lines for people; `json`: one object per line; `journal`: entries of "
             "systemd's journal with the fields PRIORITY and KVTIER_ID. `auto`: `journal` where "
             "standard error leads there, else `text`."),
  };
}

std::vector<ConfigKey> DrainKeys() {
  return {
      Duration("drain.deadline", &At<&Config::drain, &DrainConfig::deadline_ms>, 0, kDayMs,
               "How long the daemon goes on writing `extended` blocks to disk before "
               "it ends; `0s`: not at all. systemd's stop time-out is put off as needed."),
  };
}

std::vector<ConfigKey> RestartKeys() {
  return {
      Duration(
          "restart.keep_for", &At<&Config::restart, &RestartConfig::keep_for_ms>, 0, kYearMs,
          "How long `kvtier-keeper` holds what is kept when the daemon has ended, whether by a "
          "crash or by SIGTERM; the memory is in use meanwhile. `0s`: nothing is kept. "
          "systemd's store knows no time: it holds until the unit is stopped. `kvtierctl stop "
          "--release` gives everything back at once."),
  };
}

std::vector<ConfigKey> MetricsKeys() {
  return {
      Ranged(
          kText, "metrics.listen", &At<&Config::metrics, &MetricsConfig::listen>, 0, 64,
          "Address and port, for example `127.0.0.1:9400` or `[::1]:9400`; addresses of this "
          "machine alone are allowed, port 0 takes a free one and logs it. Every process of this "
          "machine may read the pages. Empty: no pages."),
      Boolean(
          "metrics.listen_beyond_loopback",
          &At<&Config::metrics, &MetricsConfig::listen_beyond_loopback>,
          "`metrics.listen` may be any address, as `0.0.0.0:9400`: other machines get `/metrics` "
          "and `/healthz` without a password, and no other page."),
      Count("metrics.models_per_tenant", &At<&Config::metrics, &MetricsConfig::models_per_tenant>,
            0, 1024,
            "Models of a tenant, by name, that have metrics of their own, those registered first; "
            "the others are summed up without a model's name. Each has 13 series."),
  };
}

std::vector<ConfigKey> EventsKeys() {
  return {
      Ranged(kText, "events.endpoint", kEvents<&EventsConfig::endpoint>, 0, kMaxPathBytes,
             "Where routers subscribe, by ZMQ: `tcp://127.0.0.1:5557` or `ipc:///PATH`. Every "
             "process that can reach it learns which hashes are cached. Empty: no events."),
      Ranged(kText, "events.replay_endpoint", kEvents<&EventsConfig::replay_endpoint>, 0,
             kMaxPathBytes, "Where routers ask for batches that they missed. Empty: nowhere."),
      Boolean("events.listen_beyond_loopback", kEvents<&EventsConfig::listen_beyond_loopback>,
              "Both may be any address, as `tcp://0.0.0.0:5557`: other machines get the events "
              "without a password."),
      Text("events.topic", kEvents<&EventsConfig::topic>, 256,
           "The topic of a model's events; `<pod>`, `<model>`, `<tenant>` and `<fingerprint>` "
           "stand for what they say."),
      Ranged(kText, "events.pod", kEvents<&EventsConfig::pod>, 0, 253,
             "What routers call this daemon. Empty: the host's name."),
      NameList("events.tenants", kEvents<&EventsConfig::tenants>,
               "Tenants whose blocks are told of, beside `default`."),
      NameList("events.token_ids", kEvents<&EventsConfig::token_ids>,
               "Tenants of whose blocks clients may tell which tokens they hold, and whose events "
               "then say it. Ids are prompts: they are kept in memory, and on disk with the index. "
               "Empty: no ids are taken."),
      Size("events.token_bytes", kEvents<&EventsConfig::token_bytes>, 1 * kMiB, kMaxBytes,
           "Memory for ids, shared equally among those tenants: 96 bytes for a block of 16 tokens. "
           "Blocks beyond it are told of without ids."),
      Choice("events.media", &ChoiceAt<&Config::events, &EventsConfig::media>, {"vllm", "sglang"},
             "How tiers are called: GPU, CPU, STORAGE or GPU, CPU_PINNED, DISK."),
      Choice("events.encoding", &ChoiceAt<&Config::events, &EventsConfig::encoding>,
             {"map", "array"}, "The form of an event: `array` for llm-d-kv-cache and AIBrix."),
      Choice(
          "events.hash", &ChoiceAt<&Config::events, &EventsConfig::hash>, {"int64", "bytes"},
          "The form of a hash: 8 of its bytes, as the engine of `events.media` does, or all 32."),
      Count("events.buffer_steps", kEvents<&EventsConfig::buffer_steps>, 1, 1 << 20,
            "Batches kept for routers that are behind, in 64 MiB at most."),
      Boolean("events.snapshots", kEvents<&EventsConfig::snapshots>,
              "Whether a router that subscribes, or fell too far behind, is told all there is."),
  };
}

std::vector<ConfigKey> TraceKeys() {
  return {
      Count("trace.events", &At<&Config::trace, &TraceConfig::events>, 0, 1 << 24,
            "The latest events of requests and blocks are kept, so many, in 64 bytes each; 0: "
            "none. A request that hits leaves two, a block that comes from disk eight."),
  };
}

std::vector<ConfigKey> AllKeys() {
  std::vector<ConfigKey> all;
  for (const auto& keys :
       {ServerKeys(), TenantKeys(), PoolKeys(), HostKeys(), DiskKeys(), ColdKeys(), RetentionKeys(),
        CacheKeys(), KernelsKeys(), KeptMemoryKeys(), LogKeys(), DrainKeys(), RestartKeys(),
        MetricsKeys(), EventsKeys(), TraceKeys()}) {
    all.insert(all.end(), keys.begin(), keys.end());
  }
  MarkReloadable(&all);
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
