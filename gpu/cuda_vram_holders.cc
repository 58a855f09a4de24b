// SPDX-License-Identifier: Apache-2.0
// Asks the driver's management library, which is loaded at run time; its few structures and
// functions are declared here, since toolkits often come without its header.
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "base/c_pointer.h"
#include "gpu/cuda_device.h"

namespace kvtier {
namespace {

constexpr int kNvmlSuccess = 0;
constexpr unsigned kMaxHolders = 256;
constexpr uint64_t kNotAvailable = UINT64_MAX;

struct NvmlDevice;

// nvmlProcessInfo_t as of the functions with suffix _v3.
struct NvmlProcess {
  unsigned pid;
  unsigned long long used_gpu_memory;
  unsigned gpu_instance_id;
  unsigned compute_instance_id;
};

using InitFunction = int (*)();
using FindDeviceFunction = int (*)(const char* bus_id, NvmlDevice** device);
using ProcessesFunction = int (*)(NvmlDevice* device, unsigned* count, NvmlProcess* processes);

template <typename Function>
Function Find(void* library, const char* name) {
  return reinterpret_cast<Function>(::dlsym(library, name));
}

}  // namespace

std::vector<VramHolder> VramHoldersOf(int ordinal) {
  char bus_id[32] = {};
  if (cudaDeviceGetPCIBusId(bus_id, sizeof(bus_id), ordinal) != cudaSuccess) return {};
  const CPointer<void, ::dlclose> library(::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL));
  if (!library) return {};
  const auto init = Find<InitFunction>(library.get(), "nvmlInit_v2");
  const auto shutdown = Find<InitFunction>(library.get(), "nvmlShutdown");
  const auto find = Find<FindDeviceFunction>(library.get(), "nvmlDeviceGetHandleByPciBusId_v2");
  const auto processes =
      Find<ProcessesFunction>(library.get(), "nvmlDeviceGetComputeRunningProcesses_v3");
  if (init == nullptr || shutdown == nullptr || find == nullptr || processes == nullptr) return {};
  if (init() != kNvmlSuccess) return {};
  NvmlDevice* device = nullptr;
  std::array<NvmlProcess, kMaxHolders> found{};
  unsigned count = kMaxHolders;
  const bool told = find(bus_id, &device) == kNvmlSuccess &&
                    processes(device, &count, found.data()) == kNvmlSuccess;
  std::vector<VramHolder> holders;
  for (unsigned i = 0; told && i < count; ++i) {
    if (found[i].pid == static_cast<unsigned>(::getpid())) continue;
    const uint64_t bytes = found[i].used_gpu_memory;
    holders.push_back({.pid = found[i].pid, .bytes = bytes == kNotAvailable ? 0 : bytes});
  }
  (void)shutdown();
  return holders;
}

bool HoldsVramOf(int ordinal, int32_t pid) {
  return std::ranges::any_of(VramHoldersOf(ordinal), [pid](const VramHolder& holder) {
    return holder.pid == static_cast<uint32_t>(pid);
  });
}

}  // namespace kvtier
