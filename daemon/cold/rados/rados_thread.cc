// SPDX-License-Identifier: Apache-2.0
#include "daemon/cold/rados/rados_thread.h"

#include <pthread.h>

#include <chrono>
#include <csignal>
#include <utility>

namespace kvtier {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr std::chrono::seconds kTick(1);

// Signals are the daemon's; the threads that librados starts from here inherit this.
void BlockSignals() {
  sigset_t all;
  sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, nullptr);
}

}  // namespace

void RadosThread::Start(Task tick) {
  thread_ = std::thread([this, tick = std::move(tick)] { Work(tick); });
}

void RadosThread::Post(Task task) {
  const std::lock_guard lock(mutex_);
  if (stopping_) return;
  tasks_.push_back(std::move(task));
  wake_.notify_one();
}

void RadosThread::Stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    wake_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
}

void RadosThread::Work(const Task& tick) {
  BlockSignals();
  SteadyClock::time_point next_tick = SteadyClock::now();
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (SteadyClock::now() >= next_tick) {
      lock.unlock();
      tick();
      next_tick = SteadyClock::now() + kTick;
      lock.lock();
      continue;
    }
    if (tasks_.empty()) {
      (void)wake_.wait_until(lock, next_tick);
      continue;
    }
    const Task task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task();
    lock.lock();
  }
}

}  // namespace kvtier
