// SPDX-License-Identifier: Apache-2.0
// Memory of this process that the daemon holds for the next one, as the application sees it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "base/posix.h"
#include "base/result.h"
#include "client/core/connection.h"
#include "client/core/kept_table.h"
#include "client/cuda/cuda_mapping.h"
#include "protocol/kept_memory_messages.h"

namespace kvtier::client {

struct KeptMemoryOptions {
  wire::KeptMemoryName name{};
  uint64_t bytes = 0;
  uint32_t blocks = 0;             // 1 to kMaxRegionBlocks
  std::optional<int> cuda_device;  // as this process numbers them; nothing: host memory
};

// Thread-safe. It lives on without its connections: memory and table are this process's own.
class KeptMemory {
 public:
  // Takes the memory that the daemon keeps under the name, or allocates zeros and has them kept.
  // Without a connection, or when that is lost, it only allocates. Errors: kInvalidArgument
  // "bad_options"; kTimeout (the daemon may hand the memory over yet); those of Keep but
  // kUnavailable; of CudaMapping; kResourceExhausted; kIoError.
  [[nodiscard]] static Result<std::unique_ptr<KeptMemory>> Open(Connection* connection,
                                                                const KeptMemoryOptions& options);
  ~KeptMemory();
  KeptMemory(const KeptMemory&) = delete;
  KeptMemory& operator=(const KeptMemory&) = delete;

  // Hands the memory to the daemon of the connection's session. Errors: the daemon's; kWrongState
  // "memory_in_use", also if other memory of this process has the name; kNotFound
  // "device_not_served"; kUnavailable; kTimeout.
  [[nodiscard]] Status Keep(Connection* connection) const;

  // An address in host memory, or on the GPU.
  [[nodiscard]] void* data() const;
  [[nodiscard]] int fd() const { return fd_.get(); }
  [[nodiscard]] uint64_t bytes() const { return bytes_; }
  // Whether the bytes are those of an earlier process.
  [[nodiscard]] bool was_kept() const { return was_kept_; }
  [[nodiscard]] KeptTable& table() { return *table_; }

 private:
  explicit KeptMemory(const KeptMemoryOptions& options) : options_(options) {}
  // True if it took something over.
  [[nodiscard]] Result<bool> Take(const Connection& connection, DaemonSession* session);
  // Errors: the kept memory is of no use here.
  [[nodiscard]] Status Use(const wire::TakeMemoryReply& reply, UniqueFd memory, UniqueFd table);
  [[nodiscard]] Status Allocate(Connection* connection);
  [[nodiscard]] Status AllocateOnGpu();
  [[nodiscard]] Status MapHostMemory(UniqueFd fd);
  [[nodiscard]] Result<uint32_t> DeviceIn(const Connection& connection,
                                          DaemonSession* session) const;
  [[nodiscard]] wire::RegionMemory kind() const {
    return options_.cuda_device ? wire::RegionMemory::kVmm : wire::RegionMemory::kSharedMemory;
  }

  const KeptMemoryOptions options_;
  uint64_t bytes_ = 0;  // of the mapping
  UniqueFd fd_;
  std::byte* host_ = nullptr;
  std::shared_ptr<CudaMapping> gpu_;
  std::unique_ptr<KeptTable> table_;
  bool was_kept_ = false;
  bool gave_back_ = false;  // memory kept under the name was of no use
};

// The present contents of a name's table; nothing if none is kept, or it is of no use. Errors: the
// daemon's; kUnavailable; kTimeout.
[[nodiscard]] Result<std::optional<KeptTableContents>> ReadKeptTable(
    Connection* connection, const wire::KeptMemoryName& name);
// Errors: the daemon's; kUnavailable; kTimeout.
[[nodiscard]] Result<wire::ReleaseMemoryReply> ReleaseKeptMemory(
    Connection* connection, const wire::ReleaseMemory& request);

}  // namespace kvtier::client
