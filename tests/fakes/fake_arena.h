// SPDX-License-Identifier: Apache-2.0
// A host arena that grows when it is told, and that may outlive the caches that use it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>

#include "base/result.h"
#include "tests/fakes/aligned_bytes.h"
#include "tiers/memory/host_arena.h"
#include "tiers/memory/host_table.h"

namespace kvtier {

class FakeArena final : public HostArena {
 public:
  // `ready_bytes` of `capacity_bytes` are usable at once. With a table beside it if `slab_bytes`
  // is not 0. The capacity is the limit, too.
  FakeArena(uint64_t capacity_bytes, uint64_t ready_bytes, uint64_t slab_bytes = 0)
      : memory_(capacity_bytes, 0xda), capacity_bytes_(capacity_bytes), ready_bytes_(ready_bytes) {
    KVT_CHECK(ready_bytes <= capacity_bytes);
    if (slab_bytes == 0 || capacity_bytes == 0) return;
    const HostTableShape shape{.arena_bytes = capacity_bytes, .slab_bytes = slab_bytes};
    table_memory_.emplace(HostTable::BytesFor(shape), 0);
    const auto bytes = table_memory_->Slice(0, table_memory_->size());
    HostTable::Format(shape, bytes);
    table_.emplace(shape, bytes);
  }

  [[nodiscard]] uint64_t capacity_bytes() const override { return capacity_bytes_; }
  [[nodiscard]] uint64_t limit_bytes() const override { return memory_.size(); }
  [[nodiscard]] uint64_t ready_bytes() const override { return ready_bytes_; }
  [[nodiscard]] bool growing() const override { return !ended_ && ready_bytes_ < capacity_bytes_; }
  [[nodiscard]] std::byte* data() override { return memory_.data(); }
  void OnGrowth(std::function<void(std::span<std::byte>)> listener) override {
    listener_ = std::move(listener);
  }

  // Memory beyond the capacity loses its bytes, and is ready again when Grow says so.
  void Resize(uint64_t bytes) override {
    capacity_bytes_ = bytes;
    ready_bytes_ = std::min(ready_bytes_, bytes);
    ended_ = false;
    std::ranges::fill(memory_.Slice(bytes, memory_.size() - bytes), std::byte{0xdb});
    if (table_) table_->Resize(bytes);
  }

  [[nodiscard]] HostTable* table() override { return table_ ? &*table_ : nullptr; }
  // All bytes of the table, to be damaged; none without a table.
  [[nodiscard]] std::span<std::byte> table_bytes() {
    if (!table_memory_) return {};
    return table_memory_->Slice(0, table_memory_->size());
  }

  // Another process has the same memory and capacity; so much of it is usable at once.
  void Restart(uint64_t ready_bytes) {
    ready_bytes_ = std::min(ready_bytes, capacity_bytes_);
    ended_ = false;
    listener_ = nullptr;
  }

  // The machine has no more memory.
  void EndGrowth() { ended_ = true; }
  // The next `bytes` become usable. REQUIRES: as many are left of the capacity.
  void Grow(uint64_t bytes) {
    const std::span<std::byte> slice = memory_.Slice(ready_bytes_, bytes);
    ready_bytes_ += bytes;
    if (listener_) listener_(slice);
  }

 private:
  const AlignedBytes memory_;
  uint64_t capacity_bytes_;
  uint64_t ready_bytes_;
  bool ended_ = false;
  std::optional<AlignedBytes> table_memory_;
  std::optional<HostTable> table_;
  std::function<void(std::span<std::byte>)> listener_;
};

}  // namespace kvtier
