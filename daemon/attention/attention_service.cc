#include "daemon/attention/attention_service.h"

#include <fmt/format.h>

#include <chrono>
#include <utility>

#include "base/byte_size.h"
#include "base/thread_executor.h"
#include "daemon/attention/cuda_attention_engine.h"
#include "daemon/attention/host_attention_engine.h"
#include "kernels/service/kernel_library.h"

namespace kvtier {
namespace {

constexpr const char* kCudaKind = "cuda";
// In which a GPU hands out memory; workspaces are counted in it everywhere.
constexpr uint64_t kWorkspaceGranuleBytes = 2 * kMiB;

}  // namespace

// What a thread of the executor found out.
struct AttentionService::Outcome {
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

AttentionService::AttentionService(const Environment& environment) : environment_(environment) {
  if (!environment_.config->enabled) {
    Fail(AttentionState::kOff, "configured");
    return;
  }
  const int64_t start_ms = environment_.clock->MonotonicMs();
  Result<std::unique_ptr<AttentionEngine>> engine = OpenEngine();
  if (!engine) {
    Fail(AttentionState::kOff, engine.error().ToString());
    return;
  }
  engine_ = *std::move(engine);
  report_.engine = engine_->name();
  TryOut();
  report_.start_seconds = static_cast<double>(environment_.clock->MonotonicMs() - start_ms) / 1000;
  if (report_.state != AttentionState::kReady) return;
  const int threads = engine_->concurrent() ? static_cast<int>(environment_.config->threads) : 1;
  executor_ = std::make_unique<ThreadExecutor>("kvt-attend", threads, environment_.loop);
  environment_.log->Info(
      "kernels.ready", "attention on {}{}: {} cases right after {:.0f} ms", report_.engine,
      report_.library.empty() ? ""
                              : fmt::format(" by {} {}", report_.library, report_.library_version),
      report_.self_test.cases, 1000 * report_.start_seconds);
}

AttentionService::~AttentionService() {
  *alive_ = false;
  *stopping_ = true;
}

Result<std::unique_ptr<AttentionEngine>> AttentionService::OpenEngine() {
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

void AttentionService::TryOut() {
  report_.self_test = TestAttention(engine_.get(), environment_.device);
  if (!report_.self_test.failure.empty()) {
    Fail(AttentionState::kFailed, "self-test: " + report_.self_test.failure);
    if (report_.self_test.device_lost && environment_.on_fatal) {
      environment_.on_fatal(report_.reason);
    }
    return;
  }
  report_.state = AttentionState::kReady;
}

void AttentionService::Fail(AttentionState state, std::string reason) {
  report_.state = state;
  report_.reason = std::move(reason);
  if (state == AttentionState::kFailed) {
    environment_.log->Error(
        "kernels.failed", "attention is off, the cache goes on without: {}: {}{}{}", report_.engine,
        report_.reason, report_.library.empty() ? "" : ", by ", report_.library);
  } else if (!environment_.config->enabled) {
    environment_.log->Info("kernels.off", "attention is off: {}", report_.reason);
  } else {
    environment_.log->Warning("kernels.off", "attention is off: {}", report_.reason);
  }
}

Status AttentionService::CheckReady() const {
  if (report_.state == AttentionState::kReady) return {};
  return MakeError(ErrorCode::kUnsupported, "attend_off", report_.reason);
}

Result<std::shared_ptr<DevicePool>> AttentionService::CreateWorkspace(uint64_t wanted_bytes) {
  const uint64_t bytes =
      (wanted_bytes + kWorkspaceGranuleBytes - 1) / kWorkspaceGranuleBytes * kWorkspaceGranuleBytes;
  const uint64_t limit = environment_.config->workspace_bytes;
  if (bytes > limit || *workspace_bytes_ > limit - bytes) {
    return MakeError(ErrorCode::kLimitExceeded, "workspace_limit",
                     fmt::format("{} asked for, {} of {} are taken", FormatByteSize(bytes),
                                 FormatByteSize(*workspace_bytes_), FormatByteSize(limit)));
  }
  KVT_ASSIGN_OR_RETURN(std::unique_ptr<DevicePool> memory, environment_.device->CreatePool(bytes));
  *workspace_bytes_ += bytes;
  const auto give_back = [bytes, total = workspace_bytes_](DevicePool* pool) {
    delete pool;
    *total -= bytes;
  };
  return std::shared_ptr<DevicePool>(memory.release(), give_back);
}

void AttentionService::Run(std::shared_ptr<AttentionJob> job,
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

void AttentionService::OnDone(const AttentionJob& job, const Outcome& outcome,
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

AttentionReport AttentionService::Report() const {
  AttentionReport report = report_;
  report.workspace_bytes = *workspace_bytes_;
  return report;
}

}  // namespace kvtier
