// SPDX-License-Identifier: Apache-2.0
// Which device the pools are on, and how much of it they may take.
//
// Called once, at the start, before the event loop runs: opening may block for as long as the
// driver and the processes that hold a GPU's memory make it wait.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/executor.h"
#include "base/machine.h"
#include "base/result.h"
#include "daemon/config/config.h"
#include "daemon/runtime/log.h"
#include "gpu/device.h"
#include "protocol/messages.h"

namespace kvtier {

// A device that was opened, and what the configuration said of it. Owned by the daemon until its
// end; sizes do not change after the start.
struct OpenedDevice {
  std::unique_ptr<Device> device;
  wire::DeviceKind kind = wire::DeviceKind::kHost;
  DeviceChoice asked = DeviceChoice::kAuto;
  // The cap of all its pools together.
  uint64_t pool_bytes = 0;
  // Why it is this device, for people.
  std::string reason;
};

// Opens what `pool.device` names, in its order, and says in the log what it is, and whether pools
// in host memory and the host tier together exceed `memory`. May wait for a minute for a GPU's
// memory that other processes hold. `on_fatal` is called on the loop when only a new process helps.
// All or nothing. `kept_bytes` tells how much of a device's memory pools of an earlier daemon have,
// which counts as free; it may be empty. Errors: kUnsupported "no_cuda", "no_such_device",
// "cuda_driver_too_old"; kInvalidArgument "pool_exceeds_vram" (more than the GPU has),
// "pool_exceeds_memory", "pool_below_granule"; kIoError "vram_held" (more than is free), or CUDA's.
[[nodiscard]] Result<std::vector<OpenedDevice>> OpenDevices(
    const Config& config, const Clock& clock, EventQueue* loop, Log* log,
    const MachineMemory& memory, const std::function<void(std::string)>& on_fatal,
    const std::function<uint64_t(const DeviceInfo&)>& kept_bytes = nullptr);

// "GPU-1b2c...", as nvidia-smi writes it; empty for host memory.
[[nodiscard]] std::string DeviceUuidText(const DeviceInfo& info);

// Of all devices; see Device.
[[nodiscard]] uint64_t UnreachableCounterPages(const std::vector<OpenedDevice>& devices);

// The NUMA node that is nearest to all of them; -1 if there is none.
[[nodiscard]] int CommonNumaNode(const std::vector<OpenedDevice>& devices);

}  // namespace kvtier
