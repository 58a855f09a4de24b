// SPDX-License-Identifier: Apache-2.0
// The process: owns every part, brings them up in order and takes them down in reverse.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/result.h"
#include "daemon/admin/admin_operations.h"
#include "daemon/admin/admin_server.h"
#include "daemon/admin/trace_ring.h"
#include "daemon/app/cache_owner.h"
#include "daemon/app/resources.h"
#include "daemon/app/shutdown.h"
#include "daemon/attention/attention_service.h"
#include "daemon/config/config.h"
#include "daemon/config/config_check.h"
#include "daemon/events/event_service.h"
#include "daemon/metrics/metrics_server.h"
#include "daemon/metrics/metrics_snapshot.h"
#include "daemon/net/peer.h"
#include "daemon/runtime/event_loop.h"
#include "daemon/runtime/log.h"
#include "daemon/runtime/supervision.h"
#include "daemon/session/former_clients.h"
#include "daemon/session/kept_memories.h"
#include "daemon/session/server.h"
#include "tiers/cache.h"

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
  // took and which wait for a restart. Errors: those of CheckConfig, CheckPinnedFit,
  // MappedArena::MayResize and Cache::Reconfigure. REQUIRES: started.
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
  void WatchForDisk(std::function<void()> on_back) { resources_.WatchForDisk(std::move(on_back)); }
  // No copy, disk I/O, computation or question to a file system is under way: the daemon may be
  // destroyed. Otherwise the process should end without destroying it, since those still use its
  // memory, and may never end.
  [[nodiscard]] bool idle() const {
    return cache_ == nullptr || (cache_->Idle() && attention_->idle() && resources_.idle());
  }
  // For a process that ends in order, but without destroying the daemon.
  void TakeBackAdoption() {
    if (HostTable* const table = resources_.arena()->table()) table->TakeBackAdoption();
  }
  // For the last line of the log: memory that is in use without a daemon surprises.
  [[nodiscard]] std::string WhatStaysKept() const { return resources_.WhatStaysKept(); }

 private:
  // The parts of Start. Errors: those of what they open.
  // Watches who had the pools of an earlier daemon.
  void WatchFormerClients(const Quarantine::KernelsRemain& kernels_remain);
  // Makes what serves clients and administrators; nothing is bound yet.
  void MakeServers();
  void MakeAdmin();
  void MakeCache();
  // Says in the log which of the tenants' reserves this machine cannot keep; the daemon goes on.
  void WarnOfReserves(const CacheEnvironment& environment);
  [[nodiscard]] Status PrepareSockets() const;
  [[nodiscard]] Status Listen();
  [[nodiscard]] Status ListenForMetrics();
  // Makes what publishes events, if they are asked for.
  void MakeEvents();
  [[nodiscard]] Status ListenForEvents();
  // Drives everything that depends on time: the cache's deadlines, the history and the loop's lag.
  void TickForever();

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

  // Destroyed from the last to the first: no part uses one that stands after it.
  TraceRing trace_;
  std::unique_ptr<DaemonCacheOwner> cache_owner_;
  Resources resources_;
  std::unique_ptr<AttentionService> attention_;
  std::unique_ptr<EventService> events_;  // null: off
  std::unique_ptr<Cache> cache_;
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
  Timer tick_;
};

}  // namespace kvtier
