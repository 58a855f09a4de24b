// SPDX-License-Identifier: Apache-2.0
#include "daemon/app/service.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <optional>
#include <thread>
#include <utility>

#include "base/units.h"
#include "daemon/config/config_check.h"
#include "daemon/runtime/process.h"

namespace kvtier {
namespace {

// systemd advises a beat at half of its interval. With a third, one beat may come late without a
// restart of a daemon that works.
constexpr int64_t kBeatsPerWatchdog = 3;
// The line for `systemctl status`; it is sent only when it has changed.
constexpr int64_t kStatusMs = 2000;
// How long a reload may take, the lookup of users in a directory service included.
constexpr int64_t kReadAgainTimeoutMs = 30'000;
// With fewer descriptors than this the index and a few clients hardly fit.
constexpr rlim_t kFewDescriptors = 64;

// Every client costs some descriptors, and so does every process in quarantine. Distributions set
// the soft limit to 1024 for programs that use select(), which this one does not.
void RaiseDescriptorLimit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

// Errors at the start name the file that could not be opened; with so few descriptors the limit is
// the likely reason, which the error itself does not say.
std::string DescriptorHint() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= kFewDescriptors) return "";
  return fmt::format(
      "; the process may have {} descriptors open (ulimit -n, LimitNOFILE=), which "
      "may be too few",
      limit.rlim_cur);
}

// The standard library and Boost throw when the machine, or a limit, gives no more threads, memory
// or descriptors. Turned into an error, the message names the limit to raise.
Status WithResources(const std::function<Status()>& start) {
  try {
    return start();
  } catch (...) {
    const std::exception_ptr thrown = std::current_exception();
    if (std::optional<Error> error = ErrorOf(thrown)) return tl::unexpected(*std::move(error));
    std::rethrow_exception(thrown);
  }
}

constexpr auto kPauseAfterFailure = std::chrono::seconds(3);

std::string TierStatus(std::string_view name, uint64_t used_bytes, uint64_t capacity_bytes) {
  if (capacity_bytes == 0) return fmt::format("{} off", name);
  return fmt::format("{} {} of {}", name, FormatByteSize(used_bytes),
                     FormatByteSize(capacity_bytes));
}

}  // namespace

int ExitCodeOfFailedStart(const Error& error) {
  if (IsConfigurationError(error)) return kExitConfiguration;
  if (ServiceManager::IsPresent()) std::this_thread::sleep_for(kPauseAfterFailure);
  return kExitFailure;
}

Service::Service(const Config& config, std::function<Result<Config>()> read_again,
                 std::string ready_text)
    : log_(config.log),
      reader_(&loop_, std::move(read_again), kReadAgainTimeoutMs),
      daemon_(config, &loop_, &log_, &peers_, &manager_),
      watchdog_(&loop_),
      status_(&loop_),
      ready_text_(std::move(ready_text)) {}

int Service::Run() {
  // Files of the disk tier hold the keys and values of all tenants: no other user may read them.
  ::umask(0077);
  // A client that goes away while a reply is written must be an error of that write.
  std::signal(SIGPIPE, SIG_IGN);
  // A limit on the size of files (LimitFSIZE=) must be an error of the write that meets it.
  std::signal(SIGXFSZ, SIG_IGN);
  // The default effect of SIGHUP would end the process if it came before the loop can take it.
  std::signal(SIGHUP, SIG_IGN);
  RaiseDescriptorLimit();
  const auto start = [this]() -> Status {
    KVT_RETURN_IF_ERROR(daemon_.Start());
    loop_.OnSignals({SIGTERM, SIGINT, SIGHUP}, [this](int signal) { OnSignal(signal); });
    return {};
  };
  if (const Status started = WithResources(start); !started) {
    log_.Error("daemon.failed", "{}{}", started.error().ToString(), DescriptorHint());
    manager_.Status("cannot start: " + started.error().context);
    return ExitCodeOfFailedStart(started.error());
  }
  StartHeartbeats();
  const ServerConfig& server = daemon_.config().server;
  // The reasons for what a reader misses are there before it is told to go on.
  log_.Flush();
  // For scripts that started it. In the journal the log says so already.
  if (!IsJournal(STDOUT_FILENO)) {
    fmt::print("READY socket={} admin_socket={} pid={}\n", server.socket, server.admin_socket,
               ::getpid());
  }
  fmt::print("{}", ready_text_);
  std::fflush(stdout);
  manager_.Ready(StatusLine());
  daemon_.WatchForDisk([this] { OnDiskBack(); });
  loop_.Run();
  log_.Info("daemon.stopped", "pid {}; {}", ::getpid(), daemon_.WhatStaysKept());
  log_.Flush();
  // Copies that did not end in time still use the memory that would be destroyed. Blocks on disk
  // are safe at any moment, so that the process may end here.
  if (!daemon_.idle()) {
    daemon_.TakeBackAdoption();
    std::_Exit(exit_code_);
  }
  return exit_code_;
}

