// SPDX-License-Identifier: Apache-2.0
// The configuration of kvtierd: one value per key of docs/CONFIGURATION.md. Plain data;
// config_schema.h says which keys exist, config_loader.h reads them.
//
// Values that were read are within their keys' ranges; CheckConfig says whether they go together.
// Sizes are in bytes, times in milliseconds; 0 means "no limit" or "off" where a comment says so. A
// Config is copied freely; the one in effect belongs to the Daemon and changes on the event loop
// only.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/units.h"
#include "protocol/limits.h"
#include "tiers/types/cache_options.h"

namespace kvtier {

// The sockets, and what one client may cost. The bounds apply to each connection alone.
struct ServerConfig {
  std::string socket = "/run/kvtier/kvtier.sock";
  std::string admin_socket = "/run/kvtier/admin.sock";
  uint32_t max_clients = 256;
  uint64_t max_frame_bytes = wire::kMaxFrameBytes;
  uint32_t max_hashes_per_call = wire::kMaxHashesPerCall;
  uint32_t max_models_per_tenant = 64;
  uint64_t max_outbound_bytes_per_client = 4 * kMiB;
  int64_t slow_reader_timeout_ms = 5000;
  int64_t hello_timeout_ms = 5000;
};

// Which processes are one tenant: those of any of the users or groups.
struct TenantConfig {
  std::string name;
  std::vector<std::string> users;  // by name
  std::vector<uint32_t> uids;
  std::vector<uint32_t> gids;
  // The tenant's limits. Its name is left empty here; QuotasOf (tenants.h) fills it in.
  TenantQuota quota;
  std::string place;  // as in Config::places
  // The places of the tenant's keys, as in Config::places.
  std::map<std::string, std::string, std::less<>> places;
  // The numbers of `users`, which LookUpUsers fills in.
  std::vector<uint32_t> user_uids;
};

// kCuda is the GPU "cuda:0"; the values after it are the GPUs after that one, up to kMaxCudaDevices
// of them. See OrdinalOf.
enum class DeviceChoice : uint8_t { kAll, kHost, kCuda };
inline constexpr int kMaxCudaDevices = 16;

struct PoolConfig {
  std::vector<DeviceChoice> devices = {DeviceChoice::kAll};
  std::vector<uint64_t> device_bytes;  // of each device; empty: cache.pool_bytes for all
  double free_fraction = 0;            // 0: bytes count
  uint32_t copy_threads = 2;
  uint64_t offload_bytes_per_s = 0;  // 0: no limit
  bool keep = true;                  // over a restart, where something can keep it
};

struct HostConfig {
  uint64_t bytes = 1 * kGiB;
  bool keep = true;  // over a restart, where something can keep it
  // 0: as many as fit the machine (WorkerThreads).
  uint32_t touch_threads = 0;
  uint32_t checksum_threads = 0;
};

enum class DiskEngineChoice : uint8_t { kAuto, kIoUring, kPread };

enum class DiskEncryption : uint8_t { kNone, kAes256Gcm };
enum class DiskKeys : uint8_t { kMemory, kPersist };

struct DiskConfig {
  std::string directory = "/var/lib/kvtier";
  uint64_t bytes = 0;  // 0: no disk tier
  // The bytes are shared out equally; symbolic links may put the files on several disks.
  uint32_t files = 1;
  DiskEngineChoice engine = DiskEngineChoice::kAuto;
  uint32_t pread_threads = 8;
  bool reformat = false;
  DiskEncryption encryption = DiskEncryption::kNone;
  DiskKeys keys = DiskKeys::kMemory;
  // Paths, or names of systemd's credentials.
  std::string root_key;
  std::string previous_root_key;
  uint64_t free_floor_bytes = 1 * kGiB;
  uint64_t rated_write_bytes = 0;  // over the drives' life; 0: not known
};

enum class ColdKind : uint8_t { kNone, kResp, kRados };

// The store beyond this host; the cache's share is in CacheOptions.
struct ColdConfig {
  ColdKind kind = ColdKind::kNone;
  std::string endpoint;       // as the store's kind has it
  std::string user;           // empty: the store's default user
  std::string password_file;  // a path; empty: no password
  std::string library;        // empty: looked for
  uint64_t max_bytes_in_flight = 64 * kMiB;
  uint32_t delete_from_hour = 0;  // UTC
  uint32_t delete_hours = 24;
};

enum class LogLevel : uint8_t { kDebug, kInfo, kWarning, kError };
enum class LogFormat : uint8_t { kAuto, kText, kJson, kJournal };

struct LogConfig {
  LogLevel level = LogLevel::kInfo;
  LogFormat format = LogFormat::kAuto;
};

// 0: nothing is written at the end; blocks that are not on disk by then are lost with the process.
struct DrainConfig {
  int64_t deadline_ms = 60 * 1000;
};

// The holder of memory between two daemons waits so long for the second; 0: nothing is kept.
struct RestartConfig {
  int64_t keep_for_ms = 10 * kMinuteMs;
};

struct MetricsConfig {
  std::string listen;  // empty: nowhere
  bool listen_beyond_loopback = false;
  uint32_t models_per_tenant = 16;  // that have series of their own
};

// Named in this order in config_schema.cc. kVllm and kSglang call tiers and hashes differently.
enum class EventMedia : uint8_t { kVllm, kSglang };
enum class EventEncoding : uint8_t { kMap, kArray };
enum class EventHash : uint8_t { kInt64, kBytes };

// The events for routers about the blocks that the tiers hold (docs/EVENTS.md).
struct EventsConfig {
  std::string endpoint;         // empty: no events
  std::string replay_endpoint;  // empty: none
  bool listen_beyond_loopback = false;
  std::string topic = "kv@<pod>@<model>";
  std::string pod;                     // empty: the host's name
  std::vector<std::string> tenants;    // beside the tenant "default"
  std::vector<std::string> token_ids;  // tenants of whose blocks ids are kept and told
  uint64_t token_bytes = 256 * kMiB;
  EventMedia media = EventMedia::kVllm;
  EventEncoding encoding = EventEncoding::kMap;
  EventHash hash = EventHash::kInt64;
  uint32_t buffer_steps = 10'000;
  bool snapshots = true;
};

struct TraceConfig {
  uint32_t events = 65536;  // 0: none are kept
};

// Attention for clients that launch no kernels. `threads` are those of the CPU's engine, and
// `workspace_bytes` bounds the workspaces of all sessions on all devices together.
struct KernelsConfig {
  bool enabled = true;
  std::string library;  // empty: looked for
  uint32_t threads = 2;
  uint64_t workspace_bytes = 256 * kMiB;
};

// Memory of engines that the daemon holds for those that come after them.
struct KeptMemoryConfig {
  int64_t keep_for_ms = 10 * kMinuteMs;  // without an owner; 0: not at all
  uint64_t max_bytes = 0;                // of all together; 0: no limit
};

struct Config {
  ServerConfig server;
  std::vector<TenantConfig> tenants;
  PoolConfig pool;
  HostConfig host;
  DiskConfig disk;
  ColdConfig cold;
  KernelsConfig kernels;
  KeptMemoryConfig kept_memory;
  LogConfig log;
  DrainConfig drain;
  RestartConfig restart;
  MetricsConfig metrics;
  EventsConfig events;
  TraceConfig trace;
  // [retention], [cache] and the cache's share of [server], [pool] and [disk].
  CacheOptions cache;

  // Where a key, "section.name", was given, for complaints that can be made only later:
  // "FILE:LINE:COLUMN" or "--set ...". Without those left to their defaults and without tenants'.
  std::map<std::string, std::string, std::less<>> places;
};

}  // namespace kvtier
