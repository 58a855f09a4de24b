// SPDX-License-Identifier: Apache-2.0
// The blocks of one pool: state, generation, owner, references. Knows nothing of the blocks'
// contents or why they move.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/ids.h"
#include "tiers/directory/block_lifecycle.h"
#include "tiers/memory/pool_table.h"

namespace kvtier {

// The records of a pool's blocks, by number. A record is made when its block is first named, so
// that a pool or region of very many blocks costs nothing before they are used. Event loop only.
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

// Blocks of one session, in one state, linked through PoolBlock.
struct PoolBlockList {
  BlockIndex first = kNoBlock;
  uint32_t size = 0;
};

// Event loop only.
class PoolBlocks {
 public:
  explicit PoolBlocks(uint32_t blocks) : PoolBlocks(blocks, BlockRecords::Stay::kForEver) {}
  // Blocks that are taken by their numbers alone.
  [[nodiscard]] static PoolBlocks OfRegion(uint32_t blocks) {
    return {blocks, BlockRecords::Stay::kWhileTaken};
  }
  // From now on the table beside the pool's memory is told of every change, before the caller
  // is; null: there is none. Borrowed; it outlives this. REQUIRES: all blocks are free, and the
  // table's records of them are done with, or as Adopt and Withhold say next.
  void SetTable(PoolTable* table) { table_ = table; }
  [[nodiscard]] PoolTable* table() const { return table_; }

  [[nodiscard]] uint32_t size() const { return blocks_.size(); }
  [[nodiscard]] uint32_t free() const { return count(PoolBlockState::kFree); }
  [[nodiscard]] uint32_t count(PoolBlockState state) const {
    return counts_[static_cast<size_t>(state)];
  }
  // Committed blocks that await their bytes.
  [[nodiscard]] uint32_t loading() const { return loading_; }
  [[nodiscard]] const PoolBlock& operator[](BlockIndex block) const { return blocks_[block]; }
  // The record, to change all of it but the state. REQUIRES: the block is not free.
  [[nodiscard]] PoolBlock& Taken(BlockIndex block) { return blocks_.At(block); }
  [[nodiscard]] BlockHandle HandleOf(BlockIndex block) const {
    return {block, blocks_[block].generation};
  }
  // Whether the handle names a block that has not returned to the free list since.
  [[nodiscard]] bool Current(BlockHandle handle) const {
    if (handle.index.value >= blocks_.size()) return false;
    const PoolBlock& record = blocks_[handle.index];
    return record.generation == handle.generation && record.state() != PoolBlockState::kFree;
  }

  // A free block, now private to `owner` and in `list`; `holder` is the owner's number in the
  // table, if it has one. REQUIRES: free() > 0.
  BlockIndex TakePrivate(SessionId owner, std::optional<uint32_t> holder, PoolBlockList* list);
  // A free block, now committed for `entry`, without references. REQUIRES: free() > 0.
  BlockIndex TakeCommitted(EntryIndex entry);
  // The same for the block of this number. REQUIRES: it is free.
  void TakeCommitted(BlockIndex block, EntryIndex entry);
  // private -> committed with one reference. REQUIRES: the block is in `list`.
  void Commit(BlockIndex block, EntryIndex entry, PoolBlockList* list);
  // The events that need no more than the transition.
  void Prefetch(BlockIndex block) { Apply(block, PoolEvent::kPrefetch); }
  void BeginLoad(BlockIndex block) { Apply(block, PoolEvent::kBeginLoad); }
  void EndLoad(BlockIndex block) { Apply(block, PoolEvent::kEndLoad); }
  void Pin(BlockIndex block) { Apply(block, PoolEvent::kPin); }
  void Unpin(BlockIndex block) { Apply(block, PoolEvent::kUnpin); }
  // So many more sessions or operations hold the block. True if none held it before.
  bool Reference(BlockIndex block, uint32_t times = 1);
  // So many fewer hold it. True if none holds it any more.
  bool Unreference(BlockIndex block, uint32_t times = 1);
  // committed -> orphaned: the block has lost its entry. REQUIRES: references > 0.
  void Orphan(BlockIndex block);
  // private -> quarantined, at most `most` of them, from one list to the other. Returns how many.
  uint32_t Quarantine(PoolBlockList* from, PoolBlockList* to, uint32_t most);
  // quarantined -> private, from one list to the other: the process is still there, and `owner` is
  // its session now. `holder` as of TakePrivate.
  void Resume(BlockIndex block, SessionId owner, std::optional<uint32_t> holder,
              PoolBlockList* from, PoolBlockList* to);
  // Handles of an earlier daemon's life name the block if they are of this generation. REQUIRES:
  // the block is free.
  void BeginAt(BlockIndex block, uint32_t generation) { blocks_.At(block).generation = generation; }
  // free -> quarantined: an earlier daemon left the block to a process that may still write to it.
  // `owner` is the session that stands for the process's.
  void Withhold(BlockIndex block, SessionId owner, PoolBlockList* list);
  // The block is whole, as the table is to say. REQUIRES: committed, not loading.
  void Record(BlockIndex block, const PoolEntryFacts& facts);
  // The uses, times or retention of a block that stays whole have changed. Does nothing if the
  // table does not know it as whole.
  void RecordUse(BlockIndex block, const PoolEntryFacts& facts);
  // Any state -> free, so that no handle names the block any more. `list` is the one that a
  // private or quarantined block is in, else null. REQUIRES: no pins.
  void Free(BlockIndex block, PoolBlockList* list);

 private:
  PoolBlocks(uint32_t blocks, BlockRecords::Stay stay);
  void Link(BlockIndex block, PoolBlockList* list);
  void Unlink(BlockIndex block, PoolBlockList* list);
  BlockIndex TakeFree();
  // The free block leaves the line of those to be taken.
  void TakeFromLine(BlockIndex block);
  void Apply(BlockIndex block, PoolEvent event);
  // Tells the table of a block that is free, or may be written to.
  void Tell(BlockIndex block);
  // Tells the table that the first reference came or the last one went.
  void RecordReferences(BlockIndex block);

  BlockRecords blocks_;
  std::array<uint32_t, kPoolBlockStateCount> counts_{};
  uint32_t loading_ = 0;
  // Free blocks in the order in which they are taken: those that were taken before, then those from
  // `untaken_` on, which may have no records. A region's blocks stand in no line.
  bool in_line_ = true;
  PoolBlockList free_;
  uint32_t untaken_ = 0;
  PoolTable* table_ = nullptr;
};

}  // namespace kvtier
