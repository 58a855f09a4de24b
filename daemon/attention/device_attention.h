// SPDX-License-Identifier: Apache-2.0
// Attention on one device: the engine that it needs, whether that can be relied on, and its
// threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/executor.h"
#include "base/result.h"
#include "daemon/attention/attention_engine.h"
#include "daemon/attention/attention_self_test.h"
#include "daemon/config/config.h"
#include "daemon/runtime/log.h"
#include "gpu/device.h"

namespace kvtier {

enum class AttentionState : uint8_t {
  kOff,     // by configuration, or nothing to compute with: see AttentionReport::reason
  kReady,   // tried out; the only state in which anything is computed
  kFailed,  // the self-test, or the device later on
};

// "off", "ready", "failed".
[[nodiscard]] std::string_view AttentionStateName(AttentionState state);

// Of one device, for `kvtierctl status` and the metrics.
struct AttentionReport {
  AttentionState state = AttentionState::kOff;
  std::string reason;   // why it is not ready; empty if it is
  std::string engine;   // "cpu", "cuda"
  std::string library;  // the kernels' file; empty for the CPU
  std::string library_version;
  AttentionSelfTest self_test;
  uint64_t calls = 0;  // computed
  uint64_t query_tokens = 0;
  uint64_t failures = 0;
  uint64_t busy_ns = 0;
  uint64_t in_flight = 0;
};

// Event loop only. Off until it has been tried out.
class DeviceAttention {
 public:
  struct Environment {
    Device* device = nullptr;
    std::string name;  // of the device, for people
    const KernelsConfig* config = nullptr;
    EventQueue* loop = nullptr;
    Log* log = nullptr;
    // Called with an error that only a new process cures. May be empty.
    std::function<void(std::string)> on_fatal = {};
    // In place of the engine that the device needs; for tests.
    std::function<Result<std::unique_ptr<AttentionEngine>>()> open_engine = {};
  };

  // Opens the engine. A device without one stays off, and the log says why.
  explicit DeviceAttention(const Environment& environment);
  // Waits for what is being computed; the rest is cancelled.
  ~DeviceAttention();
  DeviceAttention(const DeviceAttention&) = delete;
  DeviceAttention& operator=(const DeviceAttention&) = delete;

  // What is to be tried out; null if there is nothing to try.
  [[nodiscard]] AttentionEngine* engine() const { return engine_.get(); }
  [[nodiscard]] Device* device() const { return environment_.device; }
  // Ready from here on, if `result` is without a failure. REQUIRES: there is an engine.
  void TriedOut(AttentionSelfTest result);

  // As AttentionService's.
  [[nodiscard]] Status CheckReady() const;
  void Run(std::shared_ptr<AttentionJob> job, std::function<void(Result<uint64_t>)> done);

  [[nodiscard]] const AttentionReport& report() const { return report_; }

 private:
  struct Outcome;
  [[nodiscard]] Result<std::unique_ptr<AttentionEngine>> OpenEngine();
  void OnDone(const AttentionJob& job, const Outcome& outcome,
              const std::function<void(Result<uint64_t>)>& done);
  void Fail(AttentionState state, std::string reason);

  const Environment environment_;
  AttentionReport report_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::shared_ptr<std::atomic<bool>> stopping_ = std::make_shared<std::atomic<bool>>(false);
  std::unique_ptr<AttentionEngine> engine_;
  // Last: its threads use the engine.
  std::unique_ptr<Executor> executor_;
};

}  // namespace kvtier
