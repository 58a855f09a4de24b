// SPDX-License-Identifier: Apache-2.0
#include "daemon/runtime/supervision.h"

#include <fmt/format.h>
#include <systemd/sd-daemon.h>

#include <cstdlib>
#include <utility>

#include "base/clock.h"
#include "base/result.h"

namespace kvtier {
namespace {

// A failure means that systemd does not listen any more. There is nothing that the daemon could do
// about it, and serving clients is more important.
void Notify(const std::string& message) {
  (void)::sd_notify(/*unset_environment=*/0, message.c_str());
}

}  // namespace

void ServiceManager::Extend(const std::string& status, int64_t ms) {
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

bool ServiceManager::IsPresent() { return std::getenv("NOTIFY_SOCKET") != nullptr; }

int64_t ServiceManager::WatchdogMs() {
  uint64_t interval_us = 0;
  if (::sd_watchdog_enabled(/*unset_environment=*/0, &interval_us) <= 0) return 0;
  return static_cast<int64_t>(interval_us / 1000);
}

void Heartbeat::Start(int64_t interval_ms, std::function<void()> beat) {
  KVT_CHECK(beat_ == nullptr && interval_ms > 0);
  interval_ms_ = interval_ms;
  beat_ = std::move(beat);
  Wait();
}

void Heartbeat::Wait() {
  timer_.Start(interval_ms_, [this] {
    // The beat is posted behind all that is queued, so that it proves that the loop has got through
    // that. A timer alone would beat even if posted events were never reached.
    loop_->Post(gate_.WhileOpen([this] {
      beat_();
      Wait();
    }));
  });
}

LoopLag::LoopLag() : last_us_(MonotonicUs()) {}

// Relaxed order suffices: the metrics thread reads this one number and nothing that depends on it.
void LoopLag::ObserveTick(int64_t interval_ms) {
  const int64_t now_us = MonotonicUs();
  const int64_t last_us = last_us_.exchange(now_us, std::memory_order_relaxed);
  delays_.ObserveUs(now_us - last_us - interval_ms * 1000);
}

double LoopLag::SilentSeconds() const {
  return static_cast<double>(MonotonicUs() - last_us_.load(std::memory_order_relaxed)) / 1e6;
}

}  // namespace kvtier
