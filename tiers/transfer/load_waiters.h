// SPDX-License-Identifier: Apache-2.0
// Which loads wait for which blocks.
#pragma once

#include <cstdint>
#include <memory>

#include "base/ids.h"

namespace kvtier {

struct LoadWaiter {
  LoadId load;
  uint32_t position = 0;   // among the load's hits
  bool in_layers = false;  // the block arrives layer by layer
};

// Blocks are named by ArrivalKey. A block costs one look-up and, but for growth, no allocation.
// Event loop only.
class LoadWaiters {
 public:
  LoadWaiters();
  ~LoadWaiters();
  LoadWaiters(const LoadWaiters&) = delete;
  LoadWaiters& operator=(const LoadWaiters&) = delete;

  void Add(uint64_t block, const LoadWaiter& waiter);
  // Calls `visit(const LoadWaiter&)` for each that waits for the block, the latest first. `visit`
  // must not change this table.
  template <typename Visit>
  void ForEach(uint64_t block, Visit visit) const {
    for (uint32_t row = FirstOf(block); row != kNone; row = At(row).next) visit(At(row).waiter);
  }
  // The same, and nobody waits for it any more; `visit` may do anything.
  template <typename Visit>
  void Take(uint64_t block, Visit visit) {
    for (uint32_t row = Extract(block); row != kNone;) {
      const Row taken = Free(row);
      row = taken.next;
      visit(taken.waiter);
    }
  }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Row {
    LoadWaiter waiter;
    uint32_t next = kNone;  // of the same block, or free
  };
  struct Table;

  [[nodiscard]] uint32_t FirstOf(uint64_t block) const;
  [[nodiscard]] uint32_t Extract(uint64_t block);
  [[nodiscard]] const Row& At(uint32_t row) const;
  Row Free(uint32_t row);

  const std::unique_ptr<Table> table_;
};

}  // namespace kvtier
