// A pool's memory as this process sees it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/result.h"
#include "base/unique_fd.h"
#include "protocol/messages.h"

namespace kvtier::client {

// Unmapped by its destructor. Thread-safe, but for Empty.
class PoolMapping {
 public:
  // Host memory is mapped for reading and writing; other devices' memory only keeps its descriptor,
  // for those who can import it. Errors: kCorrupt "pool_descriptor_missing", "pool_too_small" (the
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

  // Gives the memory and the descriptor back but keeps the addresses, which then read as zeros:
  // pointers into a pool that is long gone must not fault, nor hold its memory.
  void Empty();

 private:
  UniqueFd fd_;
  std::byte* const base_;
  const uint64_t generation_;
  const uint64_t bytes_;
  const wire::DeviceKind device_kind_;
};

}  // namespace kvtier::client
