// SPDX-License-Identifier: Apache-2.0
#include "base/executor.h"

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <system_error>
#include <utility>

namespace kvtier {
namespace {

// A tenth of the share of a thread that has none of it, where both want the same core.
constexpr int kBackgroundNice = 10;

// Lowers the priority of the calling thread alone. Only a sandbox forbids it, and then the work is
// done all the same.
void GiveWay() {
  const auto thread = static_cast<id_t>(::gettid());
  const int nice = std::max(::getpriority(PRIO_PROCESS, thread), kBackgroundNice);
  (void)::setpriority(PRIO_PROCESS, thread, nice);
}

}  // namespace

ThreadExecutor::ThreadExecutor(std::string name, int threads, EventQueue* loop, Priority priority)
    : loop_(loop) {
  try {
    for (int i = 0; i < threads; ++i) {
      threads_.emplace_back([this, priority] {
        if (priority == Priority::kBackground) GiveWay();
        Work();
      });
      pthread_setname_np(threads_.back().native_handle(), (name + "-" + std::to_string(i)).c_str());
    }
  } catch (const std::system_error&) {
    // Threads that were started must not outlive this object; the caller gets the exception.
    Stop();
    throw;
  }
}

ThreadExecutor::~ThreadExecutor() { Stop(); }

void ThreadExecutor::Stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadExecutor::Run(std::function<void()> work, std::function<void()> done) {
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back({std::move(work), std::move(done)});
  }
  wake_.notify_one();
}

bool ThreadExecutor::busy() const {
  const std::lock_guard lock(mutex_);
  return running_ > 0 || !tasks_.empty();
}

void ThreadExecutor::Work() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stopping_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    Task task = std::move(tasks_.front());
    tasks_.pop_front();
    ++running_;
    lock.unlock();
    task.work();
    lock.lock();
    --running_;
    lock.unlock();
    if (task.done) loop_->Post(std::move(task.done));
    task = {};
    lock.lock();
  }
}

}  // namespace kvtier
