// SPDX-License-Identifier: Apache-2.0
// The records of a pool's blocks, by number. A record is made when its block is first named, so
// that a pool or region of very many blocks costs nothing before they are used.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "base/ids.h"
#include "tiers/directory/block_lifecycle.h"

namespace kvtier {

// Event loop only.
class BlockRecords {
 public:
  // A pool's records stay once they have been made, a page of them at a time: its blocks are used
  // again and again. A block of a region is in use for the time of a transfer only, and its record
  // goes with that: engines lend regions of a million blocks and move a few of them at once.
  enum class Stay : uint8_t { kForEver, kWhileTaken };
  BlockRecords(uint32_t size, Stay stay)
      : size_(size), stay_(stay), pages_(stay == Stay::kForEver ? PagesFor(size) : 0) {}

  [[nodiscard]] uint32_t size() const { return size_; }
  // The block's record; that of a block which was never taken if it has none.
  [[nodiscard]] const PoolBlock& operator[](BlockIndex block) const {
    if (stay_ == Stay::kForEver) {
      const std::unique_ptr<Page>& page = pages_[block.value / kPageRecords];
      return page ? (*page)[block.value % kPageRecords] : kUntaken;
    }
    const auto found = taken_.find(block);
    return found == taken_.end() ? kUntaken : found->second;
  }
  // The same to be changed; makes it if there is none.
  [[nodiscard]] PoolBlock& At(BlockIndex block) {
    if (stay_ == Stay::kWhileTaken) return TakenAt(block);
    std::unique_ptr<Page>& page = pages_[block.value / kPageRecords];
    if (!page) MakePage(&page);
    return (*page)[block.value % kPageRecords];
  }
  // The block is free. True if that was the end of its record.
  bool Drop(BlockIndex block) { return stay_ == Stay::kWhileTaken && taken_.erase(block) > 0; }

 private:
  static constexpr size_t kPageRecords = 512;
  using Page = std::array<PoolBlock, kPageRecords>;
  static const PoolBlock kUntaken;

  [[nodiscard]] static size_t PagesFor(uint32_t size) {
    return (size + kPageRecords - 1) / kPageRecords;
  }
  static void MakePage(std::unique_ptr<Page>* page);
  PoolBlock& TakenAt(BlockIndex block);

  uint32_t size_;
  Stay stay_;
  std::vector<std::unique_ptr<Page>> pages_;
  std::unordered_map<BlockIndex, PoolBlock> taken_;
  uint32_t last_generation_ = 0;  // of records that came and went
};

}  // namespace kvtier
