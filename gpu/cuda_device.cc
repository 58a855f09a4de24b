// SPDX-License-Identifier: Apache-2.0
#include "gpu/cuda_device.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <fstream>
#include <utility>

#include "gpu/cuda_copy_engine.h"
#include "gpu/cuda_driver.h"
#include "gpu/cuda_lent_memory.h"
#include "gpu/cuda_pool.h"
#include "gpu/device.h"

namespace kvtier {
namespace {

// -1 where the kernel does not say.
int NumaNodeOf(int ordinal) {
  char bus_id[32] = {};
  if (cudaDeviceGetPCIBusId(bus_id, sizeof(bus_id), ordinal) != cudaSuccess) return -1;
  std::string name(bus_id);
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
  int node = -1;
  std::ifstream("/sys/bus/pci/devices/" + name + "/numa_node") >> node;
  return node;
}

// The driver is asked for each pair, because GPUs behind different bridges, or of virtual machines,
// may not reach each other.
uint32_t NeighboursOf(int ordinal) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess) devices = 0;
  uint32_t neighbours = 0;
  for (int other = 0; other < std::min(devices, kMostNeighbours); ++other) {
    int reached = 0;
    if (other != ordinal && cudaDeviceCanAccessPeer(&reached, ordinal, other) == cudaSuccess &&
        reached != 0) {
      neighbours |= uint32_t{1} << other;
    }
  }
  return neighbours;
}

// Asks for nothing that needs a context, as cudaMemGetInfo would.
Result<DeviceInfo> InfoOf(int ordinal) {
  cudaDeviceProp properties{};
  KVT_RETURN_IF_CUDA_ERROR(cudaGetDeviceProperties(&properties, ordinal), "asking for a device");
  DeviceInfo info{.kind = "cuda",
                  .name = properties.name,
                  .ordinal = ordinal,
                  .total_bytes = properties.totalGlobalMem,
                  .free_bytes = FreeVramOf(ordinal).value_or(properties.totalGlobalMem),
                  .numa_node = NumaNodeOf(ordinal),
                  .neighbours = NeighboursOf(ordinal)};
  static_assert(sizeof(properties.uuid) == sizeof(info.uuid));
  std::memcpy(info.uuid.data(), &properties.uuid, sizeof(info.uuid));
  int driver_version = 0;
  KVT_RETURN_IF_CUDA_ERROR(cudaDriverGetVersion(&driver_version), "the driver's version");
  info.driver_version = static_cast<uint32_t>(driver_version);
  return info;
}

class CudaDevice final : public Device {
 public:
  CudaDevice(DeviceInfo info, const CudaDriver& driver, std::shared_ptr<CudaHostPinner> pinner,
             std::function<void(std::string)> log, EventQueue* loop)
      : info_(std::move(info)),
        driver_(driver),
        pinner_(std::move(pinner)),
        log_(std::move(log)),
        loop_(loop) {}

  [[nodiscard]] Status StartCopies(CudaDeviceOptions options) {
    CudaCopyEngineOptions engine{.ordinal = options.ordinal,
                                 .on_fatal = std::move(options.on_fatal)};
    engine.queue.background_bytes_per_s = options.background_bytes_per_s;
    if (options.chunk_bytes > 0) engine.queue.chunk_bytes = options.chunk_bytes;
    if (options.chunks_in_flight > 0) engine.chunks_in_flight = options.chunks_in_flight;
    KVT_ASSIGN_OR_RETURN(
        engine_, CudaCopyEngine::Start(std::move(engine), &driver_, &pinner_->ranges(), loop_));
    return {};
  }

  [[nodiscard]] DeviceInfo info() const override { return info_; }

  [[nodiscard]] Result<std::unique_ptr<DevicePool>> CreatePool(uint64_t bytes) override {
    const PinGate::Urgent urgent(&pinner_->gate());
    KVT_RETURN_IF_CUDA_ERROR(cudaSetDevice(info_.ordinal), "choosing a device");
    return CudaPool::Create(&driver_, info_.ordinal, bytes, loop_);
  }

  [[nodiscard]] Result<std::unique_ptr<DevicePool>> AdoptPool(UniqueFd fd,
                                                              uint64_t bytes) override {
    const PinGate::Urgent urgent(&pinner_->gate());
    KVT_RETURN_IF_CUDA_ERROR(cudaSetDevice(info_.ordinal), "choosing a device");
    return CudaPool::Adopt(&driver_, info_.ordinal, std::move(fd), bytes);
  }

  [[nodiscard]] Result<std::unique_ptr<DevicePool>> Borrow(LentMemory* memory) override {
    if (memory->kind == LentMemory::Kind::kShared) return Device::Borrow(memory);
    const PinGate::Urgent urgent(&pinner_->gate());
    KVT_RETURN_IF_CUDA_ERROR(cudaSetDevice(info_.ordinal), "choosing a device");
    return CudaLentMemory::Open(&driver_, info_.ordinal, log_, memory);
  }

