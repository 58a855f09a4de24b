// SPDX-License-Identifier: Apache-2.0
// The host tier's memory: one mapping, touched in the background slice by slice and usable from the
// first slice on. Its size may change.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

namespace kvtier {

class HostTable;

class HostArena {
 public:
  virtual ~HostArena() = default;
  // The size that it has or is to reach; a multiple of the slab size.
  [[nodiscard]] virtual uint64_t capacity_bytes() const = 0;
  // The first `ready_bytes()` may be used; grows up to the capacity.
  [[nodiscard]] virtual uint64_t ready_bytes() const = 0;
  // Whether more of it will be ready. False before the capacity is reached if memory has ended.
  [[nodiscard]] virtual bool growing() const = 0;
  // The size to count on: memory that will be ready counts, memory that has ended does not.
  [[nodiscard]] uint64_t expected_bytes() const {
    return growing() ? capacity_bytes() : ready_bytes();
  }
  // The highest capacity that Resize takes.
  [[nodiscard]] virtual uint64_t limit_bytes() const = 0;
  // Changes the capacity. Memory beyond it is given back in the background, and becomes ready anew
  // when the capacity rises again. REQUIRES: a multiple of the slab size, a slab at least, within
  // the limit; nothing uses memory beyond it, and nothing is recorded of it in the table.
  virtual void Resize(uint64_t bytes) = 0;
  [[nodiscard]] virtual std::byte* data() = 0;
  // The table of memory that outlives the process; null if it does not. It may tell of blocks that
  // another process has left.
  [[nodiscard]] virtual HostTable* table() { return nullptr; }
  // Called on the event loop after each growth with the new slice. At most one listener.
  virtual void OnGrowth(std::function<void(std::span<std::byte>)> listener) = 0;
};

}  // namespace kvtier
