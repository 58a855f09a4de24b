// SPDX-License-Identifier: Apache-2.0
#include "daemon/attention/attention_service.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/byte_size.h"
#include "protocol/limits.h"

namespace kvtier {
namespace {

// In which a GPU hands out memory; workspaces are counted in it everywhere.
constexpr uint64_t kWorkspaceGranuleBytes = 2 * kMiB;
// Nobody waits for a workspace: it must be all zeros when it has been made.
static_assert(wire::kMaxWorkspaceBytes <= kReadyAtOnceBytes &&
              kReadyAtOnceBytes % kWorkspaceGranuleBytes == 0);

// "device 1 (cuda:3)".
std::string NameOf(size_t position, const DeviceInfo& info) {
  const std::string device =
      info.kind == "cuda" ? fmt::format("cuda:{}", info.ordinal) : std::string(info.kind);
  return fmt::format("device {} ({})", position, device);
}

// The higher, the worse.
int Severity(AttentionState state) {
  if (state == AttentionState::kReady) return 0;
  return state == AttentionState::kOff ? 1 : 2;
}

}  // namespace

AttentionReport AttentionReports::All() const {
  if (devices.empty()) return {};
  AttentionReport all;
  all.engine = devices.front().engine;
  all.library = devices.front().library;
  all.library_version = devices.front().library_version;
  const auto worst = std::ranges::max_element(
      devices, {}, [](const AttentionReport& report) { return Severity(report.state); });
  all.state = worst->state;
  all.reason = worst->reason;
  if (devices.size() > 1 && !worst->reason.empty()) {
    all.reason = fmt::format("device {}: {}", worst - devices.begin(), worst->reason);
  }
  for (const AttentionReport& report : devices) {
    all.self_test.cases += report.self_test.cases;
    all.self_test.worst_error = std::max(all.self_test.worst_error, report.self_test.worst_error);
    if (all.self_test.failure.empty()) all.self_test.failure = report.self_test.failure;
    all.calls += report.calls;
    all.query_tokens += report.query_tokens;
    all.failures += report.failures;
    all.busy_ns += report.busy_ns;
    all.in_flight += report.in_flight;
  }
  return all;
}

AttentionService::AttentionService(const Environment& environment) : environment_(environment) {
  const int64_t start_ms = environment_.clock->MonotonicMs();
  for (size_t i = 0; i < environment_.devices.size(); ++i) {
    DeviceAttention::Environment one{.device = environment_.devices[i],
                                     .name = NameOf(i, environment_.devices[i]->info()),
                                     .config = environment_.config,
                                     .loop = environment_.loop,
                                     .log = environment_.log,
                                     .on_fatal = environment_.on_fatal};
    if (environment_.open_engine) {
      one.open_engine = [this, i] { return environment_.open_engine(static_cast<uint32_t>(i)); };
    }
    devices_.push_back(std::make_unique<DeviceAttention>(one));
  }
  TryOut();
  start_seconds_ = static_cast<double>(environment_.clock->MonotonicMs() - start_ms) / 1000;
}

void AttentionService::TryOut() {
  std::vector<DeviceAttention*> tried;
  std::vector<AttentionTrial> trials;
  for (const auto& device : devices_) {
    if (device->engine() == nullptr) continue;
    tried.push_back(device.get());
    trials.push_back({device->engine(), device->device()});
  }
  std::vector<AttentionSelfTest> results = TestAttention(trials);
  for (size_t i = 0; i < tried.size(); ++i) tried[i]->TriedOut(std::move(results[i]));
}

Result<std::shared_ptr<DevicePool>> AttentionService::CreateWorkspace(uint32_t device,
                                                                      uint64_t wanted_bytes) {
  const uint64_t bytes =
      (wanted_bytes + kWorkspaceGranuleBytes - 1) / kWorkspaceGranuleBytes * kWorkspaceGranuleBytes;
  const uint64_t limit = environment_.config->workspace_bytes;
  if (bytes > limit || *workspace_bytes_ > limit - bytes) {
    return MakeError(ErrorCode::kLimitExceeded, "workspace_limit",
                     fmt::format("{} asked for, {} of {} are taken", FormatByteSize(bytes),
                                 FormatByteSize(*workspace_bytes_), FormatByteSize(limit)));
  }
  KVT_ASSIGN_OR_RETURN(std::unique_ptr<DevicePool> memory,
                       environment_.devices[device]->CreatePool(bytes));
  *workspace_bytes_ += bytes;
  const auto give_back = [bytes, total = workspace_bytes_](DevicePool* pool) {
    delete pool;
    *total -= bytes;
  };
  return std::shared_ptr<DevicePool>(memory.release(), give_back);
}

AttentionReports AttentionService::Report() const {
  AttentionReports reports{.start_seconds = start_seconds_, .workspace_bytes = *workspace_bytes_};
  for (const auto& device : devices_) reports.devices.push_back(device->report());
  return reports;
}

bool AttentionService::idle() const {
  return std::ranges::all_of(devices_,
                             [](const auto& device) { return device->report().in_flight == 0; });
}

}  // namespace kvtier
