// The process: owns every part, brings them up in order and takes them down in reverse.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "base/executor.h"
#include "base/result.h"
#include "daemon/admin_operations.h"
#include "daemon/admin_server.h"
#include "daemon/coarse_clock.h"
#include "daemon/config.h"
#include "daemon/disk_tier.h"
#include "daemon/event_loop.h"
#include "daemon/hit_history.h"
#include "daemon/log.h"
#include "daemon/loop_pulse.h"
#include "daemon/metrics_server.h"
#include "daemon/peer.h"
#include "daemon/server.h"
#include "daemon/shutdown.h"
#include "gpu/device.h"
#include "tiers/cache.h"
#include "tiers/host_arena.h"

namespace kvtier {

class Daemon {
 public:
  // All are borrowed and outlive the daemon. REQUIRES: `config` passed CheckConfig.
  Daemon(const Config& config, EventLoop* loop, Log* log, PeerInspector* peers);
  ~Daemon();
  Daemon(const Daemon&) = delete;
  Daemon& operator=(const Daemon&) = delete;

  // Opens the tiers, which may take seconds, and binds the sockets; clients are served once the
  // loop runs. Errors: of whatever could not be opened; see IsConfigurationError.
  [[nodiscard]] Status Start();
  // Drains and calls `finished`; then the loop should be stopped. REQUIRES: started.
  void BeginShutdown(std::function<void()> finished);

  // Nothing is under way: the daemon may be destroyed. Otherwise the process should end without.
  [[nodiscard]] bool idle() const { return cache_ == nullptr || cache_->Idle(); }
  // Where the metrics page is, with the port chosen; empty without one. REQUIRES: started.
  [[nodiscard]] std::string metrics_url() const {
    return metrics_server_ ? metrics_server_->Url() : "";
  }

 private:
  [[nodiscard]] Status OpenArena();
  [[nodiscard]] Status OpenDevice();
  void MakeCache();
  [[nodiscard]] Status Listen();
  [[nodiscard]] Status ListenForMetrics();
  void TickForever();
  [[nodiscard]] StatusSource Source() const;

  const Config& config_;
  EventLoop* const loop_;
  Log* const log_;
  PeerInspector* const peers_;
  const CoarseClock clock_;
  const int64_t started_ms_;

  // Destroyed from the last to the first: nobody uses what stands after it.
  std::unique_ptr<HostArena> arena_;
  std::unique_ptr<DiskTier> disk_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<Cache> cache_;
  std::unique_ptr<Server> server_;
  std::unique_ptr<Shutdown> shutdown_;
  std::unique_ptr<AdminOperations> admin_operations_;
  std::unique_ptr<AdminServer> admin_server_;
  LoopPulse pulse_;
  HitHistory history_;
  std::unique_ptr<MetricsServer> metrics_server_;  // null: not asked for
  Timer tick_;
};

// Whether a failed Start is the configuration's fault, so that trying again will not help.
[[nodiscard]] bool IsConfigurationError(const Error& error);

}  // namespace kvtier
