// SPDX-License-Identifier: Apache-2.0
// A pool's memory as this process sees it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

#include "base/posix.h"
#include "base/result.h"
#include "client/cuda/cuda_mapping.h"
#include "protocol/messages.h"

namespace kvtier::client {

// Unmapped by its destructor. Thread-safe, but for Empty and Unmap.
class PoolMapping {
 public:
  // Host memory is mapped for reading and writing; other devices' memory only keeps its descriptor
  // until OnDevice is called. Errors: kCorrupt "pool_descriptor_missing", "pool_too_small" (the
  // memory is less than announced: using it would be fatal); kIoError "pool_map_failed".
  [[nodiscard]] static Result<std::shared_ptr<PoolMapping>> Map(UniqueFd fd, uint64_t generation,
                                                                uint64_t bytes,
                                                                wire::DeviceKind device_kind);
  PoolMapping(UniqueFd fd, std::byte* base, uint64_t generation, uint64_t bytes,
              wire::DeviceKind device_kind);
  ~PoolMapping();
  PoolMapping(const PoolMapping&) = delete;
  PoolMapping& operator=(const PoolMapping&) = delete;

  // Null unless host memory.
  [[nodiscard]] std::byte* base() const { return base_; }
  [[nodiscard]] uint64_t bytes() const { return bytes_; }
  [[nodiscard]] uint64_t generation() const { return generation_; }
  [[nodiscard]] wire::DeviceKind device_kind() const { return device_kind_; }
  [[nodiscard]] int fd() const { return fd_.get(); }

  // Whether this is that pool and has not been given back.
  [[nodiscard]] bool Serves(uint64_t generation, uint64_t bytes) const;

  // CUDA memory in this process's address space, mapped on the first call. Errors: kUnsupported
  // "host_memory" (see base()), "pool_unmapped"; those of CudaMapping::Map.
  [[nodiscard]] Result<std::shared_ptr<const CudaMapping>> OnDevice();

  // Gives the memory and the descriptor back but keeps the addresses, which then read as zeros:
  // pointers into a pool that is long gone must not fault, nor hold its memory. CUDA memory that is
  // mapped stays: taking it away under a kernel would break the whole process's use of CUDA.
  void Empty();
  // Gives CUDA memory and its descriptor back for good. REQUIRES: nothing uses it.
  void Unmap();

 private:
  UniqueFd fd_;
  std::byte* const base_;
  const uint64_t generation_;
  const uint64_t bytes_;
  const wire::DeviceKind device_kind_;
  mutable std::mutex mutex_;                      // guards fd_, too
  std::shared_ptr<const CudaMapping> on_device_;  // guarded by mutex_
};

}  // namespace kvtier::client