// Pools and host memory outlive the process, and clients wait for the next one.
void Service::OnDiskBack() {
  if (!ServiceManager::IsPresent()) {
    log_.Warning("disk.back", "the disk tier could be had now: restart the daemon to use it");
    return;
  }
  if (std::exchange(stopping_, true)) return;
  log_.Warning("disk.back", "the disk tier can be had now: ending, to be started again with it");
  exit_code_ = kExitAgain;
  daemon_.BeginShutdown([this] { loop_.Stop(); });
}

void Service::StartHeartbeats() {
  if (const int64_t watchdog_ms = ServiceManager::WatchdogMs(); watchdog_ms > 0) {
    watchdog_.Start(std::max<int64_t>(watchdog_ms / kBeatsPerWatchdog, 1),
                    [this] { manager_.Alive(); });
  }
  status_.Start(kStatusMs, [this] {
    if (!stopping_) manager_.Status(StatusLine());
  });
}

std::string Service::StatusLine() const {
  const CacheGauges gauges = daemon_.Gauges();
  uint64_t pool_bytes = 0;  // that blocks are in
  for (const PoolGauges& pool : gauges.pools) {
    pool_bytes += (pool.blocks - pool.free) * pool.block_bytes;
  }
  return fmt::format("Serving {} client(s): {}, {}, {}", daemon_.session_count(),
                     TierStatus("pool", pool_bytes, gauges.pool_capacity_bytes),
                     TierStatus("host", gauges.host_used_bytes, gauges.host_capacity_bytes),
                     TierStatus("disk", gauges.disk_used_bytes, gauges.disk_capacity_bytes));
}

void Service::OnSignal(int signal) {
  if (signal != SIGHUP) return Stop(signal);
  if (stopping_) {
    log_.Warning("config.not_reloaded", "the daemon is being stopped");
    return;
  }
  // systemd waits for the Ready that Reload sends, whether or not anything was taken over.
  manager_.Reloading();
  reader_.Start([this](const Result<Config>& wanted) { Reload(wanted); });
}

void Service::Reload(const Result<Config>& wanted) {
  if (stopping_) return;
  const Status taken = wanted ? daemon_.Reload(*wanted) : tl::unexpected(wanted.error());
  if (!taken) {
    // A mistake a line, of which the log would make one without a mark between them.
    std::string mistakes = taken.error().context;
    for (size_t end = 0; (end = mistakes.find('\n', end)) != std::string::npos;) {
      mistakes.replace(end, 1, "; ");
    }
    log_.Error("config.rejected", "{}; nothing was changed", mistakes);
  }
  manager_.Ready(StatusLine());
}

void Service::Stop(int signal) {
  if (std::exchange(stopping_, true)) {
    log_.Warning("daemon.killed", "second signal ({}): ending at once", signal);
    log_.Flush();
    daemon_.TakeBackAdoption();
    std::_Exit(kExitFailure);
  }
  log_.Info("daemon.stopping", "signal {}", signal);
  daemon_.BeginShutdown([this] { loop_.Stop(); });
}

}  // namespace kvtier