  void Copy(CopyRequest request) override {
    Status allowed = CheckCopyBounds(request);
    if (allowed && request.direction == CopyDirection::kPoolToPool) {
      allowed = LetRead(request.source);
    }
    if (!allowed) {
      loop_->Post([done = std::move(request.done), allowed] { done(allowed); });
      return;
    }
    if (request.priority == CopyPriority::kDemand) HoldPins(&request);
    std::byte* const pool = request.pool->data();
    engine_->Submit(std::move(request), pool);
  }

  void AwaitBackground(bool awaited) override { engine_->AwaitBackground(awaited); }

  [[nodiscard]] uint64_t unreachable_counter_pages() const override {
    return engine_->unreachable_counter_pages();
  }

  [[nodiscard]] HostPinner* host_pinner() override { return pinner_.get(); }

 private:
  // A device of this kind has made it.
  [[nodiscard]] Status LetRead(DevicePool* neighbour) {
    const PinGate::Urgent urgent(&pinner_->gate());
    KVT_RETURN_IF_CUDA_ERROR(cudaSetDevice(info_.ordinal), "choosing a device");
    return static_cast<CudaMemory*>(neighbour)->LetRead(info_.ordinal);
  }
  // A copy that a client waits for takes several calls of the driver. After a start, while host
  // memory is pinned, each of them would wait for a piece, and a load of 32 MiB took two seconds.
  void HoldPins(CopyRequest* request) {
    auto urgent = std::make_shared<PinGate::Urgent>(&pinner_->gate());
    // The gate lives as long as the pinner, and an event may outlive the device.
    request->done = [pinner = pinner_, urgent = std::move(urgent),
                     done = std::move(request->done)](const Status& outcome) mutable {
      urgent.reset();
      done(outcome);
    };
  }

  const DeviceInfo info_;
  const CudaDriver driver_;
  const std::shared_ptr<CudaHostPinner> pinner_;
  const std::function<void(std::string)> log_;
  EventQueue* const loop_;
  std::unique_ptr<CudaCopyEngine> engine_;
};

}  // namespace

Result<CudaPresence> FindCudaDevices() {
  int devices = 0;
  const cudaError_t code = cudaGetDeviceCount(&devices);
  if (code == cudaErrorNoDevice || code == cudaErrorInsufficientDriver) {
    (void)cudaGetLastError();
    // The runtime says "insufficient" also where there is no driver at all; its version is 0 then.
    int driver_version = 0;
    (void)cudaDriverGetVersion(&driver_version);
    if (driver_version == 0) return CudaPresence{.why_none = "there is no NVIDIA driver"};
    return CudaPresence{.why_none = cudaGetErrorString(code)};
  }
  KVT_RETURN_IF_CUDA_ERROR(code, "looking for GPUs");
  return CudaPresence{.devices = devices, .why_none = devices == 0 ? "no GPU" : ""};
}

std::shared_ptr<HostPinner> MakeCudaHostPinner() { return std::make_shared<CudaHostPinner>(); }

Result<DeviceInfo> LookAtCudaDevice(int ordinal) {
  KVT_ASSIGN_OR_RETURN(const CudaPresence presence, FindCudaDevices());
  if (presence.devices == 0) {
    return MakeError(ErrorCode::kUnsupported, "no_cuda", presence.why_none);
  }
  if (ordinal < 0 || ordinal >= presence.devices) {
    return MakeError(ErrorCode::kUnsupported, "no_such_device",
                     fmt::format("there is no GPU {}, but {} in all", ordinal, presence.devices));
  }
  KVT_RETURN_IF_ERROR(CudaDriver::Load());
  return InfoOf(ordinal);
}

Result<std::unique_ptr<Device>> OpenCudaDevice(CudaDeviceOptions options, EventQueue* loop) {
  const int ordinal = options.ordinal;
  KVT_ASSIGN_OR_RETURN(DeviceInfo info, LookAtCudaDevice(ordinal));
  KVT_ASSIGN_OR_RETURN(const CudaDriver driver, CudaDriver::Load());
  KVT_RETURN_IF_CUDA_ERROR(cudaSetDevice(ordinal), fmt::format("opening GPU {}", ordinal));
  // It makes the context, which the next calls would do otherwise, in the middle of something.
  KVT_RETURN_IF_CUDA_ERROR(cudaFree(nullptr), fmt::format("opening GPU {}", ordinal));
  // Nothing else makes pinners that come here.
  auto pinner = std::static_pointer_cast<CudaHostPinner>(options.pinner ? options.pinner
                                                                        : MakeCudaHostPinner());
  pinner->UseContextOf(ordinal);
  auto device = std::make_unique<CudaDevice>(std::move(info), driver, std::move(pinner),
                                             std::move(options.log), loop);
  KVT_RETURN_IF_ERROR(device->StartCopies(std::move(options)));
  return device;
}

}  // namespace kvtier
