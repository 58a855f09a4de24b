// SPDX-License-Identifier: Apache-2.0
// GPUs as devices. No CUDA header is needed to use this; in a build without CUDA there are simply
// none.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/executor.h"
#include "base/result.h"
#include "gpu/device.h"
#include "gpu/host_pinner.h"

namespace kvtier {

struct CudaPresence {
  int devices = 0;
  // If there are none: why, for people.
  std::string why_none;
};

// Looks without taking any memory. Errors: kIoError when there is a driver, but it does not work.
[[nodiscard]] Result<CudaPresence> FindCudaDevices();
// The facts of a device, without a context on it. Where the driver's management library is missing,
// all of its memory counts as free. Errors: kUnsupported "no_cuda" (no device, no driver, or built
// without CUDA), "no_such_device", "cuda_driver_too_old"; kIoError from CUDA.
[[nodiscard]] Result<DeviceInfo> LookAtCudaDevice(int ordinal);

struct CudaDeviceOptions {
  int ordinal = 0;
  // How fast copies of priority kBackground may go; 0: as fast as they can.
  uint64_t background_bytes_per_s = 0;
  // Called once on the event loop with an error that only a new process cures. May be empty.
  std::function<void(std::string)> on_fatal;
  // Told of lent memory that could not be let go of. Any thread. May be empty.
  std::function<void(std::string)> log;
  // From MakeCudaHostPinner, shared by all devices of the process that copy to and from the same
  // host memory; null: one of its own.
  std::shared_ptr<HostPinner> pinner;
  // See CopyQueueOptions and CudaCopyEngineOptions; 0: theirs.
  uint64_t chunk_bytes = 0;
  uint32_t chunks_in_flight = 0;
};

// Pins for all devices through the context of the first that is opened with it; before that it
// fails. Null in a build without CUDA.
[[nodiscard]] std::shared_ptr<HostPinner> MakeCudaHostPinner();

// Takes the device's primary context, some 100 ms. `loop` outlives the device, and the device its
// pools and the memory that it pinned. Its destructor waits for the copies in flight and fails the
// rest (kCancelled "device_closed"); every `done` is posted before it returns. Errors: as
// LookAtCudaDevice; kResourceExhausted from CUDA. Any thread.
[[nodiscard]] Result<std::unique_ptr<Device>> OpenCudaDevice(CudaDeviceOptions options,
                                                             EventQueue* loop);

// A process that holds memory of a device.
struct VramHolder {
  uint32_t pid = 0;
  uint64_t bytes = 0;  // 0: not known
};

// Every such process but this one; nothing if the driver does not tell, as it tells administrators
// alone of a slice of a GPU (MIG).
[[nodiscard]] std::optional<std::vector<VramHolder>> VramHoldersOf(int ordinal);
// The bytes that no process holds; nothing if the driver does not tell.
[[nodiscard]] std::optional<uint64_t> FreeVramOf(int ordinal);
// Whether the process is one of them, if the driver tells. It can be when it has ended: its kernels
// run on while a child has inherited its files.
[[nodiscard]] std::optional<bool> HoldsVramOf(int ordinal, int32_t pid);

}  // namespace kvtier
