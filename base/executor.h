// SPDX-License-Identifier: Apache-2.0
// How slow work leaves the event loop and comes back to it: the two interfaces, by which tests and
// the simulator replace all threads, and what stands behind them in programs.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace kvtier {

// The event loop as other threads see it.
class EventQueue {
 public:
  virtual ~EventQueue() = default;
  // Runs `event` on the loop's thread, after the caller returns, in the order posted by one thread.
  // Any thread may call.
  virtual void Post(std::function<void()> event) = 0;
  // Runs `work` when the event that calls this has ended and before the next begins, so that what
  // several callbacks of one event have brought is acted upon once and without a turn of the loop.
  // Outside of an event, and in such work itself, it is posted: work that asks for more of itself
  // does not keep other events waiting. Only the loop's thread may call.
  virtual void RunAfterEvent(std::function<void()> work) { Post(std::move(work)); }
};

// How an EventQueue keeps the promise of RunAfterEvent. The loop's thread only.
class AfterEvents {
 public:
  // Runs an event and then the work that was added meanwhile.
  template <typename Event>
  void Run(const Event& event) {
    in_event_ = true;
    event();
    in_event_ = false;
    std::vector<std::function<void()>> work;
    work.swap(work_);
    for (const auto& each : work) each();
  }
  // Takes `*work` if an event runs; otherwise the caller has to post it.
  [[nodiscard]] bool TryAdd(std::function<void()>* work) {
    if (in_event_) work_.push_back(std::move(*work));
    return in_event_;
  }

 private:
  bool in_event_ = false;
  std::vector<std::function<void()>> work_;
};

// A small pool of threads for work that computes (checksums, encryption).
class Executor {
 public:
  virtual ~Executor() = default;
  // Runs `work` on some thread, then `done` on the event loop. `work` must not touch loop-owned
  // state except buffers that the caller keeps alive and untouched until `done`. Any thread may
  // call.
  virtual void Run(std::function<void()> work, std::function<void()> done) = 0;
  // How much work runs at the same time.
  [[nodiscard]] virtual int threads() const { return 1; }
};

// Executor on real threads.
//
// Not boost::asio::thread_pool, which can neither name its threads nor run them at a lower
// priority, and which gives no way to run work on each of its threads first.
//
// `loop` must outlive this object. The destructor finishes queued work and joins; `done` events of
// that work are still posted.
class ThreadExecutor final : public Executor {
 public:
  // Background threads leave the cores to others of the machine that want them (nice 10).
  enum class Priority : uint8_t { kNormal, kBackground };

  // `name` (at most 12 characters) shows in `top -H`. Throws std::system_error if a thread cannot
  // be started.
  ThreadExecutor(std::string name, int threads, EventQueue* loop,
                 Priority priority = Priority::kNormal);
  ~ThreadExecutor() override;
  ThreadExecutor(const ThreadExecutor&) = delete;
  ThreadExecutor& operator=(const ThreadExecutor&) = delete;

  void Run(std::function<void()> work, std::function<void()> done) override;
  [[nodiscard]] int threads() const override { return static_cast<int>(threads_.size()); }
  // Work waits or runs, so that the destructor would wait, too.
  [[nodiscard]] bool busy() const;

 private:
  struct Task {
    std::function<void()> work;
    std::function<void()> done;
  };
  void Work();
  // Finishes queued work and joins the threads.
  void Stop();

  EventQueue* const loop_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Task> tasks_;
  int running_ = 0;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

// An event loop for programs whose waiting thread runs the events: they are posted from any thread,
// and run on the one that calls RunUntil or RunPosted.
class BlockingLoop final : public EventQueue {
 public:
  void Post(std::function<void()> event) override {
    {
      const std::lock_guard lock(mutex_);
      events_.push_back(std::move(event));
    }
    posted_.notify_one();
  }

  // Runs events, waiting for more, until `done()` holds.
  void RunUntil(const std::function<bool()>& done) {
    while (!done()) {
      std::unique_lock lock(mutex_);
      posted_.wait(lock, [this] { return !events_.empty(); });
      RunFirst(std::move(lock));
    }
  }

  // Runs the posted events, without waiting. Returns how many events that were.
  size_t RunPosted() {
    for (size_t events = 0;; ++events) {
      std::unique_lock lock(mutex_);
      if (events_.empty()) return events;
      RunFirst(std::move(lock));
    }
  }

 private:
  void RunFirst(std::unique_lock<std::mutex> lock) {
    const std::function<void()> event = std::move(events_.front());
    events_.pop_front();
    lock.unlock();
    event();
  }

  std::mutex mutex_;
  std::condition_variable posted_;
  std::deque<std::function<void()>> events_;
};

}  // namespace kvtier
