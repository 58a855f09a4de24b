// SPDX-License-Identifier: Apache-2.0
// How many references one session holds on each block of one pool.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/ids.h"

namespace kvtier {

// Pages of counters, so that a look-up is two loads and a session that touches few blocks of a
// large pool stays small. Event loop only.
class ReferenceCounts {
 public:
  [[nodiscard]] uint32_t Get(BlockIndex block) const {
    const size_t page = block.value / kPageBlocks;
    if (page >= pages_.size() || !pages_[page]) return 0;
    return (*pages_[page])[block.value % kPageBlocks];
  }

  void Add(BlockIndex block) {
    const size_t page = block.value / kPageBlocks;
    if (page >= pages_.size()) pages_.resize(page + 1);
    if (!pages_[page]) pages_[page] = std::make_unique<Page>();
    ++(*pages_[page])[block.value % kPageBlocks];
    ++total_;
  }

  // REQUIRES: Get(block) > 0.
  void Drop(BlockIndex block) {
    --(*pages_[block.value / kPageBlocks])[block.value % kPageBlocks];
    --total_;
  }

  [[nodiscard]] uint64_t total() const { return total_; }

  // Calls `visit(block, count)` for each block with references, in order of index.
  template <typename Visit>
  void ForEach(Visit visit) const {
    for (size_t page = 0; page < pages_.size(); ++page) {
      if (!pages_[page]) continue;
      for (size_t i = 0; i < kPageBlocks; ++i) {
        const uint32_t count = (*pages_[page])[i];
        if (count > 0) visit(BlockIndex(static_cast<uint32_t>(page * kPageBlocks + i)), count);
      }
    }
  }

 private:
  static constexpr size_t kPageBlocks = 1024;
  using Page = std::array<uint32_t, kPageBlocks>;
  std::vector<std::unique_ptr<Page>> pages_;
  uint64_t total_ = 0;
};

}  // namespace kvtier
