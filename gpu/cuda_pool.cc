// SPDX-License-Identifier: Apache-2.0
#include "gpu/cuda_pool.h"

#include <fmt/format.h>

#include <utility>

#include "base/units.h"
#include "gpu/cuda_driver.h"

namespace kvtier {
namespace {

CUmemAllocationProp ShareableMemoryOf(int ordinal) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = ordinal};
  return properties;
}

tl::unexpected<Error> Exhausted(uint64_t bytes) {
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  (void)cudaMemGetInfo(&free_bytes, &total_bytes);
  return MakeError(ErrorCode::kResourceExhausted, "pool_exceeds_vram",
                   fmt::format("{} asked for, {} free of {}", FormatByteSize(bytes),
                               FormatByteSize(free_bytes), FormatByteSize(total_bytes)));
}

}  // namespace

Result<std::unique_ptr<CudaPool>> CudaPool::Create(const CudaDriver* driver, int ordinal,
                                                   uint64_t bytes, EventQueue* loop) {
  if (bytes == 0) return MakeError(ErrorCode::kInvalidArgument, "empty_pool", "0 bytes asked for");
  std::unique_ptr<CudaPool> pool(new CudaPool(driver, ordinal));
  KVT_RETURN_IF_ERROR(pool->Allocate(bytes));
  KVT_RETURN_IF_ERROR(pool->Map());
  KVT_RETURN_IF_ERROR(pool->Zero(loop));
  return pool;
}

Result<std::unique_ptr<CudaPool>> CudaPool::Adopt(const CudaDriver* driver, int ordinal,
                                                  UniqueFd fd, uint64_t bytes) {
  std::unique_ptr<CudaPool> pool(new CudaPool(driver, ordinal));
  KVT_RETURN_IF_ERROR(pool->Import(std::move(fd), bytes));
  KVT_RETURN_IF_ERROR(pool->Map());
  pool->readiness_->reached = true;
  return pool;
}

// An allocation is mapped as a whole or not at all: one of another size is refused by the driver,
// which takes a descriptor in the place of a pointer.
Status CudaPool::Import(UniqueFd fd, uint64_t bytes) {
  size_t granularity = 0;
  const CUmemAllocationProp wanted = ShareableMemoryOf(ordinal());
  KVT_RETURN_IF_CUDA_ERROR(driver_.mem_get_allocation_granularity(
                               &granularity, &wanted, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
                           "granularity of a pool");
  if (bytes == 0 || bytes % granularity != 0 || bytes > uint64_t{1} << 48) {
    return MakeError(ErrorCode::kCorrupt, "size_changed");
  }
  const CUresult imported =
      driver_.mem_import(&handle_, reinterpret_cast<void*>(static_cast<uintptr_t>(fd.get())),
                         CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  if (imported != CUDA_SUCCESS) handle_ = 0;
  KVT_RETURN_IF_CUDA_ERROR(imported, "importing a pool");
  CUmemAllocationProp properties{};
  KVT_RETURN_IF_CUDA_ERROR(driver_.mem_get_properties(&properties, handle_),
                           "asking for the kind of a pool");
  if (properties.location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
      properties.location.id != ordinal()) {
    return MakeError(ErrorCode::kCorrupt, "other_device");
  }
  bytes_ = bytes;
  fd_ = std::move(fd);
  return {};
}

Status CudaPool::Allocate(uint64_t bytes) {
  const CUmemAllocationProp properties = ShareableMemoryOf(ordinal());
  size_t granularity = 0;
  KVT_RETURN_IF_CUDA_ERROR(driver_.mem_get_allocation_granularity(
                               &granularity, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
                           "granularity of a pool");
  // Sizes beyond any memory would overflow when rounded.
  if (bytes > uint64_t{1} << 60) return Exhausted(bytes);
  bytes_ = (bytes + granularity - 1) / granularity * granularity;
  const CUresult created = driver_.mem_create(&handle_, bytes_, &properties, 0);
  if (created != CUDA_SUCCESS) handle_ = 0;
  if (created == CUDA_ERROR_OUT_OF_MEMORY) return Exhausted(bytes);
  KVT_RETURN_IF_CUDA_ERROR(created, fmt::format("allocating {}", FormatByteSize(bytes)));
  int fd = -1;
  KVT_RETURN_IF_CUDA_ERROR(
      driver_.mem_export(&fd, handle_, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
      "exporting a pool");
  fd_ = UniqueFd(fd);
  return {};
}

Status CudaPool::Map() {
  KVT_RETURN_IF_CUDA_ERROR(driver_.mem_address_reserve(&address_, bytes_, 0, 0, 0),
                           "reserving addresses for a pool");
  KVT_RETURN_IF_CUDA_ERROR(driver_.mem_map(address_, bytes_, 0, handle_, 0), "mapping a pool");
  mapped_ = true;
  return Allow(ordinal());
}

// Both ways, since NVIDIA documents no access to a GPU's memory that is for reading alone.
Status CudaPool::Allow(int ordinal) {
  const CUmemAccessDesc access{.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = ordinal},
                               .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  KVT_RETURN_IF_CUDA_ERROR(driver_.mem_set_access(address_, bytes_, &access, 1),
                           "access to a pool");
  return {};
}

Status CudaPool::LetRead(int ordinal) {
  if (((readers_ >> ordinal) & 1) != 0) return {};
  KVT_RETURN_IF_ERROR(Allow(ordinal));
  readers_ |= uint32_t{1} << ordinal;
  return {};
}

// The memory's old contents may be another tenant's. 100 GiB take 40 ms, and a kernel that fills
// the GPU may come first: only the pool's own client has to wait.
Status CudaPool::Zero(EventQueue* loop) {
  KVT_RETURN_IF_CUDA_ERROR(cudaStreamCreateWithFlags(&zeroing_, cudaStreamNonBlocking),
                           "a stream to zero a pool");
  KVT_RETURN_IF_CUDA_ERROR(cudaMemsetAsync(data(), 0, bytes_, zeroing_), "zeroing a pool");
  auto zeroed = std::make_unique<Zeroed>(Zeroed{loop, readiness_});
  KVT_RETURN_IF_CUDA_ERROR(cudaLaunchHostFunc(zeroing_, &CudaPool::OnZeroed, zeroed.get()),
                           "waiting for a pool's zeros");
  // OnZeroed owns it from now on.
  (void)zeroed.release();
  return {};
}

void CudaPool::OnZeroed(void* zeroed) {
  const std::unique_ptr<Zeroed> owned(static_cast<Zeroed*>(zeroed));
  owned->loop->Post([weak = owned->readiness] {
    const std::shared_ptr<Readiness> readiness = weak.lock();
    if (!readiness) return;
    readiness->reached = true;
    for (const auto& ready : std::exchange(readiness->waiting, {})) ready();
  });
}

void CudaPool::WhenReady(std::function<void()> ready) {
  if (readiness_->reached) return ready();
  readiness_->waiting.push_back(std::move(ready));
}

void CudaPool::AwaitReady() {
  if (ChooseGpu() && zeroing_ != nullptr) (void)cudaStreamSynchronize(zeroing_);
}

CudaPool::~CudaPool() {
  if (ChooseGpu() && zeroing_ != nullptr) {
    (void)cudaStreamSynchronize(zeroing_);
    (void)cudaStreamDestroy(zeroing_);
  }
  if (mapped_) (void)driver_.mem_unmap(address_, bytes_);
  if (address_ != 0) (void)driver_.mem_address_free(address_, bytes_);
  if (handle_ != 0) (void)driver_.mem_release(handle_);
}

}  // namespace kvtier
