// SPDX-License-Identifier: Apache-2.0
#include "daemon/resources/device_opening.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "base/units.h"
#include "daemon/config/config_schema.h"
#include "gpu/cuda_device.h"
#include "gpu/host_device.h"

namespace kvtier {
namespace {

// A GPU hands out memory in pieces of this size; a remainder could never be used.
constexpr uint64_t kVramGranuleBytes = 2 * kMiB;
// The memory of an engine that was killed is held until its last kernel has ended and its children
// are gone, which takes seconds, rarely more. After a minute it is most likely held by a process
// that lives.
constexpr int64_t kVramWaitMs = 60'000;
// Each look opens the device anew, which is not cheap.
constexpr auto kVramPoll = std::chrono::milliseconds(250);

// The bytes for pools on the device at `position` in pool.device: its own size if sizes are given
// one by one, else a share of what is free, else the common size.
uint64_t WantedBytes(const Config& config, size_t position, uint64_t free_bytes) {
  if (!config.pool.device_bytes.empty()) return config.pool.device_bytes[position];
  if (config.pool.free_fraction <= 0) return config.cache.pool_bytes;
  return static_cast<uint64_t>(config.pool.free_fraction * static_cast<double>(free_bytes));
}

// For messages: an operator wants to know which process to end.
std::string HoldersText(int ordinal) {
  const std::vector<VramHolder> holders = VramHoldersOf(ordinal);
  if (holders.empty()) return "the driver does not say who holds the rest";
  std::string text = "held by";
  for (const VramHolder& holder : holders) {
    text += fmt::format("{} pid {}", &holder == &holders.front() ? "" : ",", holder.pid);
    if (holder.bytes > 0) text += fmt::format(" ({})", FormatByteSize(holder.bytes));
  }
  return text;
}

struct Choice {
  bool cuda = false;
  int ordinal = 0;
  std::string reason;
};

// "auto" never fails for want of a GPU. A GPU that was named and is not there is an error, found
// when it is opened: silently slow is worse than not started.
Result<Choice> Choose(DeviceChoice wanted) {
  if (wanted == DeviceChoice::kHost) return Choice{.reason = "configured"};
  if (wanted != DeviceChoice::kAuto) {
    return Choice{.cuda = true, .ordinal = OrdinalOf(wanted), .reason = "configured"};
  }
  KVT_ASSIGN_OR_RETURN(const CudaPresence presence, FindCudaDevices());
  if (presence.devices == 0) {
    return Choice{.reason = "auto: no GPU can be used: " + presence.why_none};
  }
  return Choice{.cuda = true,
                .reason = fmt::format("auto: the first of {} GPU(s)", presence.devices)};
}

// Opens a GPU, waits until enough of its memory is free, and settles how much of it pools may take.
class CudaOpening {
 public:
  CudaOpening(const Config& config, size_t position, const Clock& clock, EventQueue* loop, Log* log,
              CudaDeviceOptions options,
              const std::function<uint64_t(const DeviceInfo&)>& kept_bytes)
      : config_(config),
        position_(position),
        clock_(clock),
        loop_(loop),
        log_(log),
        options_(std::move(options)),
        kept_bytes_(kept_bytes) {}

  [[nodiscard]] Result<OpenedDevice> Open() {
    KVT_RETURN_IF_ERROR(Reopen());
    KVT_RETURN_IF_ERROR(WaitForMemory());
    if (wanted_bytes_ > free_bytes_) return NotFree();
    opened_.pool_bytes = wanted_bytes_ - wanted_bytes_ % kVramGranuleBytes;
    if (opened_.pool_bytes == 0) {
      return MakeError(
          ErrorCode::kInvalidArgument, "pool_below_granule",
          fmt::format("pool.bytes is {} on cuda:{}, a GPU's memory comes in pieces of {}",
                      FormatByteSize(wanted_bytes_), options_.ordinal,
                      FormatByteSize(kVramGranuleBytes)));
    }
    opened_.kind = wire::DeviceKind::kCuda;
    return std::move(opened_);
  }

 private:
  // How much is free is told by a device when it is opened.
  [[nodiscard]] Status Reopen() {
    opened_.device = nullptr;
    KVT_ASSIGN_OR_RETURN(opened_.device, OpenCudaDevice(options_, loop_));
    const DeviceInfo info = opened_.device->info();
    free_bytes_ = info.free_bytes + (kept_bytes_ ? kept_bytes_(info) : 0);
    wanted_bytes_ = WantedBytes(config_, position_, free_bytes_);
    if (wanted_bytes_ <= info.total_bytes) return {};
    return MakeError(
        ErrorCode::kInvalidArgument, "pool_exceeds_vram",
        fmt::format("pool.bytes is {}, the GPU cuda:{} ({}) has {}, of which {} are free",
                    FormatByteSize(wanted_bytes_), options_.ordinal, info.name,
                    FormatByteSize(info.total_bytes), FormatByteSize(free_bytes_)));
  }

  [[nodiscard]] Status WaitForMemory() {
    const int64_t give_up_ms = clock_.MonotonicMs() + kVramWaitMs;
    bool said = false;
    while (wanted_bytes_ > free_bytes_ && clock_.MonotonicMs() < give_up_ms) {
      if (!std::exchange(said, true)) {
        log_->Warning("device.waiting", "{} wanted on cuda:{}, {} free; waiting for up to {} s; {}",
                      FormatByteSize(wanted_bytes_), options_.ordinal, FormatByteSize(free_bytes_),
                      kVramWaitMs / 1000, HoldersText(options_.ordinal));
      }
      std::this_thread::sleep_for(kVramPoll);
      KVT_RETURN_IF_ERROR(Reopen());
    }
    return {};
  }

