// SPDX-License-Identifier: Apache-2.0
// The base of admin operations that take their time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "daemon/admin/admin_call.h"
#include "daemon/runtime/event_loop.h"
#include "daemon/session/models.h"
#include "tiers/cache.h"

namespace kvtier {

class Server;
class TraceRing;

inline constexpr int64_t kAdminProgressMs = 250;

// Borrowed; outlives the operations.
struct AdminEnvironment {
  EventLoop* loop = nullptr;
  const Clock* clock = nullptr;
  Cache* cache = nullptr;
  const ModelRegistry* models = nullptr;
  const Server* server = nullptr;
  const TraceRing* trace = nullptr;  // null: nothing is recorded
  // The documents.
  std::function<std::string()> status;
  std::function<std::string()> stats;
  std::function<std::string()> config;
  std::function<std::string()> default_config;
};

// Owned by AdminOperations; callbacks of the cache hold it weakly. Event loop only.
class AdminOperation : public std::enable_shared_from_this<AdminOperation> {
 public:
  AdminOperation(const AdminEnvironment& environment, std::shared_ptr<AdminCall> call)
      : env_(environment),
        call_(std::move(call)),
        begun_ms_(env_.clock->MonotonicMs()),
        progress_ms_(begun_ms_),
        timer_(env_.loop) {}
  virtual ~AdminOperation() = default;
  virtual void Run() = 0;
  [[nodiscard]] bool ended() const { return ended_; }

 protected:
  void Reply(std::string json) {
    ended_ = true;
    call_->Reply(std::move(json));
  }
  void Fail(const Error& error) {
    ended_ = true;
    call_->Fail(error);
  }
  void Progress(std::string json) { call_->Progress(std::move(json)); }
  // Whether nobody waits for the reply any more; the operation is then over.
  [[nodiscard]] bool Abandoned() {
    ended_ |= call_->abandoned();
    return ended_;
  }
  [[nodiscard]] int64_t ElapsedMs() const { return env_.clock->MonotonicMs() - begun_ms_; }
  [[nodiscard]] double Seconds() const { return static_cast<double>(ElapsedMs()) / 1000; }
  [[nodiscard]] bool ProgressIsDue() {
    const int64_t now_ms = env_.clock->MonotonicMs();
    if (now_ms - progress_ms_ < kAdminProgressMs) return false;
    progress_ms_ = now_ms;
    return true;
  }
  // Runs `next` from a later event.
  void Later(int64_t delay_ms, std::function<void()> next) {
    timer_.Start(delay_ms, std::move(next));
  }
  void LaterUs(int64_t delay_us, std::function<void()> next) {
    timer_.StartUs(delay_us, std::move(next));
  }
  template <typename Derived>
  [[nodiscard]] static std::weak_ptr<Derived> Weak(Derived* self) {
    return std::static_pointer_cast<Derived>(self->shared_from_this());
  }

  const AdminEnvironment& env_;

 private:
  const std::shared_ptr<AdminCall> call_;
  const int64_t begun_ms_;
  int64_t progress_ms_;
  bool ended_ = false;
  Timer timer_;
};

}  // namespace kvtier
