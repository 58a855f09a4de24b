// SPDX-License-Identifier: Apache-2.0
// The process: owns every part, brings them up in order and takes them down in reverse.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/executor.h"
#include "base/result.h"
#include "daemon/admin/admin_operations.h"
#include "daemon/admin/admin_server.h"
#include "daemon/admin/trace_ring.h"
#include "daemon/app/cache_owner.h"
#include "daemon/app/disk_retry.h"
#include "daemon/app/shutdown.h"
#include "daemon/attention/attention_service.h"
#include "daemon/config/config.h"
#include "daemon/config/config_check.h"
#include "daemon/events/event_service.h"
#include "daemon/keeper/descriptor_store.h"
#include "daemon/metrics/metrics_server.h"
#include "daemon/metrics/metrics_snapshot.h"
#include "daemon/net/peer.h"
#include "daemon/resources/cold_tier.h"
#include "daemon/resources/device_opening.h"
#include "daemon/resources/disk_tier.h"
#include "daemon/resources/kept_pools.h"
#include "daemon/runtime/event_loop.h"
#include "daemon/runtime/log.h"
#include "daemon/runtime/supervision.h"
#include "daemon/session/former_clients.h"
#include "daemon/session/kept_memories.h"
#include "daemon/session/server.h"
#include "gpu/device.h"
#include "tiers/cache.h"
#include "tiers/memory/mapped_arena.h"

namespace kvtier {

// Event loop only; Start and the destructor may also run while the loop does not. It owns
// everything that serves, and the loop, the log and the supervision are lent to it by Service. The
// order of its members is the order of construction, and their destruction in reverse is what makes
// the pointers between them safe.
class Daemon {
 public:
  // All are borrowed and outlive the daemon. REQUIRES: `config` passed CheckConfig.
  Daemon(const Config& config, EventLoop* loop, Log* log, PeerInspector* peers,
         ServiceManager* manager);
  ~Daemon();
  Daemon(const Daemon&) = delete;
  Daemon& operator=(const Daemon&) = delete;

  // Opens the tiers, which may take seconds, and binds the sockets; clients are served once the
  // loop runs. Errors: of whatever could not be opened, as AnnotateWithKey puts them.
  [[nodiscard]] Status Start();
  // Takes over the settings that can change at run time, all of them or none, and logs which it
  // took and which wait for a restart. Errors: those of CheckConfig, CheckPinnedFit and
  // Cache::Reconfigure. REQUIRES: started.
  [[nodiscard]] Status Reload(const Config& wanted);
  // Drains and calls `finished`; then the loop should be stopped. REQUIRES: started.
  void BeginShutdown(std::function<void()> finished);

  // The configuration in effect.
  [[nodiscard]] const Config& config() const { return config_; }
  // REQUIRES: started.
  [[nodiscard]] CacheGauges Gauges() const { return cache_->Gauges(); }
  [[nodiscard]] size_t session_count() const { return server_->session_count(); }
  // Has `on_back` be called once a disk tier that this start had to do without can be had: then the
  // daemon should be started again. At most once. REQUIRES: started.
  void WatchForDisk(std::function<void()> on_back);
  // No copy, disk I/O or computation is under way: the daemon may be destroyed. Otherwise the
  // process should end without destroying it, since those still use its memory.
  [[nodiscard]] bool idle() const {
    return cache_ == nullptr || (cache_->Idle() && attention_->idle());
  }
  // For the last line of the log: memory that is in use without a daemon surprises.
  [[nodiscard]] std::string WhatStaysKept() const;
  // Where the metrics page is, with the port chosen; empty without one. REQUIRES: started.
  [[nodiscard]] std::string metrics_url() const {
    return metrics_server_ ? metrics_server_->Url() : "";
  }