  [[nodiscard]] tl::unexpected<Error> NotFree() const {
    return MakeError(ErrorCode::kIoError, "vram_held",
                     fmt::format("pool.bytes is {}, {} of the memory of cuda:{} are free; {}",
                                 FormatByteSize(wanted_bytes_), FormatByteSize(free_bytes_),
                                 options_.ordinal, HoldersText(options_.ordinal)));
  }

  const Config& config_;
  const size_t position_;
  const Clock& clock_;
  EventQueue* const loop_;
  Log* const log_;
  const CudaDeviceOptions options_;
  const std::function<uint64_t(const DeviceInfo&)>& kept_bytes_;
  OpenedDevice opened_;
  uint64_t free_bytes_ = 0;  // with what pools of an earlier daemon have
  uint64_t wanted_bytes_ = 0;
};

// Pools in host memory are made when they are attached, long after the start: what can never be is
// refused now, and what may end in the kernel's killing of processes is said.
Status CheckHostMemory(uint64_t pool_bytes, uint64_t host_tier_bytes, const MachineMemory& memory,
                       Log* log) {
  if (memory.total_bytes == 0) return {};
  const std::string limit = memory.limited_by.empty()
                                ? "the machine has"
                                : fmt::format("the control group {} allows", memory.limited_by);
  if (pool_bytes > memory.total_bytes) {
    return MakeError(
        ErrorCode::kInvalidArgument, "pool_exceeds_memory",
        fmt::format("pools in host memory may take {}, {} {}", FormatByteSize(pool_bytes), limit,
                    FormatByteSize(memory.total_bytes)));
  }
  if (pool_bytes + host_tier_bytes > memory.total_bytes) {
    log->Warning("memory.short",
                 "pools in host memory ({}) and the host tier ({}) together exceed what there is: "
                 "{} {}",
                 FormatByteSize(pool_bytes), FormatByteSize(host_tier_bytes), limit,
                 FormatByteSize(memory.total_bytes));
  }
  return {};
}

}  // namespace

Result<std::vector<OpenedDevice>> OpenDevices(
    const Config& config, const Clock& clock, EventQueue* loop, Log* log,
    const MachineMemory& memory, const std::function<void(std::string)>& on_fatal,
    const std::function<uint64_t(const DeviceInfo&)>& kept_bytes) {
  std::vector<OpenedDevice> all;
  // Host memory is pinned once, for all GPUs.
  std::shared_ptr<HostPinner> pinner;
  uint64_t host_pool_bytes = 0;
  for (size_t position = 0; position < config.pool.devices.size(); ++position) {
    const DeviceChoice asked = config.pool.devices[position];
    KVT_ASSIGN_OR_RETURN(Choice choice, Choose(asked));
    OpenedDevice opened;
    if (choice.cuda) {
      if (!pinner) pinner = MakeCudaHostPinner(choice.ordinal);
      CudaOpening opening(config, position, clock, loop, log,
                          {.ordinal = choice.ordinal,
                           .background_bytes_per_s = config.pool.offload_bytes_per_s,
                           .on_fatal = on_fatal,
                           .pinner = pinner},
                          kept_bytes);
      KVT_ASSIGN_OR_RETURN(opened, opening.Open());
    } else {
      opened.device = std::make_unique<HostDevice>(loop);
      opened.pool_bytes = WantedBytes(config, position, opened.device->info().free_bytes);
      host_pool_bytes += opened.pool_bytes;
    }
    opened.asked = asked;
    opened.reason = std::move(choice.reason);
    const DeviceInfo info = opened.device->info();
    log->Info("device.chosen", "{}: {}, for pools of {} ({})",
              choice.cuda ? fmt::format("cuda:{}", info.ordinal) : info.kind, info.name,
              FormatByteSize(opened.pool_bytes), opened.reason);
    all.push_back(std::move(opened));
  }
  KVT_RETURN_IF_ERROR(CheckHostMemory(host_pool_bytes, config.host.bytes, memory, log));
  return all;
}

std::string DeviceUuidText(const DeviceInfo& info) {
  if (info.kind != "cuda") return "";
  std::string text = "GPU";
  for (size_t i = 0; i < info.uuid.size(); ++i) {
    const bool group_begins = i == 0 || i == 4 || i == 6 || i == 8 || i == 10;
    text += fmt::format("{}{:02x}", group_begins ? "-" : "", info.uuid[i]);
  }
  return text;
}

uint64_t UnreachableCounterPages(const std::vector<OpenedDevice>& devices) {
  uint64_t pages = 0;
  for (const OpenedDevice& opened : devices) pages += opened.device->unreachable_counter_pages();
  return pages;
}

int CommonNumaNode(const std::vector<OpenedDevice>& devices) {
  const int first = devices.front().device->info().numa_node;
  const bool alike = std::ranges::all_of(devices, [first](const OpenedDevice& opened) {
    return opened.device->info().numa_node == first;
  });
  return alike ? first : -1;
}

}  // namespace kvtier
