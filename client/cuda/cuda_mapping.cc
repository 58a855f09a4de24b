// SPDX-License-Identifier: Apache-2.0
#include "client/cuda/cuda_mapping.h"

#include <fmt/format.h>

#include <cstring>

#include "client/cuda/cuda_driver.h"

namespace kvtier::client {
namespace {

class DriverMapping final : public CudaMapping {
 public:
  DriverMapping(const DriverApi& driver, uint64_t bytes) : driver_(driver), bytes_(bytes) {}
  ~DriverMapping() override;
  DriverMapping(const DriverMapping&) = delete;
  DriverMapping& operator=(const DriverMapping&) = delete;

  // Memory of another process.
  [[nodiscard]] Status Open(int fd);
  // Memory of its own, which becomes zeros.
  [[nodiscard]] Status Create(int ordinal, UniqueFd* fd);

  [[nodiscard]] uint64_t address() const override { return address_; }
  [[nodiscard]] int ordinal() const override { return ordinal_; }
  [[nodiscard]] Status Read(uint64_t offset, std::byte* data, uint64_t bytes) const override;
  [[nodiscard]] Status Write(uint64_t offset, const std::byte* data, uint64_t bytes) const override;
  [[nodiscard]] Status Copy(uint64_t target_offset, uint64_t source_offset,
                            uint64_t bytes) const override;

 private:
  [[nodiscard]] Status Import(int fd);
  [[nodiscard]] Status TakeContext();
  [[nodiscard]] Status MapMemory();

  const DriverApi driver_;
  const uint64_t bytes_;
  CUmemGenericAllocationHandle handle_ = 0;
  int ordinal_ = 0;
  CUdevice device_ = 0;
  CUcontext context_ = nullptr;  // the device's primary one
  CUdeviceptr address_ = 0;
  bool mapped_ = false;
  CUstream stream_ = nullptr;
};

// The kind of memory that the process may allocate and share on a GPU.
CUmemAllocationProp ShareableMemoryOf(int ordinal) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = ordinal};
  return properties;
}

