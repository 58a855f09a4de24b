// SPDX-License-Identifier: Apache-2.0
// A pool in a sealed memfd.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <thread>

#include "base/result.h"
#include "base/unique_fd.h"
#include "gpu/device.h"

namespace kvtier {

// What the kernel reckons can be used without swapping; nothing if it does not say.
[[nodiscard]] std::optional<uint64_t> AvailableMemoryBytes();

// The memory is filled in by a background thread: zeroing takes seconds per 10 GiB, too long for
// the event loop, and left to first use it would slow the clients' decoding. Its size is sealed, so
// that no holder of the descriptor can cut it under the daemon's feet (SIGBUS).
class HostPool final : public DevicePool {
 public:
  // Errors: kInvalidArgument "empty_pool"; kResourceExhausted "pool_exceeds_memory" naming both
  // sizes, or the errno's name.
  [[nodiscard]] static Result<std::unique_ptr<HostPool>> Create(uint64_t bytes);
  ~HostPool() override;
  HostPool(const HostPool&) = delete;
  HostPool& operator=(const HostPool&) = delete;

  [[nodiscard]] uint64_t bytes() const override { return memory_.size(); }
  [[nodiscard]] int shareable_fd() const override { return fd_.get(); }
  [[nodiscard]] std::byte* data() const override { return memory_.data(); }

 private:
  HostPool(UniqueFd fd, std::span<std::byte> memory);
  void FillIn();

  const UniqueFd fd_;
  const std::span<std::byte> memory_;
  std::atomic<bool> stopping_ = false;
  std::thread filler_;
};

}  // namespace kvtier
