// SPDX-License-Identifier: Apache-2.0
// The configuration of kvtierd: one value for each key of docs/CONFIGURATION.md, and some that no
// key sets, because no second value has been measured: tests change these. Plain data;
// config_schema.h says which keys exist, config_loader.h reads them.
//
// Values that were read are within their keys' ranges; CheckConfig says whether they go together.
// Sizes are in bytes, times in milliseconds; 0 means "no limit" or "off" where a comment says so. A
// Config is copied freely; the one in effect belongs to the Daemon and changes on the event loop
// only.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/units.h"
#include "protocol/limits.h"
#include "tiers/types/cache_options.h"

namespace kvtier {

enum class DiskEngine : uint8_t;  // tiers/storage/disk_files.h

// The sockets, and what one client may cost. The bounds apply to each connection alone.
struct ServerConfig {
  std::string socket = "/run/kvtier/kvtier.sock";
  std::string admin_socket = "/run/kvtier/admin.sock";
  uint32_t max_clients = 256;
  bool listen_beyond_loopback = false;  // for metrics and events
  // --- no keys: tests alone set them
  // The protocol's own limit.
  uint32_t max_hashes_per_call = wire::kMaxHashesPerCall;
  // An engine uses one model for each of its ranks, and others when its weights change.
  uint32_t max_models_per_tenant = 64;
  // Replies waiting for one client to read them: sixteen of the longest. Above this the daemon
  // stops reading that client's requests.
  uint64_t max_outbound_bytes_per_client = 4 * kMiB;
  // A client that reads nothing or says nothing for so long hangs: an engine under load answers
  // within a step, which takes some hundred milliseconds.
  int64_t slow_reader_timeout_ms = 5000;
  int64_t hello_timeout_ms = 5000;
};

// Names the tenant of all clients where none is configured.
inline constexpr std::string_view kDefaultTenant = "default";

// Which processes are one tenant: those of any of the users or groups.
struct TenantConfig {
  std::string name;
  std::vector<std::string> users;  // by name
  std::vector<uint32_t> uids;
  std::vector<uint32_t> gids;
  // Bounds how much the tenant takes. Its name is left empty here; QuotasOf (tenants.h) fills it
  // in.
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
  uint64_t offload_bytes_per_s = 0;    // 0: no limit
};

struct HostConfig {
  uint64_t bytes = 1 * kGiB;
};

enum class DiskEncryption : uint8_t { kNone, kAes256Gcm };

struct DiskConfig {
  std::string directory = "/var/lib/kvtier";
  std::vector<std::string> directories;  // empty: `directory` alone
  uint64_t bytes = 0;                    // over all of them; 0: no disk tier
  // No key, tests alone set it: io_uring is the faster one wherever the kernel allows it.
  DiskEngine engine{};  // kAuto
  DiskEncryption encryption = DiskEncryption::kNone;
  // Paths, or names of systemd's credentials. Empty: encryption keys are in memory alone.
  std::string root_key;
  std::string previous_root_key;
  uint64_t free_floor_bytes = 1 * kGiB;

  // Where the drives are, in the configured order.
  [[nodiscard]] std::vector<std::filesystem::path> Places() const {
    if (directories.empty()) return {directory};
    return {directories.begin(), directories.end()};
  }
};

// How the store is reached; CacheOptions says what goes there.
struct ColdConfig {
  std::string endpoint;       // as ParseColdEndpoint reads it; empty: no cold tier
  std::string password_file;  // a path; empty: no password
};

enum class LogLevel : uint8_t { kDebug, kInfo, kWarning, kError };
enum class LogFormat : uint8_t { kAuto, kText, kJson, kJournal };

struct LogConfig {
  LogLevel level = LogLevel::kInfo;
  LogFormat format = LogFormat::kAuto;
};

// 0: nothing is written at the end, and blocks that are not on disk by then are lost.
struct DrainConfig {
  int64_t deadline_ms = 60 * 1000;
};

// The holder of memory between two daemons waits so long for the second; 0: nothing is kept.
struct RestartConfig {
  int64_t keep_for_ms = 10 * kMinuteMs;
};

struct MetricsConfig {
  std::string listen;  // empty: nowhere
};

// Named in this order in config_schema.cc.
enum class EventFormat : uint8_t { kVllm, kVllmBytes, kLlmd, kLlmdBytes, kSglang };

// The events that tell routers which blocks the tiers hold (docs/EVENTS.md).
struct EventsConfig {
  std::string endpoint;                // empty: no events
  std::string replay_endpoint;         // empty: none
  std::string pod;                     // empty: the host's name
  std::vector<std::string> tenants;    // beside the tenant "default"
  std::vector<std::string> token_ids;  // tenants of whose blocks ids are kept and told
  uint64_t token_bytes = 256 * kMiB;
  EventFormat format = EventFormat::kVllm;
  // Batches kept for routers that are behind, in 64 MiB at most. No key, tests alone set it: vLLM's
  // publisher keeps as many.
  uint32_t buffer_steps = 10'000;
};

// The events that `kvtierctl trace` shows. No key, tests alone set it: as many events of 64 bytes
// reach back some seconds on a busy host. Recording costs a request 57 ns, and to switch it off
// made loads no faster.
struct TraceConfig {
  uint32_t events = 65'536;
};

// Attention for clients that launch no kernels.
struct KernelsConfig {
  bool enabled = true;
  // Bounds the workspaces of all sessions on all devices together; a tenant alone may have half. No
  // key, tests alone set it: 64 sequences with 64 heads of 128 elements take 1 MiB for queries and
  // as much for results, and the memory lies beside pool.bytes.
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
