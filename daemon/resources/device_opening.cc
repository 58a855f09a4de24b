// SPDX-License-Identifier: Apache-2.0
#include "daemon/resources/device_opening.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

#include "base/units.h"
#include "daemon/config/config_schema.h"
#include "gpu/host_device.h"
#include "gpu/on_demand_device.h"

namespace kvtier {
namespace {

using SteadyClock = std::chrono::steady_clock;
// Hears how an opening ended.
using Told = std::function<void(const Status&)>;

// A start may sleep between tries, since no client is connected yet.
constexpr auto kOpeningPoll = std::chrono::milliseconds(20);

// A GPU hands out memory in pieces of this size; a remainder could never be used.
constexpr uint64_t kVramGranuleBytes = 2 * kMiB;

// The bytes for pools on the device at `position` in pool.device: its own size if sizes are given
// one by one, else a share of the free memory, else the common size.
uint64_t WantedBytes(const Config& config, size_t position, uint64_t free_bytes) {
  if (!config.pool.device_bytes.empty()) return config.pool.device_bytes[position];
  if (config.pool.free_fraction <= 0) return config.cache.pool_bytes;
  return static_cast<uint64_t>(config.pool.free_fraction * static_cast<double>(free_bytes));
}

// For messages: an operator wants to know which process to end.
std::string HoldersText(const std::vector<VramHolder>& holders) {
  if (holders.empty()) return "the driver does not say who holds the rest";
  std::string text = "held by";
  for (const VramHolder& holder : holders) {
    text += fmt::format("{} pid {}", &holder == &holders.front() ? "" : ",", holder.pid);
    if (holder.bytes > 0) text += fmt::format(" ({})", FormatByteSize(holder.bytes));
  }
  return text;
}

struct Choice {
  DeviceChoice asked = DeviceChoice::kAll;
  bool cuda = false;
  int ordinal = 0;
  std::string reason;
};

// "all" never fails for want of a GPU. A GPU that was named and is not there is an error, found
// when it is looked at: silently slow is worse than not started.
Result<std::vector<Choice>> Choose(const PoolConfig& pool, const Gpus& gpus) {
  std::vector<Choice> choices;
  for (const DeviceChoice asked : pool.devices) {
    if (asked == DeviceChoice::kHost) {
      choices.push_back({.asked = asked, .reason = "configured"});
      continue;
    }
    if (asked != DeviceChoice::kAll) {
      choices.push_back({asked, /*cuda=*/true, OrdinalOf(asked), "configured"});
      continue;
    }
    KVT_ASSIGN_OR_RETURN(const CudaPresence presence, gpus.Find());
    if (presence.devices == 0) {
      choices.push_back(
          {.asked = asked, .reason = "all: no GPU can be used: " + presence.why_none});
    }
    for (int ordinal = 0; ordinal < std::min(presence.devices, kMaxCudaDevices); ++ordinal) {
      choices.push_back(
          {asked, /*cuda=*/true, ordinal, fmt::format("all: one of {}", presence.devices)});
    }
  }
  return choices;
}

// How much of a GPU's memory pools may take. Nothing is taken yet, and so nothing need be free: the
// memory may be an engine's that lends it to the daemon.
Result<uint64_t> PoolBytesOn(const DeviceInfo& info, const Config& config, size_t position,
                             const Choice& choice, const DeviceEnvironment& environment) {
  const uint64_t kept = environment.kept_bytes ? environment.kept_bytes(info) : 0;
  // Free may be said of the whole GPU where the device is a slice of it (MIG).
  const uint64_t free_bytes = std::min(info.free_bytes + kept, info.total_bytes);
  const uint64_t wanted = WantedBytes(config, position, free_bytes);
  if (wanted > info.total_bytes) {
    return MakeError(
        ErrorCode::kInvalidArgument, "pool_exceeds_vram",
        fmt::format("pool.bytes is {}, the GPU cuda:{} ({}) has {}", FormatByteSize(wanted),
                    info.ordinal, info.name, FormatByteSize(info.total_bytes)));
  }
  if (wanted > free_bytes && choice.asked != DeviceChoice::kAll) {
    environment.log->Warning("device.degraded",
                             "pools of cuda:{} may take {}, and {} are free now; {}", info.ordinal,
                             FormatByteSize(wanted), FormatByteSize(free_bytes),
                             HoldersText(environment.gpus->HoldersOf(info.ordinal)));
  }
  const uint64_t pool_bytes = wanted - wanted % kVramGranuleBytes;
  if (pool_bytes > 0 || config.pool.free_fraction > 0) return pool_bytes;
  return MakeError(
      ErrorCode::kInvalidArgument, "pool_below_granule",
      fmt::format("pool.bytes is {} on cuda:{}, a GPU's memory comes in pieces of {}",
                  FormatByteSize(wanted), info.ordinal, FormatByteSize(kVramGranuleBytes)));
}

// Opens a GPU at the start. One that cannot be opened is as any other: its next client tries again.
void OpenNow(OnDemandDevice* device, SteadyClock::time_point give_up, const Told& tell) {
  Status opened = device->OpenNow();
  while (!opened && opened.error().code == ErrorCode::kResourceExhausted &&
         SteadyClock::now() < give_up) {
    std::this_thread::sleep_for(kOpeningPoll);
    opened = device->OpenNow();
  }
  if (!opened) tell(opened);
}

Result<OpenedDevice> OpenGpu(const Config& config, size_t position, const Choice& choice,
                             const DeviceEnvironment& environment, SteadyClock::time_point give_up,
                             DeferredPinner* pinner) {
  KVT_ASSIGN_OR_RETURN(const DeviceInfo info, environment.gpus->LookAt(choice.ordinal));
  OpenedDevice opened{.kind = wire::DeviceKind::kCuda};
  KVT_ASSIGN_OR_RETURN(opened.pool_bytes, PoolBytesOn(info, config, position, choice, environment));
  const CudaDeviceOptions options{.ordinal = choice.ordinal,
                                  .background_bytes_per_s = config.pool.offload_bytes_per_s,
                                  .on_fatal = environment.on_fatal,
                                  .log =
                                      [log = environment.log](const std::string& what) {
                                        log->Warning("device.degraded",
                                                     "memory that an engine lent stays held until "
                                                     "the daemon ends: {}",
                                                     what);
                                      },
                                  .pinner = pinner->pinner()};
  const Told tell = [log = environment.log, ordinal = choice.ordinal](const Status& outcome) {
    if (outcome) return log->Info("device.opened", "cuda:{}", ordinal);
    log->Warning("device.not_opened", "cuda:{}: {}", ordinal, outcome.error().ToString());
  };
  auto device = std::make_unique<OnDemandDevice>(
      info, OnDemandDevice::Environment{
                .executor = environment.executor,
                .pinner = pinner,
                .open = [gpus = environment.gpus, options,
                         loop = environment.loop] { return gpus->Open(options, loop); },
                .on_opened = tell});
  // Pools of an earlier daemon can only be taken over by an open device.
  if (environment.kept_bytes && environment.kept_bytes(info) > 0) {
    OpenNow(device.get(), give_up, tell);
  }
  opened.device = std::move(device);
  return opened;
}

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

Result<OpenedDevices> OpenDevices(const Config& config, const DeviceEnvironment& environment) {
  OpenedDevices opened;
  KVT_ASSIGN_OR_RETURN(const std::vector<Choice> choices, Choose(config.pool, *environment.gpus));
  if (std::ranges::any_of(choices, &Choice::cuda)) {
    opened.pinner = std::make_unique<DeferredPinner>(
        environment.gpus->MakePinner(), environment.executor,
        [log = environment.log](const std::string& why) {
          log->Warning("host.degraded", "a part of host memory is copied slowly: {}", why);
        });
  }
  const SteadyClock::time_point give_up = SteadyClock::now() + environment.patience;
  uint64_t host_pool_bytes = 0;
  for (size_t position = 0; position < choices.size(); ++position) {
    const Choice& choice = choices[position];
    OpenedDevice device;
    if (choice.cuda) {
      KVT_ASSIGN_OR_RETURN(
          device, OpenGpu(config, position, choice, environment, give_up, opened.pinner.get()));
    } else {
      device.device = std::make_unique<HostDevice>(environment.loop);
      device.pool_bytes = WantedBytes(config, position, device.device->info().free_bytes);
      host_pool_bytes += device.pool_bytes;
    }
    device.asked = choice.asked;
    device.reason = choice.reason;
    const DeviceInfo info = device.device->info();
    environment.log->Info("device.chosen", "{}: {}, for pools of up to {} ({})",
                          choice.cuda ? fmt::format("cuda:{}", info.ordinal) : info.kind, info.name,
                          FormatByteSize(device.pool_bytes), device.reason);
    opened.all.push_back(std::move(device));
  }
  KVT_RETURN_IF_ERROR(
      CheckHostMemory(host_pool_bytes, config.host.bytes, environment.memory, environment.log));
  return opened;
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
