// SPDX-License-Identifier: Apache-2.0
#include "daemon/app/service.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "base/byte_size.h"

namespace kvtier {
namespace {

// systemd advises half of its interval; a third leaves room for one beat that comes late.
constexpr int64_t kBeatsPerWatchdog = 3;
constexpr int64_t kStatusMs = 2000;

// Clients cost a descriptor each, and processes in quarantine, too.
void RaiseDescriptorLimit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

std::string TierStatus(std::string_view name, uint64_t used_bytes, uint64_t capacity_bytes) {
  if (capacity_bytes == 0) return fmt::format("{} off", name);
  return fmt::format("{} {} of {}", name, FormatByteSize(used_bytes),
                     FormatByteSize(capacity_bytes));
}

}  // namespace

Service::Service(const Config& config, std::function<Result<Config>()> read_again)
    : read_again_(std::move(read_again)),
      log_(config.log),
      daemon_(config, &loop_, &log_, &peers_, &manager_),
      alive_(&loop_),
      status_(&loop_) {}

int Service::Run() {
  ::umask(0077);
  std::signal(SIGPIPE, SIG_IGN);
  // Its default would end the process before the loop can take it.
  std::signal(SIGHUP, SIG_IGN);
  RaiseDescriptorLimit();
  if (const Status started = daemon_.Start(); !started) {
    log_.Error("daemon.failed", "{}", started.error().ToString());
    manager_.Status("cannot start: " + started.error().context);
    return IsConfigurationError(started.error()) ? kExitConfiguration : kExitFailure;
  }
  loop_.OnSignals({SIGTERM, SIGINT, SIGHUP}, [this](int signal) { OnSignal(signal); });
  StartHeartbeats();
  const ServerConfig& server = daemon_.config().server;
  fmt::print("READY socket={} admin_socket={} pid={}\n", server.socket, server.admin_socket,
             ::getpid());
  std::fflush(stdout);
  manager_.Ready(StatusLine());
  loop_.Run();
  log_.Info("daemon.stopped", "pid {}", ::getpid());
  // Copies that did not end in time still use what would be destroyed; whatever is on disk is safe.
  if (!daemon_.idle()) std::_Exit(0);
  return 0;
}

void Service::StartHeartbeats() {
  if (const int64_t watchdog_ms = ServiceManager::WatchdogMs(); watchdog_ms > 0) {
    alive_.Start(std::max<int64_t>(watchdog_ms / kBeatsPerWatchdog, 1),
                 [this] { manager_.Alive(); });
  }
  status_.Start(kStatusMs, [this] {
    if (!stopping_) manager_.Status(StatusLine());
  });
}

std::string Service::StatusLine() const {
  const CacheGauges gauges = daemon_.Gauges();
  return fmt::format("Serving {} client(s): {}, {}, {}", daemon_.session_count(),
                     TierStatus("pool", gauges.pool_used_bytes, gauges.pool_capacity_bytes),
                     TierStatus("host", gauges.host_used_bytes, gauges.host_capacity_bytes),
                     TierStatus("disk", gauges.disk_used_bytes, gauges.disk_capacity_bytes));
}

void Service::OnSignal(int signal) {
  if (signal != SIGHUP) return Stop(signal);
  if (stopping_) {
    log_.Warning("config.not_reloaded", "the daemon is being stopped");
    return;
  }
  Reload();
}

void Service::Reload() {
  manager_.Reloading();
  const Result<Config> wanted = read_again_();
  const Status taken = wanted ? daemon_.Reload(*wanted) : tl::unexpected(wanted.error());
  if (!taken) {
    log_.Error("config.rejected", "{}; nothing was changed", taken.error().context);
  }
  manager_.Ready(StatusLine());
}

void Service::Stop(int signal) {
  if (std::exchange(stopping_, true)) {
    log_.Warning("daemon.killed", "second signal ({}): ending at once", signal);
    std::_Exit(kExitFailure);
  }
  log_.Info("daemon.stopping", "signal {}", signal);
  daemon_.BeginShutdown([this] { loop_.Stop(); });
}

}  // namespace kvtier
