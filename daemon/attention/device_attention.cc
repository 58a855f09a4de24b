// SPDX-License-Identifier: Apache-2.0
#include "daemon/attention/device_attention.h"

#include <fmt/format.h>

#include <chrono>
#include <utility>

#include "base/thread_executor.h"
#include "daemon/attention/cuda_attention_engine.h"
#include "daemon/attention/host_attention_engine.h"
#include "kernels/service/kernel_library.h"

namespace kvtier {
namespace {

constexpr const char* kCudaKind = "cuda";

}  // namespace

// What a thread of the executor found out.
struct DeviceAttention::Outcome {
  Status status;
  uint64_t nanoseconds = 0;
};

std::string_view AttentionStateName(AttentionState state) {
  switch (state) {
    case AttentionState::kOff:
      return "off";
    case AttentionState::kReady:
      return "ready";
    case AttentionState::kFailed:
      return "failed";
  }
  return "unknown";
}

DeviceAttention::DeviceAttention(const Environment& environment) : environment_(environment) {
  if (!environment_.config->enabled) {
    Fail(AttentionState::kOff, "configured");
    return;
  }
  Result<std::unique_ptr<AttentionEngine>> engine = OpenEngine();
  if (!engine) {
    Fail(AttentionState::kOff, engine.error().ToString());
    return;
  }
  engine_ = *std::move(engine);
  report_.engine = engine_->name();
  report_.reason = "not tried out yet";
}

DeviceAttention::~DeviceAttention() {
  *alive_ = false;
  *stopping_ = true;
}

Result<std::unique_ptr<AttentionEngine>> DeviceAttention::OpenEngine() {
  if (environment_.open_engine) return environment_.open_engine();
  const DeviceInfo device = environment_.device->info();
  if (device.kind != kCudaKind) return std::make_unique<HostAttentionEngine>();
  const kernels::KernelLibrary library = kernels::OpenKernelLibrary(environment_.config->library);
  report_.library = library.path;
  if (library.table == nullptr) {
    return MakeError(ErrorCode::kUnsupported, "no_kernels", library.why_not);
  }
  report_.library_version = library.table->version;
  return CudaAttentionEngine::Open(library.table, device.ordinal);
}

void DeviceAttention::TriedOut(AttentionSelfTest result) {
  report_.self_test = std::move(result);
  if (!report_.self_test.failure.empty()) {
    Fail(AttentionState::kFailed, "self-test: " + report_.self_test.failure);
    if (report_.self_test.device_lost && environment_.on_fatal) {
      environment_.on_fatal(report_.reason);
    }
    return;
  }
  const int threads = engine_->concurrent() ? static_cast<int>(environment_.config->threads) : 1;
  executor_ = std::make_unique<ThreadExecutor>("kvt-attend", threads, environment_.loop);
  report_.state = AttentionState::kReady;
  report_.reason.clear();
  environment_.log->Info(
      "kernels.ready", "{}: attention on {}{}: {} cases right", environment_.name, report_.engine,
      report_.library.empty() ? ""
                              : fmt::format(" by {} {}", report_.library, report_.library_version),
      report_.self_test.cases);
}

void DeviceAttention::Fail(AttentionState state, std::string reason) {
  report_.state = state;
  report_.reason = std::move(reason);
  if (state == AttentionState::kFailed) {
    environment_.log->Error("kernels.failed",
                            "{}: attention is off, the cache goes on without: {}: {}{}{}",
                            environment_.name, report_.engine, report_.reason,
                            report_.library.empty() ? "" : ", by ", report_.library);
  } else if (!environment_.config->enabled) {
    environment_.log->Info("kernels.off", "{}: attention is off: {}", environment_.name,
                           report_.reason);
  } else {
    environment_.log->Warning("kernels.off", "{}: attention is off: {}", environment_.name,
                              report_.reason);
  }
}

Status DeviceAttention::CheckReady() const {
  if (report_.state == AttentionState::kReady) return {};
  return MakeError(ErrorCode::kUnsupported, "attend_off", report_.reason);
}

void DeviceAttention::Run(std::shared_ptr<AttentionJob> job,
                          std::function<void(Result<uint64_t>)> done) {
  ++report_.in_flight;
  // The job is dropped on the loop, not on a thread: workspaces go with it.
  auto outcome = std::make_shared<Outcome>();
  const auto compute = [engine = engine_.get(), job = job.get(), outcome = outcome.get(),
                        stopping = stopping_] {
    if (*stopping) job->cancelled = true;
    const auto start = std::chrono::steady_clock::now();
    outcome->status = engine->Run(*job);
    outcome->nanoseconds = static_cast<uint64_t>(
        std::chrono::nanoseconds(std::chrono::steady_clock::now() - start).count());
  };
  executor_->Run(compute,
                 [this, alive = alive_, job = std::move(job), outcome, done = std::move(done)] {
                   if (*alive) OnDone(*job, *outcome, done);
                 });
}

void DeviceAttention::OnDone(const AttentionJob& job, const Outcome& outcome,
                             const std::function<void(Result<uint64_t>)>& done) {
  --report_.in_flight;
  report_.busy_ns += outcome.nanoseconds;
  if (!outcome.status) {
    ++report_.failures;
    const Error& error = outcome.status.error();
    // A GPU that failed once computes nothing any more.
    if (error.code == ErrorCode::kIoError && report_.state == AttentionState::kReady) {
      Fail(AttentionState::kFailed, error.ToString());
    }
    if (error.reason == kDeviceLost && environment_.on_fatal) {
      environment_.on_fatal(error.ToString());
    }
    return done(tl::unexpected(error));
  }
  ++report_.calls;
  report_.query_tokens += static_cast<uint64_t>(job.query_tokens());
  done(outcome.nanoseconds);
}

}  // namespace kvtier
