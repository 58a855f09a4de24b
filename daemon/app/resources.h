// SPDX-License-Identifier: Apache-2.0
// The devices, host memory, disk tier and cold store, as the daemon has them of this machine, and
// the memory that an earlier daemon left.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/executor.h"
#include "base/posix.h"
#include "base/result.h"
#include "daemon/app/disk_retry.h"
#include "daemon/config/config.h"
#include "daemon/keeper/descriptor_store.h"
#include "daemon/resources/cold_tier.h"
#include "daemon/resources/device_opening.h"
#include "daemon/resources/disk_tier.h"
#include "daemon/resources/kept_pools.h"
#include "daemon/runtime/event_loop.h"
#include "daemon/runtime/log.h"
#include "daemon/runtime/supervision.h"
#include "daemon/session/quarantine.h"
#include "gpu/deferred_pinner.h"
#include "gpu/gpus.h"
#include "protocol/messages.h"
#include "tiers/memory/mapped_arena.h"

namespace kvtier {

// Ends the process at once: a GPU's context that is broken can only be replaced by a new process.
// May be called on the loop's thread only.
[[noreturn]] void EndForLostDevice(Log* log, const std::string& error);

// Event loop only; what opens and the destructor may also run while the loop does not. Opened in
// the order of the functions below: stores, devices, host memory.
class Resources {
 public:
  // All are borrowed and outlive this.
  struct Environment {
    const Config* config = nullptr;
    const CoarseClock* clock = nullptr;
    EventLoop* loop = nullptr;
    Log* log = nullptr;
    ServiceManager* manager = nullptr;
  };
  explicit Resources(const Environment& environment) : env_(environment) {}
  ~Resources();
  Resources(const Resources&) = delete;
  Resources& operator=(const Resources&) = delete;

  // Opens the disk tier first, because its lock tells whether another daemon runs here; then the
  // memory that an earlier daemon left in pools, and the cold store. Errors: as AnnotateWithKey
  // puts those of DiskTier::Open and ColdTier::Open.
  [[nodiscard]] Status OpenStores();
  // Errors: those of kvtier::OpenDevices.
  [[nodiscard]] Status OpenDevices();
  // Errors: those of MappedArena::Create.
  [[nodiscard]] Status OpenArena();

  // Runs work that takes milliseconds; answers arrive as events of the loop.
  [[nodiscard]] Executor* executor() { return executor_.get(); }
  [[nodiscard]] const std::vector<OpenedDevice>& devices() const { return devices_; }
  [[nodiscard]] const wire::DevicesReply& wire_devices() const { return wire_devices_; }
  [[nodiscard]] MappedArena* arena() { return arena_.get(); }
  [[nodiscard]] DescriptorStore* descriptors() { return descriptors_.get(); }
  [[nodiscard]] KeptPools* kept_pools() { return kept_pools_.get(); }
  [[nodiscard]] DiskTier* disk() { return disk_.get(); }
  [[nodiscard]] ColdStore* cold_store() { return cold_ ? cold_->store() : nullptr; }
  [[nodiscard]] bool UsesCuda() const;
  // Asks the driver of the GPUs in use whether it still knows a process; empty without any.
  [[nodiscard]] Quarantine::KernelsRemain MakeKernelsRemain();
  // No file system is asked: this may be destroyed without waiting for one.
  [[nodiscard]] bool idle() const {
    return disk_->idle() && (retry_thread_ == nullptr || !retry_thread_->busy());
  }
  // See Daemon.
  void WatchForDisk(std::function<void()> on_back);
  [[nodiscard]] std::string WhatStaysKept() const;
  // Now and then: gives memory back that clients have made the process allocate.
  void Tick();

 private:
  [[nodiscard]] Status OpenDisk();
  [[nodiscard]] Status OpenCold();
  // Behind the disk's lock, so that memory is not taken from a daemon that runs. Once.
  void OpenDescriptors();
  // Has host memory outlive this process.
  void KeepArena();
  // Its size has changed.
  void NoteKeptArena();
  // Where large memory outlives this process, its end need not be waited for.
  void EndInBackground();
  [[nodiscard]] bool MayUseCuda() const;
  // Says so when a directory that the disk tier goes without can be had.
  void WatchForDrives();

  const Environment env_;
  // Destroyed from the last to the first: none uses one that stands after it.
  const CudaGpus gpus_;
  std::unique_ptr<DeferredPinner> pinner_;  // null: no GPU
  std::vector<OpenedDevice> devices_;       // by DeviceIndex
  wire::DevicesReply wire_devices_;
  std::unique_ptr<MappedArena> arena_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<DescriptorStore> descriptors_;
  std::unique_ptr<KeptPools> kept_pools_;
  std::unique_ptr<DiskTier> disk_;
  std::optional<UniqueFd> unused_keys_;           // of a disk tier that could not be had
  std::optional<Error> without_disk_;             // why
  std::unique_ptr<ColdTier> cold_;                // null: off
  std::unique_ptr<ThreadExecutor> retry_thread_;  // null: nothing is missing
  std::unique_ptr<DiskRetry> disk_retry_;         // null: all is there, or cannot come by itself
  bool ends_in_background_ = false;
  int64_t trim_at_ms_ = 0;
};

}  // namespace kvtier
