// SPDX-License-Identifier: Apache-2.0
// A host arena that grows when it is told.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>

#include "base/result.h"
#include "tests/fakes/aligned_bytes.h"
#include "tiers/memory/host_arena.h"

namespace kvtier {

class FakeArena final : public HostArena {
 public:
  // `ready_bytes` of `capacity_bytes` are usable at once.
  FakeArena(uint64_t capacity_bytes, uint64_t ready_bytes)
      : memory_(capacity_bytes, 0xda), ready_bytes_(ready_bytes) {
    KVT_CHECK(ready_bytes <= capacity_bytes);
  }

  [[nodiscard]] uint64_t capacity_bytes() const override { return memory_.size(); }
  [[nodiscard]] uint64_t ready_bytes() const override { return ready_bytes_; }
  [[nodiscard]] std::byte* data() override { return memory_.data(); }
  void OnGrowth(std::function<void(std::span<std::byte>)> listener) override {
    listener_ = std::move(listener);
  }

  // The next `bytes` become usable. REQUIRES: as many are left.
  void Grow(uint64_t bytes) {
    const std::span<std::byte> slice = memory_.Slice(ready_bytes_, bytes);
    ready_bytes_ += bytes;
    if (listener_) listener_(slice);
  }

 private:
  const AlignedBytes memory_;
  uint64_t ready_bytes_;
  std::function<void(std::span<std::byte>)> listener_;
};

}  // namespace kvtier
