// SPDX-License-Identifier: Apache-2.0
// Host memory as a device: pools are sealed memfds that clients map, copies are done by threads.
// For CPU inference and for machines without a GPU.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include "base/executor.h"
#include "base/posix.h"
#include "base/result.h"
#include "gpu/copy_threads.h"
#include "gpu/device.h"
#include "gpu/lent_mapping.h"

namespace kvtier {

// The kernel's estimate of memory usable without swapping; nothing if it gives none.
[[nodiscard]] std::optional<uint64_t> AvailableMemoryBytes();

// A pool in a sealed memfd. The memory is filled in by a background thread: zeroing takes seconds
// per 10 GiB, too long for the event loop, and left to first use it would slow the clients'
// decoding. Its size is sealed, so that no holder of the descriptor can cut it under the daemon's
// feet (SIGBUS).
class HostPool final : public DevicePool {
 public:
  // Errors: kInvalidArgument "empty_pool"; kResourceExhausted "pool_exceeds_memory" naming both
  // sizes, or the errno's name.
  [[nodiscard]] static Result<std::unique_ptr<HostPool>> Create(uint64_t bytes);
  // The memory of an earlier process's pool. Errors: kCorrupt "not_sealed", "size_changed";
  // kResourceExhausted with the errno's name.
  [[nodiscard]] static Result<std::unique_ptr<HostPool>> Adopt(UniqueFd fd, uint64_t bytes);
  ~HostPool() override;
  HostPool(const HostPool&) = delete;
  HostPool& operator=(const HostPool&) = delete;

  [[nodiscard]] uint64_t bytes() const override { return memory_.size(); }
  [[nodiscard]] int shareable_fd() const override { return fd_.get(); }
  [[nodiscard]] std::byte* data() const override { return memory_.data(); }
  // Others see zeros from now on, in pages that are their own to account for.
  void Discard() override;

 private:
  HostPool(UniqueFd fd, std::span<std::byte> memory);
  // Errors: kResourceExhausted with the errno's name.
  [[nodiscard]] static Result<std::unique_ptr<HostPool>> Map(UniqueFd fd, uint64_t bytes);
  void FillIn();
  void StopFilling();

  const UniqueFd fd_;
  const std::span<std::byte> memory_;
  std::atomic<bool> stopping_ = false;
  std::thread filler_;
};

// Shared by all memory of one owner.
struct LentOwner {
  LentOwner(EventQueue* loop, int copy_threads);

  CopyThreads threads;
  const std::shared_ptr<MappedBytes> mapped = std::make_shared<MappedBytes>(0);
};

// Memory that another process lends, behind a descriptor: see LentMapping.
class LentFile final : public DevicePool {
 public:
  // Errors: kInvalidArgument "bad_region_memory" unless it is a file in memory (tmpfs: memfd,
  // /dev/shm), large enough and open for reading and writing. Cannot block, whatever the descriptor
  // is of. Takes the descriptor only on success.
  [[nodiscard]] static Result<std::unique_ptr<LentFile>> Open(LentMemory* memory,
                                                              std::shared_ptr<LentOwner> owner);
  // The memory is let go of by a thread of its owner.
  ~LentFile() override;
  LentFile(const LentFile&) = delete;
  LentFile& operator=(const LentFile&) = delete;

  [[nodiscard]] uint64_t bytes() const override { return mapping_->bytes(); }
  [[nodiscard]] int shareable_fd() const override { return mapping_->descriptor(); }
  [[nodiscard]] std::byte* data() const override { return nullptr; }
  // Copies to or from it, which the caller has checked.
  void Copy(CopyRequest request);

 private:
  LentFile(LentMemory* memory, std::shared_ptr<LentOwner> owner);

  const std::shared_ptr<LentOwner> owner_;
  std::shared_ptr<LentMapping> mapping_;
};

// Half of the processors, from two to twelve: a thread copies 4 GB/s, and memory is at its limit
// before a dozen are busy. Pools have so many, and so has the memory of each owner.
[[nodiscard]] int DefaultCopyThreads();

// `loop` must outlive the device, and the device the copies of its pools. The destructor finishes
// the pieces being copied and fails the rest (kCancelled "device_closed"); every `done` is posted
// before it returns. Memory that is lent has threads of its own for each owner, which can make them
// wait; the destructor gives them a second.
class HostDevice final : public Device {
 public:
  explicit HostDevice(EventQueue* loop, int copy_threads = DefaultCopyThreads());
  ~HostDevice() override;
  HostDevice(const HostDevice&) = delete;
  HostDevice& operator=(const HostDevice&) = delete;

  [[nodiscard]] DeviceInfo info() const override;
  // Errors: as HostPool::Create.
  [[nodiscard]] Result<std::unique_ptr<DevicePool>> CreatePool(uint64_t bytes) override;
  // Errors: as HostPool::Adopt.
  [[nodiscard]] Result<std::unique_ptr<DevicePool>> AdoptPool(UniqueFd fd, uint64_t bytes) override;
  // Errors: as LentFile::Open; kResourceExhausted "threads".
  [[nodiscard]] Result<std::unique_ptr<DevicePool>> Borrow(LentMemory* memory) override;
  void Copy(CopyRequest request) override;

 private:
  // Shared by the owner's memory; made with its first. Errors: kResourceExhausted "threads".
  [[nodiscard]] Result<std::shared_ptr<LentOwner>> OwnerOf(const LentMemory& memory);

  EventQueue* const loop_;
  const int copy_threads_;  // of its pools, and of each owner's memory
  CopyThreads copier_;
  // By name. They end with their last memory.
  std::map<std::string, std::weak_ptr<LentOwner>> owners_;
};

}  // namespace kvtier
