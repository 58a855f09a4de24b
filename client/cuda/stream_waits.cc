// SPDX-License-Identifier: Apache-2.0
#include "client/cuda/stream_waits.h"

#include <sys/mman.h>

#include "client/cuda/cuda_driver.h"

namespace kvtier::client {
namespace {

class DriverStreamWaits final : public StreamWaits {
 public:
  DriverStreamWaits(const DriverApi& driver, uint64_t bytes) : driver_(driver), bytes_(bytes) {}
  ~DriverStreamWaits() override;
  DriverStreamWaits(const DriverStreamWaits&) = delete;
  DriverStreamWaits& operator=(const DriverStreamWaits&) = delete;

  [[nodiscard]] Status Open(int fd, int ordinal);
  [[nodiscard]] Status Wait(void* stream, uint32_t offset, uint32_t value) override;

 private:
  [[nodiscard]] Status Register();

  const DriverApi driver_;
  const uint64_t bytes_;
  CUdevice device_ = 0;
  CUcontext context_ = nullptr;  // the device's primary one
  void* memory_ = nullptr;
  bool registered_ = false;
  CUdeviceptr address_ = 0;
};

Status DriverStreamWaits::Open(int fd, int ordinal) {
  void* const address = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (address == MAP_FAILED) return MakeError(ErrorCode::kIoError, "counters_map_failed");
  memory_ = address;
  KVT_RETURN_IF_ERROR(driver_.Check(driver_.device_get(&device_, ordinal), "the pool's GPU"));
  KVT_RETURN_IF_ERROR(driver_.Check(driver_.primary_ctx_retain(&context_, device_),
                                    "the primary context of the pool's GPU"));
  const CurrentContext current(driver_, context_);
  return Register();
}

Status DriverStreamWaits::Register() {
  KVT_RETURN_IF_ERROR(
      driver_.Check(driver_.mem_host_register(memory_, bytes_, CU_MEMHOSTREGISTER_DEVICEMAP),
                    "registering the counters"));
  registered_ = true;
  return driver_.Check(driver_.mem_host_get_device_pointer(&address_, memory_, 0),
                       "the counters' address");
}

Status DriverStreamWaits::Wait(void* stream, uint32_t offset, uint32_t value) {
  const CurrentContext current(driver_, context_);
  return driver_.Check(driver_.stream_wait_value(static_cast<CUstream>(stream), address_ + offset,
                                                 value, CU_STREAM_WAIT_VALUE_GEQ),
                       "waiting on a stream");
}

DriverStreamWaits::~DriverStreamWaits() {
  {
    const CurrentContext current(driver_, context_);
    if (registered_) {
      (void)driver_.ctx_synchronize();
      (void)driver_.mem_host_unregister(memory_);
    }
  }
  if (memory_ != nullptr) ::munmap(memory_, bytes_);
  if (context_ != nullptr) (void)driver_.primary_ctx_release(device_);
}

}  // namespace

Result<std::shared_ptr<StreamWaits>> StreamWaits::Open(int fd, uint64_t bytes, int ordinal) {
  KVT_ASSIGN_OR_RETURN(const DriverApi driver, DriverApi::Load());
  const auto waits = std::make_shared<DriverStreamWaits>(driver, bytes);
  KVT_RETURN_IF_ERROR(waits->Open(fd, ordinal));
  return waits;
}

}  // namespace kvtier::client
