// SPDX-License-Identifier: Apache-2.0
#include "daemon/cold/files/call_threads.h"

#include <algorithm>
#include <condition_variable>
#include <list>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/posix.h"
#include "daemon/cold/files/call_kind.h"
#include "daemon/cold/tenant_line.h"

namespace kvtier {
namespace {

using std::chrono::steady_clock;
using Time = steady_clock::time_point;
using Lock = std::unique_lock<std::mutex>;

constexpr size_t kMostWaiting = 4096;
// A thread that is at one call for so long is held up.
constexpr std::chrono::milliseconds kHeldUp{1};
// Calls that a thread has before it, until another is woken for them.
constexpr size_t kBacklog = 2;
// A thread that copies gives way so often before it sleeps: its caller, who has just been told, may
// need this processor to make the next calls.
constexpr size_t kGivenWay = 4;

FileOutcome Ending(int status, const char* why) { return {.status = status, .text = why}; }

}  // namespace

// All of it is guarded by `mutex`, which functions expect to be held unless they say otherwise.
struct CallThreads::State {
  struct Running {
    Time begun;
    Time deadline;
  };
  struct Ended {
    std::function<void(const FileOutcome&, bool more)> tell;
    FileOutcome outcome;
  };
  using Self = std::shared_ptr<State>;

  const Limits limits;
  std::mutex mutex;
  std::condition_variable wake;
  std::condition_variable watch;
  std::condition_variable thread_ended;
  TenantLine<FileCall> waiting;
  std::list<Running> running;
  std::vector<Ended> untold;
  CallKind kind;
  size_t threads = 0;
  size_t asleep = 0;  // of the threads, without those that a waker has chosen
  size_t chosen = 0;
  size_t telling = 0;
  bool has_watcher = false;
  bool is_watching = false;
  bool stopping = false;

  explicit State(const Limits& given) : limits(given) {}

  [[nodiscard]] size_t CountHanging(Time now) const {
    return static_cast<size_t>(
        std::ranges::count_if(running, [now](const Running& one) { return one.deadline <= now; }));
  }
  [[nodiscard]] size_t CountHeldUp(Time now) const {
    return static_cast<size_t>(std::ranges::count_if(
        running, [now](const Running& one) { return one.begun + kHeldUp <= now; }));
  }
  // Threads that came back are more than are needed.
  [[nodiscard]] bool HasTooMany() const {
    return threads > limits.at_once && threads - CountHanging(steady_clock::now()) > limits.at_once;
  }
  [[nodiscard]] bool AreCopies() const { return has_watcher && kind.AreCopies(); }

  void Work(const Self& self) {
    Lock lock(mutex);
    size_t given_way = 0;
    while (!stopping && !HasTooMany()) {
      if (!waiting.empty()) {
        WorkAtNext(self, &lock);
        given_way = 0;
      } else if (!untold.empty() && !AwaitsOthers()) {
        Tell(&lock);
      } else if (AreCopies() && given_way < kGivenWay) {
        ++given_way;
        lock.unlock();
        std::this_thread::yield();
        lock.lock();
      } else {
        given_way = 0;
        Sleep(&lock);
      }
    }
    Tell(&lock);
    --threads;
    Wake(ChooseThreads(self, steady_clock::now()));
    thread_ended.notify_all();
  }
  // Whether ends are told together with those of calls that wait or are worked at.
  [[nodiscard]] bool AwaitsOthers() const {
    return AreCopies() && !(waiting.empty() && running.empty());
  }
  void Sleep(Lock* lock) {
    StartWatching();
    ++asleep;
    wake.wait(*lock, [this] { return stopping || chosen > 0; });
    if (chosen > 0) --chosen;
  }
  void WorkAtNext(const Self& self, Lock* lock) {
    FileCall call = waiting.TakeFirst();
    const Time begun = steady_clock::now();
    const auto entry = running.insert(running.end(), {.begun = begun, .deadline = call.deadline});
    const size_t just_chosen = AreCopies() ? 0 : ChooseThreads(self, begun);
    StartWatching();
    const std::optional<int64_t> slept = kind.Begin();
    lock->unlock();
    Wake(just_chosen);
    FileOutcome outcome =
        call.deadline > begun ? call.work() : Ending(KVT_COLD_UNSENT, "not begun in time");
    const int64_t sleeps = slept ? CallKind::CountSleeps() - *slept : 0;
    const Time::duration taken = slept ? steady_clock::now() - begun : Time::duration();
    call.work = nullptr;
    lock->lock();
    running.erase(entry);
    if (slept) kind.End(taken, sleeps);
    untold.push_back({.tell = std::move(call.ended), .outcome = std::move(outcome)});
    if (untold.size() >= kToldTogether || !AwaitsOthers()) Tell(lock);
  }
  static void TellAll(const std::vector<Ended>& told) {
    for (const Ended& one : told) one.tell(one.outcome, &one != &told.back());
  }
  // Callers are told without the lock, and Stop waits for that.
  void Tell(Lock* lock) {
    std::vector<Ended> told;
    told.swap(untold);
    if (stopping || told.empty()) return;
    ++telling;
    lock->unlock();
    TellAll(told);
    told.clear();
    lock->lock();
    --telling;
    if (stopping) thread_ended.notify_all();
  }

