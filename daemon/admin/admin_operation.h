// SPDX-License-Identifier: Apache-2.0
// A request on the admin socket, and the base of operations that take their time to answer one.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/gate.h"
#include "base/result.h"
#include "daemon/runtime/event_loop.h"
#include "tiers/cache.h"

namespace kvtier {

// How often an operation that takes time reports its progress: often enough for a terminal to look
// alive, seldom enough to cost nothing.
inline constexpr int64_t kAdminProgressMs = 250;

// One request on the admin socket, being answered. Event loop only.
//
// Answered once, by Reply or Fail, with any number of Progress before. Texts are JSON. A call
// outlives its caller's connection: once that is gone, whatever is answered is dropped in silence.
class AdminCall {
 public:
  virtual ~AdminCall() = default;
  virtual void Progress(std::string json) = 0;
  virtual void Reply(std::string json) = 0;
  virtual void Fail(const Error& error) = 0;
  // The caller is gone: work done for its eyes only can stop.
  [[nodiscard]] virtual bool cancelled() const = 0;
};

// The objects that every operation works with. Borrowed, and outlives the operations.
struct OperationBasics {
  Cache* cache = nullptr;
  EventLoop* loop = nullptr;
  const Clock* clock = nullptr;
};

// An operation that answers over several events. Owned by AdminOperations. Event loop only.
//
// A derived class does its work in Run and in callbacks, each of which must be short, and ends by
// exactly one Reply or Fail, or by noticing that its caller has gone. A step that Later has planned
// is dropped then.
class AdminOperation {
 public:
  AdminOperation(const OperationBasics& basics, std::shared_ptr<AdminCall> call)
      : cache_(*basics.cache),
        clock_(*basics.clock),
        call_(std::move(call)),
        begun_ms_(clock_.MonotonicMs()),
        progress_ms_(begun_ms_),
        timer_(basics.loop) {}
  virtual ~AdminOperation() = default;
  // Begins the work, or goes on with it if the derived class calls it again. The operation may have
  // ended when it returns.
  virtual void Run() = 0;
  [[nodiscard]] bool ended() const { return ended_; }

 protected:
  void Reply(std::string json) {
    End();
    call_->Reply(std::move(json));
  }
  void Fail(const Error& error) {
    End();
    call_->Fail(error);
  }
  void Progress(std::string json) { call_->Progress(std::move(json)); }
  // Whether the caller has gone; the operation is then over.
  [[nodiscard]] bool Cancelled() {
    ended_ |= call_->cancelled();
    return ended_;
  }
  [[nodiscard]] int64_t ElapsedMs() const { return clock_.MonotonicMs() - begun_ms_; }
  [[nodiscard]] double Seconds() const { return static_cast<double>(ElapsedMs()) / 1000; }
  // True at most once per kAdminProgressMs: the caller then reports.
  [[nodiscard]] bool ProgressIsDue() {
    const int64_t now_ms = clock_.MonotonicMs();
    if (now_ms - progress_ms_ < kAdminProgressMs) return false;
    progress_ms_ = now_ms;
    return true;
  }
  // Runs `next` from a later event; at most one such call is outstanding. Steps are separated by
  // this, so that clients' requests are served between them.
  void Later(int64_t delay_ms, std::function<void()> next) {
    if (!ended_) timer_.Start(delay_ms, std::move(next));
  }
  void LaterUs(int64_t delay_us, std::function<void()> next) {
    if (!ended_) timer_.StartUs(delay_us, std::move(next));
  }
  // Goes on with `next` when nothing of an earlier daemon is still to appear in host memory, which
  // `next` would miss. Ends the operation if its caller has gone by then.
  void WhenAdopted(std::function<void()> next) {
    constexpr int64_t kAdoptionPollMs = 10;
    if (Cancelled()) return;
    if (cache_.AdoptionEnded()) return next();
    if (ProgressIsDue()) Progress(R"({"waited_ms":)" + std::to_string(ElapsedMs()) + "}");
    Later(kAdoptionPollMs, [this, next = std::move(next)] { WhenAdopted(next); });
  }
  // For callbacks of the cache, which may come when the operation is gone.
  template <typename Callback>
  [[nodiscard]] auto WhileAlive(Callback callback) const {
    return gate_.WhileOpen(std::move(callback));
  }

  Cache& cache_;
  const Clock& clock_;

 private:
  void End() {
    ended_ = true;
    timer_.Cancel();
  }

  const std::shared_ptr<AdminCall> call_;
  const int64_t begun_ms_;
  int64_t progress_ms_;
  bool ended_ = false;
  Timer timer_;
  Gate gate_;
};

}  // namespace kvtier
