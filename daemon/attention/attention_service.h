// SPDX-License-Identifier: Apache-2.0
// Attention for clients that launch nothing themselves, in the pools of every device: an engine and
// threads for each device, tested before a client uses them, and memory to share with clients.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/enum_names.h"
#include "base/executor.h"
#include "base/gate.h"
#include "base/result.h"
#include "daemon/attention/attention_engine.h"
#include "daemon/attention/attention_self_test.h"
#include "daemon/attention/workspace_memory.h"
#include "daemon/config/config.h"
#include "daemon/runtime/log.h"
#include "gpu/device.h"
#include "tiers/policy/tenant_queues.h"

namespace kvtier {

// In order, from best to worst. Nothing is computed in another state than the first.
#define KVT_ATTENTION_STATES(X)                                                               \
  X(kReady, "ready", "the self-test passed")                                                  \
  X(kWaiting, "waiting", "for a pool on a device opened on demand, or short of memory")       \
  X(kOff, "off", "by configuration, or nothing to compute with: see AttentionReport::reason") \
  X(kFailed, "failed", "the self-test, or the device later on")
KVT_NAMED_ENUM(AttentionState, KVT_ATTENTION_STATES)

// The report on one device, for `kvtierctl status` and the metrics.
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

struct AttentionReports {
  std::vector<AttentionReport> devices;  // by DeviceIndex
  double start_seconds = 0;              // for opening, warming up and testing all
  uint64_t workspace_bytes = 0;          // of all sessions, on all devices

  // Sums, the first device's engine, and the state of the first device that is worst off. Empty for
  // no device.
  [[nodiscard]] AttentionReport All() const;
};

// Event loop only. It owns the engines and their threads. The devices outlive it; the workspaces
// that it gave out may be dropped after it. `device` is a DeviceIndex's value.
//
// A device whose engine fails is turned off for attention for the rest of the process, while its
// pools go on: the cache needs copies only.
class AttentionService {
 public:
  struct Environment {
    std::vector<Device*> devices;
    const KernelsConfig* config = nullptr;
    const Clock* clock = nullptr;
    EventQueue* loop = nullptr;
    Log* log = nullptr;
    // Called with an error that only a new process cures. May be empty.
    std::function<void(std::string)> on_fatal = {};
    // Opens an engine in place of the one that a device needs; for tests.
    std::function<Result<std::unique_ptr<AttentionEngine>>(uint32_t device)> open_engine = {};
  };

  // Opens the engines of the devices that are open, warms them up and tests them, which takes up to
  // a second. Devices that cannot compute do without: the cache goes on, and the log says so.
  explicit AttentionService(const Environment& environment);
  // The executors wait for the jobs that have begun; the others never do.
  ~AttentionService() = default;
  AttentionService(const AttentionService&) = delete;
  AttentionService& operator=(const AttentionService&) = delete;

  // The device, which is open, has a pool: opens and tests its engine as the constructor does for
  // others, on a thread of its own. Does nothing once it is known whether the device can compute,
  // which lack of memory leaves open.
  void Prepare(uint32_t device);
  // Calls `done` once it is known whether the device can compute: within this call, unless that is
  // being found out.
  void WhenPrepared(uint32_t device, std::function<void()> done);

  // Errors: kUnsupported "attend_off" with the reason.
  [[nodiscard]] Status CheckReady(uint32_t device) const;
  // Whether the device's engine computes such jobs. REQUIRES: CheckReady passed.
  [[nodiscard]] Status Check(uint32_t device, const AttentionJob& job) const {
    return workers_[device].engine->Check(job);
  }

  // Memory on the device to share with a tenant's client, all zeros. REQUIRES: wanted_bytes is at
  // most wire::kMaxWorkspaceBytes. Errors: those of WorkspaceMemory::Create.
  [[nodiscard]] Result<std::shared_ptr<DevicePool>> CreateWorkspace(uint32_t device,
                                                                    const std::string& tenant,
                                                                    uint64_t wanted_bytes) {
    return workspaces_->Create(environment_.devices[device], tenant, wanted_bytes);
  }
  // See WorkspaceMemory.
  void WhenReturned(std::function<void()> done) { workspaces_->WhenReturned(std::move(done)); }

  // Computes a tenant's jobs for the device in the order of the calls, and tenants' in turn; `done`
  // is called on the loop with the nanoseconds that it took. REQUIRES: Check passed; the job's
  // memory is the device's, and stays until `done` was called. Errors: kCancelled;
  // kResourceExhausted, of this job alone; kIoError; those of CheckReady once the device has
  // failed.
  void Run(uint32_t device, const std::string& tenant, std::shared_ptr<AttentionJob> job,
           std::function<void(Result<uint64_t>)> done);
  // Ends the tenant's cancelled jobs that have not begun, and with them what they keep.
  void DropCancelled(const std::string& tenant);

  [[nodiscard]] AttentionReports Report() const;
  // Whether no job is queued or computed on any device.
  [[nodiscard]] bool idle() const;
  // Whether a job on this pool is queued or computed.
  [[nodiscard]] bool ReadsPool(PoolId pool) const { return reads_.contains(pool); }

 private:
  struct Waiting {
    std::shared_ptr<AttentionJob> job;
    std::function<void(Result<uint64_t>)> done;
  };
  // An engine, and where it is from.
  struct Opened {
    Result<std::unique_ptr<AttentionEngine>> engine = nullptr;
    std::string library = {};
    std::string library_version = {};
  };
  // The engine of one device, and whether it can be relied on.
  struct Worker {
    std::string name;  // of the device, for people
    AttentionReport report;
    std::unique_ptr<AttentionEngine> engine;  // null: off
    bool preparing = false;
    std::vector<std::function<void()>> waiting;  // for the end of that
    TenantQueues<Waiting> jobs;                  // those that have not begun
    int running = 0;                             // jobs that threads have, at most one each
    // Last: its threads use the engine.
    std::unique_ptr<Executor> executor;
  };
  // The findings of a thread of the executor.
  struct Outcome {
    Status status;
    uint64_t nanoseconds = 0;
  };

  // Any thread.
  [[nodiscard]] Opened OpenEngine(uint32_t device, const DeviceInfo& info) const;
  void TakeEngine(Worker* worker, Opened opened);
  void TestEngines();
  void TakeTestResult(Worker* worker, AttentionSelfTest result);
  void AwaitMemory(Worker* worker);
  void TurnOff(Worker* worker, AttentionState state, std::string reason);
  void StartJobs(Worker* worker);
  void Start(Worker* worker, Waiting one);
  void EndUnstarted(Worker* worker, const Waiting& one, const Outcome& outcome);
  void OnDone(Worker* worker, const AttentionJob& job, const Outcome& outcome,
              const std::function<void(Result<uint64_t>)>& done);

  const Environment environment_;
  double start_seconds_ = 0;
  // Shared with the workspaces, which may be dropped after the service.
  const std::shared_ptr<WorkspaceMemory> workspaces_;
  std::vector<Worker> workers_;  // by DeviceIndex; never resized once the engines are open
  std::unordered_map<std::string, TenantLine> lines_;  // in Worker::jobs, of all tenants so far
  std::unordered_map<PoolId, uint64_t> reads_;         // jobs in flight, where there are any
  Gate gate_;
};

}  // namespace kvtier
