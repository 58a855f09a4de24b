// Attention for clients that launch nothing themselves: the engine that the device needs, tried out
// before the first client comes, and its threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/executor.h"
#include "base/result.h"
#include "daemon/attention/attention_engine.h"
#include "daemon/attention/attention_self_test.h"
#include "daemon/config/config.h"
#include "daemon/service/log.h"
#include "gpu/device.h"

namespace kvtier {

enum class AttentionState : uint8_t {
  kOff,     // by configuration, or nothing to compute with: see AttentionReport::reason
  kReady,   // tried out; the only state in which anything is computed
  kFailed,  // the self-test, or the device later on
};

// "off", "ready", "failed".
[[nodiscard]] std::string_view AttentionStateName(AttentionState state);

// For `kvtierctl status` and the metrics.
struct AttentionReport {
  AttentionState state = AttentionState::kOff;
  std::string reason;   // why it is not ready; empty if it is
  std::string engine;   // "cpu", "cuda"
  std::string library;  // the kernels' file; empty for the CPU
  std::string library_version;
  AttentionSelfTest self_test;
  double start_seconds = 0;  // for opening, warming up and testing
  uint64_t calls = 0;        // computed
  uint64_t query_tokens = 0;
  uint64_t failures = 0;
  uint64_t busy_ns = 0;
  uint64_t in_flight = 0;
  uint64_t workspace_bytes = 0;  // of all sessions
};

// Event loop only. The device outlives it, and the workspaces.
class AttentionService {
 public:
  struct Environment {
    Device* device = nullptr;
    const KernelsConfig* config = nullptr;
    const Clock* clock = nullptr;
    EventQueue* loop = nullptr;
    Log* log = nullptr;
    // Called with an error that only a new process cures. May be empty.
    std::function<void(std::string)> on_fatal = {};
    // In place of the engine that the device needs; for tests.
    std::function<Result<std::unique_ptr<AttentionEngine>>()> open_engine = {};
  };

  // Opens the engine, warms it up and tests it, which takes up to a second on a GPU. A service that
  // cannot compute is made all the same: the cache goes on without, and the log says so.
  explicit AttentionService(const Environment& environment);
  // Waits for what is being computed; the rest is cancelled.
  ~AttentionService();
  AttentionService(const AttentionService&) = delete;
  AttentionService& operator=(const AttentionService&) = delete;

  // Errors: kUnsupported "attend_off" with the reason.
  [[nodiscard]] Status CheckReady() const;
  // Whether the engine computes such jobs. REQUIRES: CheckReady passed.
  [[nodiscard]] Status Check(const AttentionJob& job) const { return engine_->Check(job); }
  // REQUIRES: CheckReady passed.
  [[nodiscard]] double max_products() const { return engine_->max_products(); }

  // Memory on the device to share with a client, in whole 2 MiB; its bytes count until the last
  // owner drops it. REQUIRES: wanted_bytes is at most wire::kMaxWorkspaceBytes. Errors:
  // kLimitExceeded "workspace_limit"; those of Device::CreatePool.
  [[nodiscard]] Result<std::shared_ptr<DevicePool>> CreateWorkspace(uint64_t wanted_bytes);

  // Computes in the order of the calls; `done` is called on the loop with the nanoseconds that it
  // took. REQUIRES: CheckReady and Check passed; the job's memory stays until `done` was called.
  // Errors: kCancelled; kResourceExhausted, of this job alone; kIoError.
  void Run(std::shared_ptr<AttentionJob> job, std::function<void(Result<uint64_t>)> done);

  [[nodiscard]] AttentionReport Report() const;
  [[nodiscard]] bool idle() const { return report_.in_flight == 0; }

 private:
  struct Outcome;
  [[nodiscard]] Result<std::unique_ptr<AttentionEngine>> OpenEngine();
  void TryOut();
  void OnDone(const AttentionJob& job, const Outcome& outcome,
              const std::function<void(Result<uint64_t>)>& done);
  void Fail(AttentionState state, std::string reason);

  const Environment environment_;
  AttentionReport report_;
  // Shared with the workspaces, which may be dropped after the service.
  std::shared_ptr<uint64_t> workspace_bytes_ = std::make_shared<uint64_t>(0);
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::shared_ptr<std::atomic<bool>> stopping_ = std::make_shared<std::atomic<bool>>(false);
  std::unique_ptr<AttentionEngine> engine_;
  // Last: its threads use the engine.
  std::unique_ptr<Executor> executor_;
};

}  // namespace kvtier
