// SPDX-License-Identifier: Apache-2.0
#include "daemon/runtime/service_manager.h"

#include <fmt/format.h>
#include <systemd/sd-daemon.h>

#include <chrono>

namespace kvtier {
namespace {

// A failure means that nobody listens any more; there is nobody left to tell.
void Notify(const std::string& message) {
  (void)::sd_notify(/*unset_environment=*/0, message.c_str());
}

int64_t MonotonicUs() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::microseconds>(now).count();
}

}  // namespace

void ServiceManager::ExtendStart(const std::string& status, int64_t ms) {
  last_status_ = status;
  Notify(fmt::format("STATUS={}\nEXTEND_TIMEOUT_USEC={}", status, ms * 1000));
}

void ServiceManager::Ready(const std::string& status) {
  last_status_ = status;
  Notify(fmt::format("READY=1\nSTATUS={}", status));
}

void ServiceManager::Reloading() {
  Notify(fmt::format("RELOADING=1\nMONOTONIC_USEC={}", MonotonicUs()));
}

void ServiceManager::Stopping(const std::string& status, int64_t ms) {
  last_status_ = status;
  Notify(fmt::format("STOPPING=1\nSTATUS={}\nEXTEND_TIMEOUT_USEC={}", status, ms * 1000));
}

void ServiceManager::Status(const std::string& status) {
  if (status == last_status_) return;
  last_status_ = status;
  Notify("STATUS=" + status);
}

void ServiceManager::Alive() { Notify("WATCHDOG=1"); }

int64_t ServiceManager::WatchdogMs() {
  uint64_t interval_us = 0;
  if (::sd_watchdog_enabled(/*unset_environment=*/0, &interval_us) <= 0) return 0;
  return static_cast<int64_t>(interval_us / 1000);
}

}  // namespace kvtier