  // Threads that are awake and at no call take one each.
  [[nodiscard]] size_t CountFree() const { return threads - asleep - running.size(); }
  // Threads that copy take more calls than one each.
  [[nodiscard]] bool NeedsThread(Time now) const {
    if (CountFree() >= waiting.size()) return false;
    if (!AreCopies()) return true;
    return threads - asleep - CountHeldUp(now) <
           std::min(limits.while_copying, (waiting.size() + kBacklog - 1) / kBacklog);
  }
  // Returns how many of those asleep are to be woken: best without the lock, which they need.
  [[nodiscard]] size_t ChooseThreads(const Self& self, Time now) {
    size_t just_chosen = 0;
    while (!stopping && NeedsThread(now)) {
      if (asleep > 0) {
        --asleep;
        ++chosen;
        ++just_chosen;
      } else if (threads < limits.most && threads - CountHanging(now) < limits.at_once &&
                 StartThread(self, &State::Work)) {
        ++threads;
      } else {
        break;
      }
    }
    return just_chosen;
  }
  // The lock need not be held.
  void Wake(size_t count) {
    for (; count > 0; --count) wake.notify_one();
  }
  [[nodiscard]] static bool StartThread(const Self& self, void (State::*work)(const Self&)) {
    try {
      std::thread([self, work] {
        BlockAllSignals();
        (self.get()->*work)(self);
      }).detach();
    } catch (const std::system_error&) {
      return false;
    }
    return true;
  }

  void StartWatcher(const Self& self) {
    if (has_watcher || limits.while_copying >= limits.at_once) return;
    has_watcher = StartThread(self, &State::Watch);
  }
  void StartWatching() {
    if (is_watching || !has_watcher || (waiting.empty() && untold.empty())) return;
    is_watching = true;
    watch.notify_one();
  }
  // Neither calls nor ends wait for long while the threads that are awake are held up, and calls
  // end in time while none is free.
  void Watch(const Self& self) {
    Lock lock(mutex);
    while (!stopping) {
      if (waiting.empty() && untold.empty()) {
        is_watching = false;
        watch.wait(lock, [this] { return stopping || is_watching; });
      }
      watch.wait_for(lock, kHeldUp, [this] { return stopping; });
      const Time now = steady_clock::now();
      TakeLate(now, &untold);
      Wake(ChooseThreads(self, now));
      Tell(&lock);
    }
    has_watcher = false;
    thread_ended.notify_all();
  }

  // Takes out calls that no caller waits for any more.
  void TakeLate(Time now, std::vector<Ended>* ended) {
    for (FileCall& call : waiting.TakeLate(now)) {
      ended->push_back(
          {.tell = std::move(call.ended), .outcome = Ending(KVT_COLD_UNSENT, "not begun in time")});
    }
  }
  // Takes out the last calls of more than so many, of those that have the most.
  void TakeBeyond(size_t most, const char* why, std::vector<Ended>* ended) {
    while (waiting.size() > most) {
      ended->push_back({.tell = waiting.TakeLast().ended, .outcome = Ending(KVT_COLD_BUSY, why)});
    }
  }
};

CallThreads::CallThreads(const Limits& limits) : state_(std::make_shared<State>(limits)) {}

CallThreads::~CallThreads() { (void)Stop(steady_clock::now()); }

void CallThreads::Add(std::vector<FileCall> calls) {
  std::vector<State::Ended> ended;
  size_t chosen = 0;
  const Time now = steady_clock::now();
  {
    const std::lock_guard lock(state_->mutex);
    State& state = *state_;
    if (state.stopping) return;
    state.TakeLate(now, &ended);
    for (FileCall& call : calls) state.waiting.Add(std::move(call));
    state.TakeBeyond(kMostWaiting, "too many calls wait for the file system", &ended);
    state.StartWatcher(state_);
    chosen = state.ChooseThreads(state_, now);
    if (state.CountFree() < state.waiting.size()) state.StartWatching();
    if (state.threads == state.CountHanging(now)) {
      state.TakeBeyond(0, "all threads wait for the file system", &ended);
    }
  }
  state_->Wake(chosen);
  State::TellAll(ended);
}

bool CallThreads::OthersWait(const std::string& tenant) const {
  const std::lock_guard lock(state_->mutex);
  return state_->waiting.HasOthersThan(tenant);
}

bool CallThreads::Hangs() const {
  const std::lock_guard lock(state_->mutex);
  return state_->CountHanging(steady_clock::now()) > 0;
}

bool CallThreads::Stop(Time deadline) {
  TenantLine<FileCall> dropped;
  Lock lock(state_->mutex);
  State& state = *state_;
  state.stopping = true;
  std::swap(dropped, state.waiting);
  state.wake.notify_all();
  state.watch.notify_all();
  state.thread_ended.wait(lock, [&state] { return state.telling == 0; });
  return state.thread_ended.wait_until(
      lock, deadline, [&state] { return state.threads == 0 && !state.has_watcher; });
}

}  // namespace kvtier
