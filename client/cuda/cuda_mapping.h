// SPDX-License-Identifier: Apache-2.0
// Memory of a GPU that processes share, in this process's address space: a pool of the daemon's, or
// memory of this process's own. No CUDA header is needed to use this.
//
// The library links neither the runtime nor the driver: it loads the driver when the first memory
// is mapped, so it can live beside any engine's own runtime and on machines without one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/posix.h"
#include "base/result.h"

namespace kvtier::client {

// Unmapped by its destructor. REQUIRES, for that: no kernel or copy of this process uses the
// memory. Thread-safe.
class CudaMapping {
 public:
  // Imports the memory behind `fd`, of which `bytes` are the whole, and maps it for its device's
  // primary context, which is made if the process has none yet. Errors: kUnsupported
  // "no_cuda_driver", "cuda_driver_too_old", "no_cuda" (built without); kIoError with the driver's
  // name for the fault, such as a device that this process may not see.
  [[nodiscard]] static Result<std::shared_ptr<CudaMapping>> Map(int fd, uint64_t bytes);
  // Allocates and maps zeros on a GPU, as this process numbers them; `fd` is what other processes
  // import. REQUIRES: `bytes` are as RoundUp gives them. Errors: as of Map; kResourceExhausted
  // "CUDA_ERROR_OUT_OF_MEMORY".
  [[nodiscard]] static Result<std::shared_ptr<CudaMapping>> Allocate(int ordinal, uint64_t bytes,
                                                                     UniqueFd* fd);
  // Memory of that GPU comes in whole multiples of some size. Errors: as of Map.
  [[nodiscard]] static Result<uint64_t> RoundUp(int ordinal, uint64_t bytes);
  virtual ~CudaMapping() = default;

  // The address of the first block. Kernels of any stream of the process can use it.
  [[nodiscard]] virtual uint64_t address() const = 0;
  // The number that the device has in this process.
  [[nodiscard]] virtual int ordinal() const = 0;

  // Copies to and from host memory of any kind, on a stream of its own, and waits. REQUIRES: in
  // bounds. Errors: kIoError.
  [[nodiscard]] virtual Status Read(uint64_t offset, std::byte* data, uint64_t bytes) const = 0;
  [[nodiscard]] virtual Status Write(uint64_t offset, const std::byte* data,
                                     uint64_t bytes) const = 0;
  // Copies within the memory, on the GPU, and waits. Knows nothing of other streams: the source has
  // been written. REQUIRES: in bounds, no overlap. Errors: kIoError.
  [[nodiscard]] virtual Status Copy(uint64_t target_offset, uint64_t source_offset,
                                    uint64_t bytes) const = 0;
};

// The GPU that this thread uses: its current context's; without one, the only GPU that the process
// may see. Makes no context. Errors: kNotFound "no_current_device"; kUnsupported as
// CudaMapping::Map.
[[nodiscard]] Result<std::array<uint8_t, 16>> CurrentDeviceUuid();
// The UUID of the GPU with this number. Errors: kNotFound "no_such_gpu"; kUnsupported as
// CudaMapping::Map.
[[nodiscard]] Result<std::array<uint8_t, 16>> UuidOfDevice(int ordinal);

}  // namespace kvtier::client
