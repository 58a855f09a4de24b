// SPDX-License-Identifier: Apache-2.0
// Attention for clients that launch nothing themselves, in the pools of every device: engines tried
// out before the first client comes, and memory to share with the clients.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "daemon/attention/device_attention.h"

namespace kvtier {

// For `kvtierctl status` and the metrics.
struct AttentionReports {
  std::vector<AttentionReport> devices;  // by DeviceIndex
  double start_seconds = 0;              // for opening, warming up and testing all
  uint64_t workspace_bytes = 0;          // of all sessions, on all devices

  // As one: sums, the first device's engine, and the state of the first that is worst off. Empty
  // for no device.
  [[nodiscard]] AttentionReport All() const;
};

// Event loop only. The devices outlive it, and the workspaces. `device` is a DeviceIndex's value.
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
    // In place of the engine that a device needs; for tests.
    std::function<Result<std::unique_ptr<AttentionEngine>>(uint32_t device)> open_engine = {};
  };

  // Opens the engines, warms them up and tests them, which takes up to a second. Devices that
  // cannot compute do without: the cache goes on, and the log says so.
  explicit AttentionService(const Environment& environment);

  // Errors: kUnsupported "attend_off" with the reason.
  [[nodiscard]] Status CheckReady(uint32_t device) const { return devices_[device]->CheckReady(); }
  // Whether the device's engine computes such jobs. REQUIRES: CheckReady passed, as for the
  // following.
  [[nodiscard]] Status Check(uint32_t device, const AttentionJob& job) const {
    return devices_[device]->engine()->Check(job);
  }
  [[nodiscard]] double max_products(uint32_t device) const {
    return devices_[device]->engine()->max_products();
  }

  // Memory on the device to share with a client, in whole 2 MiB; its bytes count until the last
  // owner drops it. REQUIRES: wanted_bytes is at most wire::kMaxWorkspaceBytes. Errors:
  // kLimitExceeded "workspace_limit" (a bound for all devices together); those of
  // Device::CreatePool.
  [[nodiscard]] Result<std::shared_ptr<DevicePool>> CreateWorkspace(uint32_t device,
                                                                    uint64_t wanted_bytes);

  // Computes in the order of the calls for the device; `done` is called on the loop with the
  // nanoseconds that it took. REQUIRES: Check passed; the job's memory is the device's, and stays
  // until `done` was called. Errors: kCancelled; kResourceExhausted, of this job alone; kIoError.
  void Run(uint32_t device, std::shared_ptr<AttentionJob> job,
           std::function<void(Result<uint64_t>)> done) {
    devices_[device]->Run(std::move(job), std::move(done));
  }

  [[nodiscard]] AttentionReports Report() const;
  [[nodiscard]] bool idle() const;

 private:
  void TryOut();

  const Environment environment_;
  std::vector<std::unique_ptr<DeviceAttention>> devices_;
  double start_seconds_ = 0;
  // Shared with the workspaces, which may be dropped after the service.
  std::shared_ptr<uint64_t> workspace_bytes_ = std::make_shared<uint64_t>(0);
};

}  // namespace kvtier
