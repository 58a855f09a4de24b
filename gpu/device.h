// SPDX-License-Identifier: Apache-2.0
// A device holds the pool: the memory in which inference processes use KV blocks in place.
//
// Two devices exist: host memory (HostDevice), for CPU inference and machines without a GPU, and
// CUDA. `tiers/` knows only this interface; no CUDA header is included here.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/posix.h"
#include "base/result.h"
#include "gpu/counter_page.h"
#include "gpu/host_pinner.h"

namespace kvtier {

// A device's facts for `kvtierctl status`.
struct DeviceInfo {
  std::string kind;  // "host" or "cuda"
  std::string name;  // for people, for example "host memory (memfd)"
  int ordinal = 0;
  uint64_t total_bytes = 0;
  uint64_t free_bytes = 0;  // for pools, when the device was opened
  int numa_node = -1;       // whose host memory is nearest; -1: unknown or all alike
  // Names the GPU to every process, however CUDA_VISIBLE_DEVICES numbers it; zeros for host memory.
  std::array<uint8_t, 16> uuid{};
  uint32_t driver_version = 0;  // as the driver numbers itself; 0: there is none
  // By ordinal, a bit for each other device of this kind whose memory it can read directly, over
  // NVLink or PCIe: the driver was asked.
  uint32_t neighbours = 0;
};

inline constexpr int kMostNeighbours = 32;

// Whether the reader's copies may have a pool of the holder as their source (kPoolToPool).
[[nodiscard]] inline bool CanReadFrom(const DeviceInfo& reader, const DeviceInfo& holder) {
  return reader.kind == holder.kind && holder.ordinal >= 0 && holder.ordinal < kMostNeighbours &&
         ((reader.neighbours >> holder.ordinal) & 1) != 0;
}

// One contiguous allocation that other processes can map, all zeros when it is ready. Freed by its
// destructor; mappings in other processes live on until these unmap.
class DevicePool {
 public:
  virtual ~DevicePool() = default;
  // The requested size, rounded up to a size that the device can allocate.
  [[nodiscard]] virtual uint64_t bytes() const = 0;
  // In the address space of the device: the CPU may use it only where the device is host memory.
  [[nodiscard]] virtual std::byte* data() const = 0;
  // A descriptor to hand to clients with SCM_RIGHTS. Owned by the pool.
  [[nodiscard]] virtual int shareable_fd() const = 0;
  // Calls `ready` on the event loop when the memory is all zeros; within this call if it has been.
  // Not called if the pool ends before.
  virtual void WhenReady(std::function<void()> ready) { ready(); }
  // Waits until the memory is all zeros: not in an event of the loop.
  virtual void AwaitReady() {}
  // The memory returns to the machine though other processes may still have it mapped: what these
  // see from now on is undefined. May take seconds; any thread. Memory of a GPU cannot be taken
  // back: it returns when they have let go of it.
  virtual void Discard() {}
};

// A descriptor that another process has sent. Closing it may take seconds: if that process has
// ended, it frees the memory behind it. `close`, if given, gets it for that. Move-only.
class LentDescriptor {
 public:
  LentDescriptor() = default;
  explicit LentDescriptor(UniqueFd fd, std::function<void(UniqueFd)> close = nullptr)
      : fd_(std::move(fd)), close_(std::move(close)) {}
  LentDescriptor(LentDescriptor&&) noexcept = default;
  LentDescriptor& operator=(LentDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    std::swap(close_, other.close_);
    return *this;
  }
  ~LentDescriptor() {
    if (fd_.valid() && close_) close_(std::move(fd_));
  }

  [[nodiscard]] int get() const { return fd_.get(); }

