// SPDX-License-Identifier: Apache-2.0
#include "daemon/runtime/event_loop.h"

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <optional>
#include <utility>

#include "base/result.h"

namespace kvtier {

namespace asio = boost::asio;
using boost::system::error_code;

namespace {

// Adds the time for which it lived to a histogram.
class Stopwatch {
 public:
  explicit Stopwatch(LoopDelayHistogram* times) : times_(*times) {}
  ~Stopwatch() {
    const auto taken = std::chrono::steady_clock::now() - begun_;
    times_.ObserveUs(std::chrono::duration_cast<std::chrono::microseconds>(taken).count());
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  LoopDelayHistogram& times_;
  const std::chrono::steady_clock::time_point begun_ = std::chrono::steady_clock::now();
};

}  // namespace

struct EventLoop::Impl {
  // The hint is a promise that one thread runs the loop, which spares Asio most of its locking. The
  // guard keeps Run from returning while nothing is under way.
  Impl() : context(/*concurrency_hint=*/1), work(asio::make_work_guard(context)) {}

  void WaitForSignal() {
    signals->async_wait([this](error_code error, int signal) {
      if (error) return;
      // The handler may take long or stop the loop; the next signal must find a wait under way.
      WaitForSignal();
      RunEvent([&] { on_signal(signal); });
    });
  }

  template <typename Event>
  void RunEvent(const Event& event) {
    const Stopwatch stopwatch(&event_times);
    after_events.Run(event);
  }

  LoopDelayHistogram event_times{&kLoopDelayBoundsUs};
  AfterEvents after_events;
  asio::io_context context;
  asio::executor_work_guard<asio::io_context::executor_type> work;
  std::optional<asio::signal_set> signals;
  std::function<void(int)> on_signal;
};

EventLoop::EventLoop() : impl_(std::make_unique<Impl>()) {}
EventLoop::~EventLoop() = default;

void EventLoop::Post(std::function<void()> event) {
  asio::post(impl_->context,
             [impl = impl_.get(), event = std::move(event)] { impl->RunEvent(event); });
}

void EventLoop::RunAfterEvent(std::function<void()> work) {
  if (!impl_->after_events.TryAdd(&work)) Post(std::move(work));
}

const LoopDelayHistogram& EventLoop::event_times() const { return impl_->event_times; }

void EventLoop::Run() { impl_->context.run(); }

void EventLoop::Stop() { impl_->context.stop(); }

// For the start and for tests, where the caller waits for one thing and then goes on by itself.
void EventLoop::RunUntil(const std::function<bool()>& done) {
  while (!done() && impl_->context.run_one() != 0) {
  }
}

void EventLoop::OnSignals(const std::vector<int>& signals, std::function<void(int)> handler) {
  KVT_CHECK(!impl_->signals.has_value());
  impl_->signals.emplace(impl_->context);
  for (const int signal : signals) impl_->signals->add(signal);
  impl_->on_signal = std::move(handler);
  impl_->WaitForSignal();
}

// A handler may have been queued already when its operation is cancelled. It runs its callback only
// if it belongs to the operation that is still wanted: `starts` tells the starts of a timer apart,
// and the weak pointer notices that the timer has gone.
struct Timer::Impl {
  explicit Impl(EventLoop::Impl& loop) : loop(loop), timer(loop.context) {}
  EventLoop::Impl& loop;
  asio::steady_timer timer;
  std::function<void()> expired;
  uint64_t starts = 0;
};

Timer::Timer(EventLoop* loop) : impl_(std::make_shared<Impl>(loop->impl())) {}
Timer::~Timer() { Cancel(); }

void Timer::Start(int64_t delay_ms, std::function<void()> expired) {
  StartUs(1000 * delay_ms, std::move(expired));
}

void Timer::StartUs(int64_t delay_us, std::function<void()> expired) {
  impl_->expired = std::move(expired);
  impl_->timer.expires_after(std::chrono::microseconds(delay_us));
  const uint64_t start = ++impl_->starts;
  impl_->timer.async_wait([weak = std::weak_ptr<Impl>(impl_), start](error_code) {
    const std::shared_ptr<Impl> impl = weak.lock();
    if (!impl || impl->starts != start || !impl->expired) return;
    impl->loop.RunEvent(std::exchange(impl->expired, nullptr));
  });
}

// The empty callback is what makes it sure; cancelling the operation only frees it early.
void Timer::Cancel() {
  impl_->expired = nullptr;
  impl_->timer.cancel();
}

bool Timer::running() const { return static_cast<bool>(impl_->expired); }

struct FdWatch::Impl {
  Impl(EventLoop::Impl& loop, int fd) : loop(loop), descriptor(loop.context) {
    error_code error;
    descriptor.assign(fd, error);
  }
  ~Impl() {
    // The descriptor is its owner's: Asio would close it otherwise.
    if (descriptor.is_open()) descriptor.release();
  }

  std::function<void()>& CallbackOf(Event event) { return callbacks[static_cast<size_t>(event)]; }

  EventLoop::Impl& loop;
  asio::posix::stream_descriptor descriptor;
  std::array<std::function<void()>, 3> callbacks;
};

FdWatch::FdWatch(EventLoop* loop, int fd) : impl_(std::make_shared<Impl>(loop->impl(), fd)) {}

FdWatch::~FdWatch() { impl_->callbacks = {}; }

void FdWatch::Wait(Event event, std::function<void()> ready) {
  static constexpr asio::posix::stream_descriptor::wait_type kWaits[] = {
      asio::posix::stream_descriptor::wait_read, asio::posix::stream_descriptor::wait_write,
      asio::posix::stream_descriptor::wait_error};
  KVT_CHECK(!impl_->CallbackOf(event));
  impl_->CallbackOf(event) = std::move(ready);
  // A descriptor that cannot be watched never becomes ready; its owner's time-outs deal with that.
  if (!impl_->descriptor.is_open()) return;
  impl_->descriptor.async_wait(
      kWaits[static_cast<size_t>(event)], [weak = std::weak_ptr<Impl>(impl_), event](error_code) {
        const std::shared_ptr<Impl> impl = weak.lock();
        if (!impl || !impl->CallbackOf(event)) return;
        impl->loop.RunEvent(std::exchange(impl->CallbackOf(event), nullptr));
      });
}

bool FdWatch::Waiting(Event event) const { return static_cast<bool>(impl_->CallbackOf(event)); }

}  // namespace kvtier
