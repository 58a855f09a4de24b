// SPDX-License-Identifier: Apache-2.0
// Asks the driver's management library, which is loaded at run time; its few structures and
// functions are declared here, since toolkits often come without its header.
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "base/c_pointer.h"
#include "gpu/cuda_device.h"

namespace kvtier {
namespace {

constexpr int kNvmlSuccess = 0;
constexpr unsigned kMaxHolders = 4096;
constexpr uint64_t kNotAvailable = UINT64_MAX;

struct NvmlDevice;

// nvmlProcessInfo_t as of the functions with suffix _v3.
struct NvmlProcess {
  unsigned pid;
  unsigned long long used_gpu_memory;
  unsigned gpu_instance_id;
  unsigned compute_instance_id;
};

// nvmlMemory_t.
struct NvmlMemory {
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
};

using InitFunction = int (*)();
using FindDeviceFunction = int (*)(const char* bus_id, NvmlDevice** device);
using ProcessesFunction = int (*)(NvmlDevice* device, unsigned* count, NvmlProcess* processes);

using MemoryFunction = int (*)(NvmlDevice* device, NvmlMemory* memory);

// The library while it is in use for one device.
class Nvml {
 public:
  explicit Nvml(int ordinal) {
    char bus_id[32] = {};
    if (!library_ || cudaDeviceGetPCIBusId(bus_id, sizeof(bus_id), ordinal) != cudaSuccess) return;
    const auto init = Find<InitFunction>("nvmlInit_v2");
    const auto find = Find<FindDeviceFunction>("nvmlDeviceGetHandleByPciBusId_v2");
    shutdown_ = Find<InitFunction>("nvmlShutdown");
    if (init == nullptr || find == nullptr || shutdown_ == nullptr) return;
    ready_ = init() == kNvmlSuccess;
    if (ready_ && find(bus_id, &device_) != kNvmlSuccess) device_ = nullptr;
  }
  ~Nvml() {
    if (ready_) (void)shutdown_();
  }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  // Calls the function of that name for the device; false if that is not possible.
  template <typename Function, typename... Arguments>
  [[nodiscard]] bool Ask(const char* name, Arguments... arguments) const {
    if (device_ == nullptr) return false;
    const auto function = Find<Function>(name);
    return function != nullptr && function(device_, arguments...) == kNvmlSuccess;
  }

 private:
  template <typename Function>
  [[nodiscard]] Function Find(const char* name) const {
    return reinterpret_cast<Function>(::dlsym(library_.get(), name));
  }

  const CPointer<void, ::dlclose> library_{::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)};
  InitFunction shutdown_ = nullptr;
  bool ready_ = false;
  NvmlDevice* device_ = nullptr;  // null: nothing can be asked
};

}  // namespace

std::optional<std::vector<VramHolder>> VramHoldersOf(int ordinal) {
  const Nvml nvml(ordinal);
  std::vector<NvmlProcess> found(kMaxHolders);
  unsigned count = kMaxHolders;
  if (!nvml.Ask<ProcessesFunction>("nvmlDeviceGetComputeRunningProcesses_v3", &count,
                                   found.data())) {
    return std::nullopt;
  }
  std::vector<VramHolder> holders;
  for (unsigned i = 0; i < count; ++i) {
    if (found[i].pid == static_cast<unsigned>(::getpid())) continue;
    const uint64_t bytes = found[i].used_gpu_memory;
    holders.push_back({.pid = found[i].pid, .bytes = bytes == kNotAvailable ? 0 : bytes});
  }
  return holders;
}

std::optional<uint64_t> FreeVramOf(int ordinal) {
  const Nvml nvml(ordinal);
  NvmlMemory memory{};
  if (!nvml.Ask<MemoryFunction>("nvmlDeviceGetMemoryInfo", &memory)) return std::nullopt;
  return memory.free;
}

std::optional<bool> HoldsVramOf(int ordinal, int32_t pid) {
  const std::optional<std::vector<VramHolder>> holders = VramHoldersOf(ordinal);
  if (!holders) return std::nullopt;
  return std::ranges::any_of(*holders, [pid](const VramHolder& holder) {
    return holder.pid == static_cast<uint32_t>(pid);
  });
}

}  // namespace kvtier
