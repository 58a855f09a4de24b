// SPDX-License-Identifier: Apache-2.0
#include "daemon/attention/attention_service.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/executor.h"
#include "kernels/service/kernel_library.h"

namespace kvtier {
namespace {

constexpr const char* kCudaKind = "cuda";
// Threads that compute for pools in host memory; one call runs on one of them. The CPU is there for
// tests and demonstrations, and engines need its cores.
constexpr int kHostThreads = 2;

constexpr const char* kNoMemory = "the device's memory is used up; its next pool is another try";

// "device 1 (cuda:3)".
std::string NameOf(size_t position, const DeviceInfo& info) {
  const std::string device =
      info.kind == kCudaKind ? fmt::format("cuda:{}", info.ordinal) : std::string(info.kind);
  return fmt::format("device {} ({})", position, device);
}

Status CheckState(const AttentionReport& report) {
  if (report.state == AttentionState::kReady) return {};
  return MakeError(ErrorCode::kUnsupported, "attend_off", report.reason);
}

}  // namespace

AttentionReport AttentionReports::All() const {
  if (devices.empty()) return {};
  AttentionReport all;
  all.engine = devices.front().engine;
  all.library = devices.front().library;
  all.library_version = devices.front().library_version;
  const auto worst = std::ranges::max_element(devices, {}, &AttentionReport::state);
  all.state = worst->state;
  all.reason = worst->reason;
  if (devices.size() > 1 && !worst->reason.empty()) {
    all.reason = fmt::format("device {}: {}", worst - devices.begin(), worst->reason);
  }
  for (const AttentionReport& report : devices) {
    all.self_test.cases += report.self_test.cases;
    all.self_test.worst_error = std::max(all.self_test.worst_error, report.self_test.worst_error);
    if (all.self_test.failure.empty()) all.self_test.failure = report.self_test.failure;
    all.self_test.lacks_memory |= report.self_test.lacks_memory;
    all.calls += report.calls;
    all.query_tokens += report.query_tokens;
    all.failures += report.failures;
    all.busy_ns += report.busy_ns;
    all.in_flight += report.in_flight;
  }
  return all;
}

AttentionService::AttentionService(const Environment& environment)
    : environment_(environment),
      workspaces_(
          std::make_shared<WorkspaceMemory>(environment.config->workspace_bytes, environment.loop)),
      workers_(environment.devices.size()) {
  const int64_t start_ms = environment_.clock->MonotonicMs();
  for (uint32_t device = 0; device < workers_.size(); ++device) {
    Worker& worker = workers_[device];
    worker.name = NameOf(device, environment_.devices[device]->info());
    if (!environment_.config->enabled) {
      TurnOff(&worker, AttentionState::kOff, "configured");
      continue;
    }
    if (!environment_.devices[device]->is_open()) {
      worker.report.state = AttentionState::kWaiting;
      worker.report.reason = "it is tested when the device has its first pool";
      continue;
    }
    TakeEngine(&worker, OpenEngine(device, environment_.devices[device]->info()));
  }
  TestEngines();
  start_seconds_ = static_cast<double>(environment_.clock->MonotonicMs() - start_ms) / 1000;
}

AttentionService::Opened AttentionService::OpenEngine(uint32_t device,
                                                      const DeviceInfo& info) const {
  if (environment_.open_engine) return {.engine = environment_.open_engine(device)};
  if (info.kind != kCudaKind) return {.engine = MakeHostAttentionEngine()};
  const kernels::KernelLibrary library = kernels::OpenKernelLibrary();
  if (library.table == nullptr) {
    return {.engine = MakeError(ErrorCode::kUnsupported, "no_kernels", library.why_not),
            .library = library.path};
  }
  return {.engine = OpenCudaAttentionEngine(library.table, info.ordinal),
          .library = library.path,
          .library_version = library.table->version};
}

void AttentionService::TakeEngine(Worker* worker, Opened opened) {
  worker->report.library = std::move(opened.library);
  worker->report.library_version = std::move(opened.library_version);
  if (!opened.engine) {
    const Error& error = opened.engine.error();
    if (error.code == ErrorCode::kResourceExhausted) return AwaitMemory(worker);
    return TurnOff(worker, AttentionState::kOff, error.ToString());
  }
  worker->engine = *std::move(opened.engine);
  worker->report.engine = worker->engine->traits().name;
}

void AttentionService::Prepare(uint32_t device) {
  Worker& worker = workers_[device];
  if (worker.report.state != AttentionState::kWaiting || worker.preparing) return;
  struct Trial {
    std::unique_ptr<DevicePool> memory;
    Opened opened;
    AttentionSelfTest result;
  };
  const auto trial = std::make_shared<Trial>();
  trial->memory = environment_.devices[device]->CreatePool(kSelfTestBytes).value_or(nullptr);
  if (trial->memory == nullptr) return AwaitMemory(&worker);
  worker.preparing = true;
  // One of an earlier trial, whose memory the thread gives back.
  trial->opened.engine = std::move(worker.engine);
  // A device that is opened on demand is a GPU, which one thread suffices to feed.
  worker.executor = std::make_unique<ThreadExecutor>("kvt-attend", 1, environment_.loop);
  worker.executor->Run(
      [this, trial, device, info = environment_.devices[device]->info()] {
        trial->opened = OpenEngine(device, info);
        if (!trial->opened.engine) return;
        const AttentionTrial one{trial->opened.engine->get(), trial->memory.get()};
        trial->result = TestAttention({&one, 1}).front();
      },
      gate_.WhileOpen([this, trial, worker = &worker] {
        worker->preparing = false;
        TakeEngine(worker, std::move(trial->opened));
        trial->memory.reset();
        if (worker->engine) TakeTestResult(worker, std::move(trial->result));
        for (const auto& done : std::exchange(worker->waiting, {})) done();
      }));
}

void AttentionService::WhenPrepared(uint32_t device, std::function<void()> done) {
  if (!workers_[device].preparing) return done();
  workers_[device].waiting.push_back(std::move(done));
}

void AttentionService::TestEngines() {
  std::vector<Worker*> tested;
  std::vector<std::unique_ptr<DevicePool>> memory;
  std::vector<AttentionTrial> trials;
  for (size_t i = 0; i < workers_.size(); ++i) {
    if (!workers_[i].engine) continue;
    tested.push_back(&workers_[i]);
    memory.push_back(environment_.devices[i]->CreatePool(kSelfTestBytes).value_or(nullptr));
    trials.push_back({workers_[i].engine.get(), memory.back().get()});
  }
  std::vector<AttentionSelfTest> results = TestAttention(trials);
  for (size_t i = 0; i < tested.size(); ++i) TakeTestResult(tested[i], std::move(results[i]));
}

void AttentionService::TakeTestResult(Worker* worker, AttentionSelfTest result) {
  AttentionReport& report = worker->report;
  report.self_test = std::move(result);
  if (!report.self_test.failure.empty()) {
    TurnOff(worker, AttentionState::kFailed, "self-test: " + report.self_test.failure);
    if (report.self_test.device_lost && environment_.on_fatal) {
      environment_.on_fatal(report.reason);
    }
    return;
  }
  if (report.self_test.lacks_memory) return AwaitMemory(worker);
  // A GPU works through its jobs one after the other, so that one thread suffices to feed it.
  const int threads = worker->engine->traits().concurrent ? kHostThreads : 1;
  if (!worker->executor) {
    worker->executor = std::make_unique<ThreadExecutor>("kvt-attend", threads, environment_.loop);
  }
  report.state = AttentionState::kReady;
  report.reason.clear();
  environment_.log->Info(
      "kernels.ready", "{}: attention on {}{}: {} cases right", worker->name, report.engine,
      report.library.empty() ? ""
                             : fmt::format(" by {} {}", report.library, report.library_version),
      report.self_test.cases);
}

void AttentionService::AwaitMemory(Worker* worker) {
  AttentionReport& report = worker->report;
  report.self_test.lacks_memory = true;
  // Clients that attach again and again do not fill the log.
  if (report.reason != kNoMemory) TurnOff(worker, AttentionState::kWaiting, kNoMemory);
}

void AttentionService::TurnOff(Worker* worker, AttentionState state, std::string reason) {
  AttentionReport& report = worker->report;
  report.state = state;
  report.reason = std::move(reason);
  if (state == AttentionState::kFailed) {
    environment_.log->Error("kernels.failed",
                            "{}: attention is off, the cache goes on without: {}: {}{}{}",
                            worker->name, report.engine, report.reason,
                            report.library.empty() ? "" : ", by ", report.library);
  } else if (!environment_.config->enabled) {
    environment_.log->Info("kernels.off", "{}: attention is off: {}", worker->name, report.reason);
  } else {
    environment_.log->Warning("kernels.off", "{}: attention is off: {}", worker->name,
                              report.reason);
  }
}

Status AttentionService::CheckReady(uint32_t device) const {
  return CheckState(workers_[device].report);
}

void AttentionService::Run(uint32_t device, const std::string& tenant,
                           std::shared_ptr<AttentionJob> job,
                           std::function<void(Result<uint64_t>)> done) {
  Worker& worker = workers_[device];
  ++worker.report.in_flight;
  ++reads_[job->pool];
  const TenantLine next(static_cast<uint32_t>(lines_.size()));
  worker.jobs.Push(lines_.try_emplace(tenant, next).first->second,
                   {std::move(job), std::move(done)});
  StartJobs(&worker);
}

// The executor has its own queue, in which a tenant's many jobs would stand before another's: so a
// thread gets its next job when it has ended one.
void AttentionService::StartJobs(Worker* worker) {
  while (worker->running < worker->executor->threads() &&
         worker->jobs.TakeTurn([&](TenantLine, PriorityQueue<Waiting>* line) {
           Start(worker, std::move(line->now()->front()));
           line->now()->pop_front();
           return true;
         })) {
  }
}

void AttentionService::Start(Worker* worker, Waiting one) {
  if (worker->report.state != AttentionState::kReady) return EndUnstarted(worker, one, Outcome{});
  ++worker->running;
  // The thread gets plain pointers only. The job is dropped on the loop, not on the thread, because
  // its workspaces go with it and their count is not guarded by a lock.
  auto outcome = std::make_shared<Outcome>();
  const auto compute = [engine = worker->engine.get(), job = one.job.get(),
                        outcome = outcome.get()] {
    const auto start = std::chrono::steady_clock::now();
    outcome->status = engine->Run(*job);
    outcome->nanoseconds = static_cast<uint64_t>(
        std::chrono::nanoseconds(std::chrono::steady_clock::now() - start).count());
  };
  worker->executor->Run(compute, gate_.WhileOpen([this, worker, one = std::move(one), outcome] {
    --worker->running;
    // First, because it says whether the next jobs may be computed.
    OnDone(worker, *one.job, *outcome, one.done);
    StartJobs(worker);
  }));
}

void AttentionService::DropCancelled(const std::string& tenant) {
  const auto found = lines_.find(tenant);
  if (found == lines_.end()) return;
  for (Worker& worker : workers_) {
    worker.jobs.ForEachLine([&](TenantLine line, PriorityQueue<Waiting>* jobs) {
      if (line != found->second) return;
      std::erase_if(*jobs->now(), [&](const Waiting& one) {
        if (!one.job->cancelled) return false;
        EndUnstarted(&worker, one, {MakeError(ErrorCode::kCancelled, "attend_cancelled")});
        return true;
      });
    });
  }
}

void AttentionService::EndUnstarted(Worker* worker, const Waiting& one, const Outcome& outcome) {
  environment_.loop->Post(gate_.WhileOpen(
      [this, worker, one, outcome] { OnDone(worker, *one.job, outcome, one.done); }));
}

void AttentionService::OnDone(Worker* worker, const AttentionJob& job, const Outcome& outcome,
                              const std::function<void(Result<uint64_t>)>& done) {
  AttentionReport& report = worker->report;
  --report.in_flight;
  if (--reads_[job.pool] == 0) reads_.erase(job.pool);
  report.busy_ns += outcome.nanoseconds;
  // An I/O error means that the device's state is unknown: nothing that it computes afterwards can
  // be relied on, nor the jobs that are under way.
  if (const Status status = outcome.status ? CheckState(report) : outcome.status; !status) {
    ++report.failures;
    const Error& error = status.error();
    if (error.code == ErrorCode::kIoError && report.state == AttentionState::kReady) {
      TurnOff(worker, AttentionState::kFailed, error.ToString());
    }
    if (error.reason == kDeviceLost && environment_.on_fatal) {
      environment_.on_fatal(error.ToString());
    }
    return done(tl::unexpected(error));
  }
  ++report.calls;
  report.query_tokens += static_cast<uint64_t>(job.query_tokens());
  done(outcome.nanoseconds);
}

AttentionReports AttentionService::Report() const {
  AttentionReports reports{.start_seconds = start_seconds_,
                           .workspace_bytes = workspaces_->bytes()};
  for (const Worker& worker : workers_) reports.devices.push_back(worker.report);
  return reports;
}

bool AttentionService::idle() const {
  return std::ranges::all_of(workers_, [](const Worker& worker) {
    return worker.report.in_flight == 0 && !worker.preparing;
  });
}

}  // namespace kvtier