 private:
  UniqueFd fd_;
  std::function<void(UniqueFd)> close_;
};

// Memory of another process that this one may read and write: see Device::Borrow.
struct LentMemory {
  enum class Kind : uint8_t {
    kShared,   // host memory behind `descriptor`: a memfd, or a file in /dev/shm
    kVmm,      // a GPU's, exported by cuMemExportToShareableHandle as `descriptor`
    kCudaIpc,  // a GPU's, named by `ipc_handle`
  };
  Kind kind = Kind::kShared;
  LentDescriptor descriptor;
  // A name for those who may hold each other up: copies of other owners' memory wait for none of
  // this one's.
  std::string owner;
  std::array<uint8_t, 64> ipc_handle{};
  uint64_t bytes = 0;
  bool is_source = false;  // other GPUs are to copy from it
  uint32_t readers = 0;    // of these, by ordinal, those that can reach a kVmm one
  // By Device::Map, for Device::Borrow. If nothing borrows it, it ends where it was mapped.
  std::unique_ptr<DevicePool, std::function<void(DevicePool*)>> mapped;
};

// kPoolToPool: from a pool of another device, from which the one that copies CanReadFrom.
enum class CopyDirection : uint8_t { kPoolToHost, kHostToPool, kPoolToPool };
inline constexpr int kCopyDirectionCount = 3;

// Served in this order; within one priority first come, first served.
enum class CopyPriority : uint8_t { kDemand = 0, kPrefetch = 1, kBackground = 2 };
inline constexpr int kCopyPriorityCount = 3;

// One contiguous copy between the pool and host memory, or memory of the request's `source`.
struct BlockCopy {
  uint64_t pool_offset = 0;
  std::byte* host = nullptr;
  uint64_t bytes = 0;
};

// `done` is called once on the event loop when all copies have completed or one has failed; on
// failure the destination's contents are unspecified. The caller keeps the pools, which are ready,
// and the host memory alive and (the source) unchanged until then.
//
// Before that, without the event loop, the device sets the counters in `counted`: each when this
// request and all earlier ones that name the same counter have landed, unless one of these failed.
// REQUIRES: requests that name one counter are of one direction and priority.
struct CopyRequest {
  DevicePool* pool = nullptr;
  DevicePool* source = nullptr;  // of kPoolToPool alone: all of `copies` lie in it
  CopyDirection direction = CopyDirection::kPoolToHost;
  CopyPriority priority = CopyPriority::kDemand;
  std::vector<BlockCopy> copies;
  std::vector<CountedStep> counted;
  // Asked before each part of the copies: once false, no other is begun, and the request fails with
  // kCancelled "not_lent". Any thread; null: `pool` is no other process's.
  std::function<bool()> is_lent;
  std::function<void(Status)> done;
};

// Checked by every device before it copies. Errors: kInvalidArgument "copy_out_of_bounds" if a copy
// does not lie within the request's pool, or its source.
[[nodiscard]] Status CheckCopyBounds(const CopyRequest& request);

// All calls are made on the event loop's thread.
class Device {
 public:
  virtual ~Device() = default;
  [[nodiscard]] virtual DeviceInfo info() const = 0;
  [[nodiscard]] virtual bool is_open() const { return true; }
  // Calls `done` on the event loop once the device can be used, within this call if it can be; with
  // an error if it could not be opened. Before that it has no memory to give.
  virtual void WhenOpen(std::function<void(Status)> done) { done({}); }
  // Errors: kResourceExhausted when the memory cannot be had.
  [[nodiscard]] virtual Result<std::unique_ptr<DevicePool>> CreatePool(uint64_t bytes) = 0;
  // Adopts the memory of a pool that an earlier process made, with its contents. `fd` is that
  // pool's shareable_fd, and `bytes` its size. Errors: kUnsupported "adopt_pool", kCorrupt
  // "not_sealed", "size_changed" or "other_device"; the errors of the mapping.
  [[nodiscard]] virtual Result<std::unique_ptr<DevicePool>> AdoptPool(UniqueFd fd, uint64_t bytes);
  // Makes another process's memory a pool that can be copied from and to, without a copy of its
  // own. Its owner may end, or take the memory away, at any time: copies then fail or move bytes
  // that mean nothing, and nothing worse. Errors: kUnsupported "region_memory_kind";
  // kInvalidArgument "bad_region_memory" if it is not what `memory` says.
  [[nodiscard]] virtual Result<std::unique_ptr<DevicePool>> Borrow(LentMemory* memory);
  // Does the part of Borrow that takes long, the mapping of a GPU's memory: some milliseconds for
  // each GiB. Calls `done` on the event loop, within this call if nothing takes long. Errors: those
  // of Borrow. REQUIRES: the device is open.
  virtual void Map(std::shared_ptr<LentMemory> /*memory*/, std::function<void(Status)> done) {
    done({});
  }
  // Never blocks. Copies out of bounds of the pool fail with kInvalidArgument.
  virtual void Copy(CopyRequest request) = 0;
  // Says whether an acquire waits for what kBackground copies will free. While one waits, no rate
  // holds such copies back, those included that were submitted before.
  virtual void AwaitBackground(bool /*awaited*/) {}
  // The number of counter pages that the device cannot write to: a thread of the host counts there
  // in its place, some microseconds later.
  [[nodiscard]] virtual uint64_t unreachable_counter_pages() const { return 0; }
  // For the host memory that is copied from and to; null where none needs pinning. Owned by the
  // device.
  [[nodiscard]] virtual HostPinner* host_pinner() { return nullptr; }
};

}  // namespace kvtier
