// SPDX-License-Identifier: Apache-2.0
#include "gpu/cuda_lent_memory.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <cstring>
#include <string>
#include <utility>

#include "base/units.h"

namespace kvtier {
namespace {

tl::unexpected<Error> Bad(std::string context) {
  return MakeError(ErrorCode::kInvalidArgument, "bad_region_memory", std::move(context));
}

// An error of the driver about memory that a client named is the client's mistake.
Status Checked(CUresult code, std::string_view context) {
  if (code == CUDA_SUCCESS) return {};
  return Bad(fmt::format("{}: {}", context, cudaGetErrorName(static_cast<cudaError_t>(code))));
}

}  // namespace

Result<std::unique_ptr<DevicePool>> CudaLentMemory::Open(const CudaDriver* driver, int ordinal,
                                                         std::function<void(std::string)> log,
                                                         LentMemory* memory) {
  if (memory->bytes == 0 || memory->bytes > uint64_t{1} << 48) return Bad("of no possible size");
  std::unique_ptr<CudaLentMemory> lent(
      new CudaLentMemory(driver, ordinal, std::move(log), memory->bytes));
  if (memory->kind == LentMemory::Kind::kVmm) {
    KVT_RETURN_IF_ERROR(lent->MapAllocation(memory->descriptor.get()));
    // Here, and not on the event loop by the first copy, which tries again where this fails.
    for (int other = 0; other < kMostNeighbours; ++other) {
      if (((memory->readers >> other) & 1) != 0) (void)lent->LetRead(other);
    }
  } else {
    KVT_RETURN_IF_ERROR(lent->OpenIpcHandle(*memory));
  }
  return lent;
}

// An allocation is mapped as a whole or not at all: one of another size is refused by the driver,
// which takes a descriptor in the place of a pointer.
Status CudaLentMemory::MapAllocation(int fd) {
  KVT_RETURN_IF_ERROR(
      Checked(driver_.mem_import(&allocation_, reinterpret_cast<void*>(static_cast<uintptr_t>(fd)),
                                 CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
              "importing the descriptor"));
  CUmemAllocationProp properties{};
  KVT_RETURN_IF_ERROR(
      Checked(driver_.mem_get_properties(&properties, allocation_), "asking for its kind"));
  if (properties.location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
      properties.location.id != ordinal()) {
    return Bad(fmt::format("it lies on GPU {}, not {}", properties.location.id, ordinal()));
  }
  KVT_RETURN_IF_ERROR(
      Checked(driver_.mem_address_reserve(&address_, bytes_, 0, 0, 0), "reserving addresses"));
  KVT_RETURN_IF_ERROR(Checked(driver_.mem_map(address_, bytes_, 0, allocation_, 0), "mapping it"));
  mapped_ = true;
  return LetRead(ordinal());
}

// Both ways, as CudaPool::Allow.
Status CudaLentMemory::LetRead(int ordinal) {
  if (!mapped_) return MakeError(ErrorCode::kUnsupported, "cuda_ipc");
  if (((readers_ >> ordinal) & 1) != 0) return {};
  const CUmemAccessDesc access{.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = ordinal},
                               .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  KVT_RETURN_IF_ERROR(
      Checked(driver_.mem_set_access(address_, bytes_, &access, 1), "access to it"));
  readers_ |= uint32_t{1} << ordinal;
  return {};
}

// The handle stands for a whole allocation, of which the driver tells the size. The runtime opens
// handles as pointers, and the driver asks by address.
Status CudaLentMemory::OpenIpcHandle(const LentMemory& memory) {
  cudaIpcMemHandle_t handle{};
  static_assert(sizeof(handle) == sizeof(memory.ipc_handle));
  std::memcpy(&handle, memory.ipc_handle.data(), sizeof(handle));
  const cudaError_t opened = cudaIpcOpenMemHandle(&ipc_, handle, cudaIpcMemLazyEnablePeerAccess);
  if (opened != cudaSuccess) {
    ipc_ = nullptr;
    (void)cudaGetLastError();
    return Bad(fmt::format("opening the handle: {}", cudaGetErrorName(opened)));
  }
  address_ = reinterpret_cast<CUdeviceptr>(ipc_);
  CUdeviceptr base = 0;
  size_t allocated_bytes = 0;
  KVT_RETURN_IF_ERROR(Checked(driver_.mem_get_address_range(&base, &allocated_bytes, address_),
                              "asking for its size"));
  const uint64_t left_bytes = allocated_bytes - (address_ - base);
  if (left_bytes >= bytes_) return {};
  return Bad(fmt::format("{} are there, {} are said to be", FormatByteSize(left_bytes),
                         FormatByteSize(bytes_)));
}

CudaLentMemory::~CudaLentMemory() {
  const bool chosen = ChooseGpu();
  if (ipc_ != nullptr) {
    if (chosen && cudaIpcCloseMemHandle(ipc_) == cudaSuccess) return;
    const char* const why = cudaGetErrorName(cudaGetLastError());
    if (log_) log_(fmt::format("{} of cuda:{}: {}", FormatByteSize(bytes_), ordinal(), why));
    return;
  }
  if (mapped_) (void)driver_.mem_unmap(address_, bytes_);
  if (address_ != 0) (void)driver_.mem_address_free(address_, bytes_);
  if (allocation_ != 0) (void)driver_.mem_release(allocation_);
}

}  // namespace kvtier
