// SPDX-License-Identifier: Apache-2.0
// The build without CUDA.
#include "gpu/cuda_device.h"

namespace kvtier {
namespace {

constexpr const char* kWhy = "this build has no CUDA";

}  // namespace

Result<CudaPresence> FindCudaDevices() { return CudaPresence{.why_none = kWhy}; }

Result<std::unique_ptr<Device>> OpenCudaDevice(CudaDeviceOptions /*options*/,
                                               EventQueue* /*loop*/) {
  return MakeError(ErrorCode::kUnsupported, "no_cuda", kWhy);
}

Result<DeviceInfo> LookAtCudaDevice(int /*ordinal*/) {
  return MakeError(ErrorCode::kUnsupported, "no_cuda", kWhy);
}

std::shared_ptr<HostPinner> MakeCudaHostPinner() { return nullptr; }

std::optional<std::vector<VramHolder>> VramHoldersOf(int /*ordinal*/) { return std::nullopt; }
std::optional<uint64_t> FreeVramOf(int /*ordinal*/) { return std::nullopt; }
std::optional<bool> HoldsVramOf(int /*ordinal*/, int32_t /*pid*/) { return std::nullopt; }

}  // namespace kvtier
