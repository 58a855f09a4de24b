// SPDX-License-Identifier: Apache-2.0
// The GPUs of this machine, for code that chooses among them; tests put others in their place.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "base/executor.h"
#include "base/result.h"
#include "gpu/cuda_device.h"
#include "gpu/device.h"
#include "gpu/host_pinner.h"

namespace kvtier {

// Any thread. Errors: of the functions of cuda_device.h that do the work.
class Gpus {
 public:
  virtual ~Gpus() = default;
  [[nodiscard]] virtual Result<CudaPresence> Find() const = 0;
  // Makes no context.
  [[nodiscard]] virtual Result<DeviceInfo> LookAt(int ordinal) const = 0;
  [[nodiscard]] virtual std::vector<VramHolder> HoldersOf(int ordinal) const = 0;
  [[nodiscard]] virtual std::shared_ptr<HostPinner> MakePinner() const = 0;
  [[nodiscard]] virtual Result<std::unique_ptr<Device>> Open(CudaDeviceOptions options,
                                                             EventQueue* loop) const = 0;
};

class CudaGpus final : public Gpus {
 public:
  [[nodiscard]] Result<CudaPresence> Find() const override { return FindCudaDevices(); }
  [[nodiscard]] Result<DeviceInfo> LookAt(int ordinal) const override {
    return LookAtCudaDevice(ordinal);
  }
  [[nodiscard]] std::vector<VramHolder> HoldersOf(int ordinal) const override {
    return VramHoldersOf(ordinal).value_or(std::vector<VramHolder>());
  }
  [[nodiscard]] std::shared_ptr<HostPinner> MakePinner() const override {
    return MakeCudaHostPinner();
  }
  [[nodiscard]] Result<std::unique_ptr<Device>> Open(CudaDeviceOptions options,
                                                     EventQueue* loop) const override {
    return OpenCudaDevice(std::move(options), loop);
  }
};

}  // namespace kvtier