 private:
  // The parts of Start. Errors: those of what they open.
  [[nodiscard]] Status OpenDevices();
  // Asks the driver of the GPUs in use whether it still knows the process; empty without any.
  [[nodiscard]] Quarantine::KernelsRemain KernelsRemain();
  // Ends the process at once: a GPU's context that is broken can only be replaced by a new process.
  // May be called on the loop's thread only.
  [[noreturn]] void EndForLostDevice(const std::string& error);
  // Behind the disk's lock, so that memory is not taken from a daemon that runs. Once.
  void OpenDescriptors();
  // Takes the memory that an earlier daemon left in pools, before the devices report their free
  // memory.
  void OpenKeptPools();
  // Watches who had the pools of an earlier daemon.
  void WatchFormerClients(const Quarantine::KernelsRemain& kernels_remain);
  // Makes what serves clients and administrators; nothing is bound yet.
  void MakeServers();
  [[nodiscard]] Status OpenDisk();
  [[nodiscard]] Status OpenCold();
  [[nodiscard]] Status OpenArena();
  // Has its memory outlive this process.
  void KeepArena();
  // Whether something holds host memory and pools over this process's end.
  [[nodiscard]] bool KeepsMemory() const;
  // Where large memory outlives this process, it need not be waited for.
  void EndInBackground();
  [[nodiscard]] bool MayUseCuda() const;
  [[nodiscard]] bool UsesCuda() const;
  void MakeCache();
  // Says in the log which of the tenants' reserves this machine cannot keep; the daemon goes on.
  void WarnOfReserves(const CacheEnvironment& environment);
  [[nodiscard]] Status Listen();
  [[nodiscard]] Status ListenForMetrics();
  // Makes what publishes events, if they are asked for.
  void MakeEvents();
  [[nodiscard]] Status ListenForEvents();
  // Drives everything that depends on time: the cache's deadlines, the history and the loop's lag.
  void TickForever();
  // Now and then gives memory back that clients have made the process allocate.
  void TrimHeap();
  [[nodiscard]] wire::DevicesReply WireDevices() const;

  // One line for each key that changes now, and for each that waits for a restart.
  void LogDifferences(const Config& wanted) const;

  // Parts look at it through pointers: a reload changes it in place.
  Config config_;
  EventLoop* const loop_;
  Log* const log_;
  PeerInspector* const peers_;
  ServiceManager* const manager_;
  const CoarseClock clock_;
  Network network_;
  const int64_t started_ms_ = clock_.MonotonicMs();

  // Destroyed from the last to the first: no part uses one that stands after it.
  TraceRing trace_;
  const CudaGpus gpus_;
  std::unique_ptr<DeferredPinner> pinner_;    // null: no GPU
  std::vector<OpenedDevice> devices_;         // by DeviceIndex
  std::unique_ptr<Device> lent_host_memory_;  // copies to and from regions in host memory
  std::unique_ptr<DaemonCacheOwner> cache_owner_;
  std::unique_ptr<MappedArena> arena_;
  // Checksums and other work that takes milliseconds; its answers arrive as events of the loop.
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<DescriptorStore> descriptors_;
  std::unique_ptr<KeptPools> kept_pools_;
  std::unique_ptr<DiskTier> disk_;
  std::optional<UniqueFd> unused_keys_;  // of a disk tier that could not be had
  std::optional<Error> without_disk_;    // why
  std::unique_ptr<ColdTier> cold_;       // null: off
  std::unique_ptr<AttentionService> attention_;
  std::unique_ptr<EventService> events_;  // null: off
  std::unique_ptr<Cache> cache_;
  wire::DevicesReply wire_devices_;
  ServerCounters counters_;
  std::unique_ptr<ModelRegistry> models_;
  std::unique_ptr<KeptMemories> kept_memories_;
  std::unique_ptr<FormerClients> former_clients_;
  std::unique_ptr<Server> server_;
  std::unique_ptr<Shutdown> shutdown_;
  std::unique_ptr<AdminOperations> admin_operations_;
  std::unique_ptr<AdminServer> admin_server_;
  LoopLag loop_lag_;
  HitHistory history_;
  MetricsSources metrics_sources_;
  std::unique_ptr<MetricsServer> metrics_server_;  // null: not asked for
  std::unique_ptr<DiskRetry> disk_retry_;  // null: the disk is there, or cannot come by itself
  bool ends_in_background_ = false;
  int64_t trim_at_ms_ = 0;
  Timer tick_;
};

}  // namespace kvtier
