// SPDX-License-Identifier: Apache-2.0
#include "daemon/cold/files/call_threads.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <list>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/posix.h"

namespace kvtier {
namespace {

using Time = std::chrono::steady_clock::time_point;

constexpr size_t kMostWaiting = 4096;

Time Now() { return std::chrono::steady_clock::now(); }

FileOutcome Ending(int status, const char* why) { return {.status = status, .text = why}; }

}  // namespace

struct CallThreads::State {
  const size_t at_once;
  const size_t most;
  std::mutex mutex;  // guards what follows
  std::condition_variable wake;
  std::condition_variable thread_ended;
  std::deque<FileCall> waiting;
  std::list<Time> running;  // the deadlines of calls that threads are at
  size_t threads = 0;
  size_t idle = 0;
  bool stopping = false;

  [[nodiscard]] size_t CountHanging() const {
    return static_cast<size_t>(
        std::ranges::count_if(running, [now = Now()](Time deadline) { return deadline <= now; }));
  }
  // Threads that came back are more than are needed.
  [[nodiscard]] bool HasTooMany() const { return threads - CountHanging() > at_once; }

  void Work() {
    std::unique_lock lock(mutex);
    while (!stopping && !HasTooMany()) {
      if (waiting.empty()) {
        ++idle;
        wake.wait(lock, [this] { return stopping || !waiting.empty(); });
        --idle;
        continue;
      }
      FileCall call = std::move(waiting.front());
      waiting.pop_front();
      const auto entry = running.insert(running.end(), call.deadline);
      lock.unlock();
      const FileOutcome outcome =
          call.deadline > Now() ? call.work() : Ending(KVT_COLD_UNAVAILABLE, "not begun in time");
      lock.lock();
      running.erase(entry);
      if (!stopping) call.ended(outcome);
    }
    --threads;
    thread_ended.notify_all();
  }
  // REQUIRES: `mutex` is held.
  [[nodiscard]] bool StartThread(const std::shared_ptr<State>& self) {
    try {
      std::thread([self] {
        BlockAllSignals();
        self->Work();
      }).detach();
    } catch (const std::system_error&) {
      return false;
    }
    ++threads;
    return true;
  }
  // Takes out calls that no caller waits for any more. REQUIRES: `mutex` is held.
  [[nodiscard]] std::vector<FileCall> TakeLate() {
    std::vector<FileCall> late;
    while (!waiting.empty() && waiting.front().deadline <= Now()) {
      late.push_back(std::move(waiting.front()));
      waiting.pop_front();
    }
    return late;
  }
};

CallThreads::CallThreads(size_t at_once, size_t most)
    : state_(new State{.at_once = at_once, .most = most}) {}

CallThreads::~CallThreads() { (void)Stop(Now()); }

void CallThreads::Add(FileCall call) {
  std::vector<FileCall> late;
  bool is_refused = false;
  {
    const std::lock_guard lock(state_->mutex);
    State& state = *state_;
    if (state.stopping) return;
    late = state.TakeLate();
    const size_t hanging = state.CountHanging();
    if (state.idle <= state.waiting.size() && state.threads < state.most &&
        state.threads - hanging < state.at_once) {
      (void)state.StartThread(state_);
    }
    is_refused = state.threads == hanging || state.waiting.size() >= kMostWaiting;
    if (!is_refused) state.waiting.push_back(std::move(call));
  }
  for (const FileCall& one : late) one.ended(Ending(KVT_COLD_UNAVAILABLE, "not begun in time"));
  if (is_refused) return call.ended(Ending(KVT_COLD_BUSY, "all threads wait for the file system"));
  state_->wake.notify_one();
}

bool CallThreads::Hangs() const {
  const std::lock_guard lock(state_->mutex);
  return state_->CountHanging() > 0;
}

bool CallThreads::Stop(Time deadline) {
  std::deque<FileCall> dropped;
  std::unique_lock lock(state_->mutex);
  state_->stopping = true;
  dropped.swap(state_->waiting);
  state_->wake.notify_all();
  return state_->thread_ended.wait_until(lock, deadline, [this] { return state_->threads == 0; });
}

}  // namespace kvtier
