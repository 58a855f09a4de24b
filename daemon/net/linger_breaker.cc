// SPDX-License-Identifier: Apache-2.0
#include "daemon/net/linger_breaker.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>

#include "base/posix.h"

namespace kvtier {
namespace {

// Each wait is ended by the next signal: so many sockets can be closed in a second, however long
// their owners want each to take. The kernel sends no signal while the last is not received, so
// that a thread that hangs for another reason costs nothing.
constexpr long kIntervalNs = 250'000;

// A signal that nothing else of the process uses, and that does no harm where a library has taken
// the handler away: it is ignored then.
constexpr int kSignal = SIGURG;

// A signal that is ignored, or blocked, ends no wait.
void ReceiveSignals() {
  static const bool installed = [] {
    struct sigaction action {};
    action.sa_handler = [](int) {};
    action.sa_flags = SA_RESTART;
    return ::sigaction(kSignal, &action, nullptr) == 0;
  }();
  (void)installed;
  UnblockSignal(kSignal);
}

}  // namespace

LingerBreaker::LingerBreaker() {
  ReceiveSignals();
  sigevent event{};
  event.sigev_notify = SIGEV_THREAD_ID;
  event.sigev_signo = kSignal;
  event._sigev_un._tid = static_cast<pid_t>(::syscall(SYS_gettid));
  if (::timer_create(CLOCK_MONOTONIC, &event, &timer_) != 0) return;
  const itimerspec often{.it_interval = {.tv_sec = 0, .tv_nsec = kIntervalNs},
                         .it_value = {.tv_sec = 0, .tv_nsec = kIntervalNs}};
  ::timer_settime(timer_, 0, &often, nullptr);
  armed_ = true;
}

LingerBreaker::~LingerBreaker() {
  if (armed_) ::timer_delete(timer_);
}

}  // namespace kvtier