Status DriverMapping::Create(int ordinal, UniqueFd* fd) {
  ordinal_ = ordinal;
  KVT_RETURN_IF_ERROR(TakeContext());
  const CurrentContext current(driver_, context_);
  const CUmemAllocationProp properties = ShareableMemoryOf(ordinal);
  const CUresult created = driver_.mem_create(&handle_, bytes_, &properties, 0);
  if (created != CUDA_SUCCESS) handle_ = 0;
  if (created == CUDA_ERROR_OUT_OF_MEMORY) {
    return MakeError(ErrorCode::kResourceExhausted, "CUDA_ERROR_OUT_OF_MEMORY",
                     fmt::format("{} bytes on GPU {}", bytes_, ordinal));
  }
  KVT_RETURN_IF_ERROR(driver_.Check(created, "allocating memory to share"));
  int exported = -1;
  KVT_RETURN_IF_ERROR(driver_.Check(
      driver_.mem_export(&exported, handle_, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
      "exporting memory"));
  *fd = UniqueFd(exported);
  KVT_RETURN_IF_ERROR(MapMemory());
  KVT_RETURN_IF_ERROR(driver_.Check(driver_.fill(address_, 0, bytes_, stream_), "zeroing memory"));
  return driver_.Check(driver_.stream_synchronize(stream_), "zeroing memory");
}

Status DriverMapping::Open(int fd) {
  KVT_RETURN_IF_ERROR(Import(fd));
  KVT_RETURN_IF_ERROR(TakeContext());
  const CurrentContext current(driver_, context_);
  return MapMemory();
}

Status DriverMapping::Import(int fd) {
  KVT_RETURN_IF_ERROR(
      driver_.Check(driver_.mem_import(&handle_, reinterpret_cast<void*>(static_cast<intptr_t>(fd)),
                                       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
                    "importing memory; is its GPU visible to this process?"));
  CUmemAllocationProp properties{};
  KVT_RETURN_IF_ERROR(
      driver_.Check(driver_.mem_properties(&properties, handle_), "asking which GPU memory is on"));
  ordinal_ = properties.location.id;
  return {};
}

Status DriverMapping::TakeContext() {
  KVT_RETURN_IF_ERROR(driver_.Check(driver_.device_get(&device_, ordinal_), "the memory's GPU"));
  return driver_.Check(driver_.primary_ctx_retain(&context_, device_),
                       "the primary context of the memory's GPU");
}

Status DriverMapping::MapMemory() {
  KVT_RETURN_IF_ERROR(driver_.Check(driver_.mem_address_reserve(&address_, bytes_, 0, 0, 0),
                                    "reserving addresses for shared memory"));
  KVT_RETURN_IF_ERROR(
      driver_.Check(driver_.mem_map(address_, bytes_, 0, handle_, 0), "mapping shared memory"));
  mapped_ = true;
  const CUmemAccessDesc access{.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = ordinal_},
                               .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  KVT_RETURN_IF_ERROR(driver_.Check(driver_.mem_set_access(address_, bytes_, &access, 1),
                                    "access to shared memory"));
  return driver_.Check(driver_.stream_create(&stream_, CU_STREAM_NON_BLOCKING), "a stream");
}

DriverMapping::~DriverMapping() {
  {
    const CurrentContext current(driver_, context_);
    if (stream_ != nullptr) (void)driver_.stream_destroy(stream_);
    if (mapped_) (void)driver_.mem_unmap(address_, bytes_);
    if (address_ != 0) (void)driver_.mem_address_free(address_, bytes_);
    if (handle_ != 0) (void)driver_.mem_release(handle_);
  }
  if (context_ != nullptr) (void)driver_.primary_ctx_release(device_);
}

Status DriverMapping::Read(uint64_t offset, std::byte* data, uint64_t bytes) const {
  const CurrentContext current(driver_, context_);
  KVT_RETURN_IF_ERROR(driver_.Check(driver_.copy_to_host(data, address_ + offset, bytes, stream_),
                                    "reading from shared memory"));
  return driver_.Check(driver_.stream_synchronize(stream_), "reading from shared memory");
}

Status DriverMapping::Write(uint64_t offset, const std::byte* data, uint64_t bytes) const {
  const CurrentContext current(driver_, context_);
  KVT_RETURN_IF_ERROR(driver_.Check(driver_.copy_to_device(address_ + offset, data, bytes, stream_),
                                    "writing to shared memory"));
  return driver_.Check(driver_.stream_synchronize(stream_), "writing to shared memory");
}

Status DriverMapping::Copy(uint64_t target_offset, uint64_t source_offset, uint64_t bytes) const {
  const CurrentContext current(driver_, context_);
  KVT_RETURN_IF_ERROR(driver_.Check(
      driver_.copy_on_device(address_ + target_offset, address_ + source_offset, bytes, stream_),
      "copying within shared memory"));
  return driver_.Check(driver_.stream_synchronize(stream_), "copying within shared memory");
}

Result<CUdevice> CurrentDevice(const DriverApi& driver) {
  CUdevice device = 0;
  if (driver.ctx_device(&device) != CUDA_SUCCESS) {
    int count = 0;
    KVT_RETURN_IF_ERROR(driver.Check(driver.device_count(&count), "counting the GPUs"));
    if (count != 1) {
      return MakeError(ErrorCode::kNotFound, "no_current_device",
                       fmt::format("no CUDA context is current on this thread, and the process "
                                   "sees {} GPUs",
                                   count));
    }
    KVT_RETURN_IF_ERROR(driver.Check(driver.device_get(&device, 0), "the only GPU"));
  }
  return device;
}

Result<CUdevice> DeviceOf(const DriverApi& driver, int ordinal) {
  int count = 0;
  KVT_RETURN_IF_ERROR(driver.Check(driver.device_count(&count), "counting the GPUs"));
  if (ordinal < 0 || ordinal >= count) {
    return MakeError(ErrorCode::kNotFound, "no_such_gpu",
                     fmt::format("GPU {} of the {} that the process sees", ordinal, count));
  }
  CUdevice device = 0;
  KVT_RETURN_IF_ERROR(driver.Check(driver.device_get(&device, ordinal), "a GPU"));
  return device;
}

Result<std::array<uint8_t, 16>> UuidOf(const DriverApi& driver, CUdevice device) {
  CUuuid uuid{};
  KVT_RETURN_IF_ERROR(driver.Check(driver.device_uuid(&uuid, device), "a GPU's UUID"));
  std::array<uint8_t, 16> bytes{};
  static_assert(sizeof(uuid.bytes) == sizeof(bytes));
  std::memcpy(bytes.data(), uuid.bytes, sizeof(bytes));
  return bytes;
}

}  // namespace

Result<std::array<uint8_t, 16>> CurrentDeviceUuid() {
  KVT_ASSIGN_OR_RETURN(const DriverApi driver, DriverApi::Load());
  KVT_ASSIGN_OR_RETURN(const CUdevice device, CurrentDevice(driver));
  return UuidOf(driver, device);
}

Result<std::array<uint8_t, 16>> UuidOfDevice(int ordinal) {
  KVT_ASSIGN_OR_RETURN(const DriverApi driver, DriverApi::Load());
  KVT_ASSIGN_OR_RETURN(const CUdevice device, DeviceOf(driver, ordinal));
  return UuidOf(driver, device);
}

Result<uint64_t> CudaMapping::RoundUp(int ordinal, uint64_t bytes) {
  KVT_ASSIGN_OR_RETURN(const DriverApi driver, DriverApi::Load());
  KVT_RETURN_IF_ERROR(DeviceOf(driver, ordinal));
  const CUmemAllocationProp properties = ShareableMemoryOf(ordinal);
  size_t granularity = 0;
  KVT_RETURN_IF_ERROR(driver.Check(
      driver.mem_granularity(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
      "the granularity of shared memory"));
  return (bytes + granularity - 1) / granularity * granularity;
}

Result<std::shared_ptr<CudaMapping>> CudaMapping::Allocate(int ordinal, uint64_t bytes,
                                                           UniqueFd* fd) {
  KVT_ASSIGN_OR_RETURN(const DriverApi driver, DriverApi::Load());
  const auto mapping = std::make_shared<DriverMapping>(driver, bytes);
  KVT_RETURN_IF_ERROR(mapping->Create(ordinal, fd));
  return mapping;
}

Result<std::shared_ptr<CudaMapping>> CudaMapping::Map(int fd, uint64_t bytes) {
  KVT_ASSIGN_OR_RETURN(const DriverApi driver, DriverApi::Load());
  const auto mapping = std::make_shared<DriverMapping>(driver, bytes);
  KVT_RETURN_IF_ERROR(mapping->Open(fd));
  return mapping;
}

}  // namespace kvtier::client
