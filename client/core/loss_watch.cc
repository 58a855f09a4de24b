// SPDX-License-Identifier: Apache-2.0
#include "client/core/loss_watch.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>

#include <cstdint>
#include <utility>

namespace kvtier::client {
namespace {

constexpr int kRepetitions = 20;
constexpr int kPauseMs = 50;

}  // namespace

LossWatch::LossWatch(int socket, std::function<void()> on_lost)
    : socket_(socket), on_lost_(std::move(on_lost)), stop_(::eventfd(0, EFD_CLOEXEC)) {
  // The application's signals are for its own threads.
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { Watch(); });
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_setname_np(thread_.native_handle(), "kvt-loss-watch");
}

LossWatch::~LossWatch() {
  const uint64_t one = 1;
  (void)!::write(stop_.get(), &one, sizeof(one));
  thread_.join();
}

void LossWatch::Watch() {
  pollfd fds[] = {{socket_, POLLRDHUP, 0}, {stop_.get(), POLLIN, 0}};
  while (fds[0].revents == 0 && fds[1].revents == 0) (void)::poll(fds, 2, -1);
  if (fds[1].revents != 0) return;
  for (int i = 0; i < kRepetitions; ++i) {
    on_lost_();
    if (StoppedWithin(kPauseMs)) return;
  }
}

bool LossWatch::StoppedWithin(int ms) const {
  pollfd fd{stop_.get(), POLLIN, 0};
  return ::poll(&fd, 1, ms) > 0;
}

}  // namespace kvtier::client
