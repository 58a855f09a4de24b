// SPDX-License-Identifier: Apache-2.0
// Which devices clients may use, and how much of each one's memory pools may take.
//
// Called once, at the start, before the event loop runs: looking may block for as long as the
// driver makes it wait. GPUs are opened later, when the first client wants them, but for those that
// have pools of an earlier daemon; one of these that cannot be opened then begins without them.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/executor.h"
#include "base/machine.h"
#include "base/result.h"
#include "daemon/config/config.h"
#include "daemon/runtime/log.h"
#include "gpu/deferred_pinner.h"
#include "gpu/device.h"
#include "gpu/gpus.h"
#include "protocol/messages.h"

namespace kvtier {

// A device, and its part of the configuration. Owned by the daemon until its end; sizes do not
// change after the start.
struct OpenedDevice {
  std::unique_ptr<Device> device;
  wire::DeviceKind kind = wire::DeviceKind::kHost;
  DeviceChoice asked = DeviceChoice::kAll;
  // The cap of all its pools together.
  uint64_t pool_bytes = 0;
  // Why it is this device, for people.
  std::string reason;
};

struct OpenedDevices {
  // For the host memory that all GPUs copy to and from; null without any. Outlives the devices.
  std::unique_ptr<DeferredPinner> pinner;
  std::vector<OpenedDevice> all;
};

// All are borrowed, and outlive the devices.
struct DeviceEnvironment {
  const Gpus* gpus = nullptr;
  EventQueue* loop = nullptr;
  Executor* executor = nullptr;  // opens GPUs and pins memory
  Log* log = nullptr;
  MachineMemory memory;
  // Called on the loop when only a new process helps. May be empty.
  std::function<void(std::string)> on_fatal = {};
  // How much of a device's memory pools of an earlier daemon have, which counts as free. May be
  // empty.
  std::function<uint64_t(const DeviceInfo&)> kept_bytes = {};
  // How long the GPUs that have such pools are tried for at most, all of them together, while their
  // memory is another's: mostly the last daemon's, whose context goes a moment after its end.
  std::chrono::milliseconds patience = std::chrono::seconds(2);
};

// Finds the devices that `pool.device` names, in its order, and names them in the log, where it
// also warns if pools in host memory and the host tier together exceed the machine's memory. All or
// nothing. Errors: kUnsupported "no_cuda", "no_such_device", "cuda_driver_too_old";
// kInvalidArgument "pool_exceeds_vram" (more than the GPU has), "pool_exceeds_memory",
// "pool_below_granule"; CUDA's.
[[nodiscard]] Result<OpenedDevices> OpenDevices(const Config& config,
                                                const DeviceEnvironment& environment);

// "GPU-1b2c...", as nvidia-smi writes it; empty for host memory.
[[nodiscard]] std::string DeviceUuidText(const DeviceInfo& info);

// The sum over all devices; see Device.
[[nodiscard]] uint64_t UnreachableCounterPages(const std::vector<OpenedDevice>& devices);

// The NUMA node that is nearest to all of them; -1 if there is none.
[[nodiscard]] int CommonNumaNode(const std::vector<OpenedDevice>& devices);

}  // namespace kvtier
