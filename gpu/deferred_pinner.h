// SPDX-License-Identifier: Apache-2.0
// Pinning that waits for a GPU. Host memory is registered with CUDA through some GPU's context, and
// a context costs hundreds of megabytes of that GPU: before a client wants one, none is made, and
// the memory that asks to be pinned is noted.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <utility>

#include "base/executor.h"
#include "base/gate.h"
#include "gpu/host_pinner.h"

namespace kvtier {

// Pin and Unpin on any thread, the rest on the event loop's. Outlives the memory that it pins; all
// work given to the executor has ended when it is destroyed.
class DeferredPinner final : public HostPinner {
 public:
  // The executor is borrowed. `log` is called on the event loop when noted memory could not be
  // pinned; it may be empty.
  DeferredPinner(std::shared_ptr<HostPinner> pinner, Executor* executor,
                 std::function<void(std::string)> log)
      : pinner_(std::move(pinner)), executor_(executor), log_(std::move(log)) {}

  // There is a context: noted memory is pinned piece by piece in the background, the earliest
  // first. Does nothing the second time.
  void Begin();
  // For the devices that are opened.
  [[nodiscard]] const std::shared_ptr<HostPinner>& pinner() const { return pinner_; }

  // Notes the memory, and pins nothing, before Begin; then as the pinner's own.
  [[nodiscard]] Status Pin(std::span<std::byte> memory) override;
  void Unpin(std::span<std::byte> memory) override;
  void GiveWay() override { (void)opening_.Wait(); }
  // For the devices: an Urgent of it lives while one is opened, or makes a pool.
  [[nodiscard]] PinGate* opening() { return &opening_; }

 private:
  void PinNext();

  const std::shared_ptr<HostPinner> pinner_;
  Executor* const executor_;
  const std::function<void(std::string)> log_;
  PinGate opening_;
  std::mutex mutex_;
  bool begun_ = false;                      // guarded by mutex_
  std::deque<std::span<std::byte>> noted_;  // guarded by mutex_
  std::set<std::byte*> unpinned_;           // guarded by mutex_: what could not be pinned late
  std::byte* pinning_ = nullptr;            // guarded by mutex_: is pinned just now
  std::condition_variable pinned_;
  Gate gate_;
};

}  // namespace kvtier
