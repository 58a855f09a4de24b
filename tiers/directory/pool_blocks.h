// SPDX-License-Identifier: Apache-2.0
// The blocks of one pool: state, generation, owner, references. Knows nothing of what the blocks
// hold or why they move.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/ids.h"
#include "tiers/types/entry_index.h"
#include "tiers/types/pool_place.h"

namespace kvtier {

enum class PoolBlockState : uint8_t {
  kFree,
  kPrivate,      // writable by one session, not findable
  kQuarantined,  // was private to a session that ended while its process may still write
  kCommitted,    // belongs to a directory entry; immutable once loaded
  kOrphaned,     // its load failed; findable by nobody, kept until its references are dropped
};
inline constexpr int kPoolBlockStateCount = 5;

struct PoolBlock {
  EntryIndex entry = kNoEntry;  // kCommitted only
  uint32_t generation = 0;
  uint32_t references = 0;  // over all sessions; kCommitted and kOrphaned
  BlockIndex previous = kNoBlock, next = kNoBlock;
  uint32_t since_ds = 0;  // kCommitted: when its bytes came here (CacheState::NowDs)
  SessionId owner;        // kPrivate and kQuarantined
  PoolPlace elsewhere;    // kCommitted: the next of the pools that hold the entry
  PoolBlockState state = PoolBlockState::kFree;
  uint8_t pins = 0;         // copies under way
  bool loading = false;     // kCommitted: awaits its bytes
  bool prefetched = false;  // loading though nobody references it
};
static_assert(sizeof(PoolBlock) <= 40);

// Blocks of one session, in one state, linked through PoolBlock.
struct PoolBlockList {
  BlockIndex first = kNoBlock;
  uint32_t size = 0;
};

// Event loop only.
class PoolBlocks {
 public:
  explicit PoolBlocks(uint32_t blocks);

  [[nodiscard]] uint32_t size() const { return static_cast<uint32_t>(blocks_.size()); }
  [[nodiscard]] uint32_t free() const { return free_.size; }
  [[nodiscard]] uint32_t count(PoolBlockState state) const {
    return counts_[static_cast<size_t>(state)];
  }
  [[nodiscard]] PoolBlock& operator[](BlockIndex block) { return blocks_[block.value]; }
  [[nodiscard]] const PoolBlock& operator[](BlockIndex block) const { return blocks_[block.value]; }
  [[nodiscard]] BlockHandle HandleOf(BlockIndex block) const {
    return {block, blocks_[block.value].generation};
  }
  // Whether the handle names a block that has not returned to the free list since.
  [[nodiscard]] bool Current(BlockHandle handle) const {
    return handle.index.value < blocks_.size() &&
           blocks_[handle.index.value].generation == handle.generation &&
           blocks_[handle.index.value].state != PoolBlockState::kFree;
  }

  // A free block, now private to `owner` and in `list`. REQUIRES: free() > 0.
  BlockIndex TakePrivate(SessionId owner, PoolBlockList* list);
  // A free block, now committed for `entry`, without references. REQUIRES: free() > 0.
  BlockIndex TakeCommitted(EntryIndex entry);
  // private -> committed with one reference. REQUIRES: the block is in `list`.
  void Commit(BlockIndex block, EntryIndex entry, PoolBlockList* list);
  // committed -> orphaned: the block has lost its entry. REQUIRES: references > 0.
  void Orphan(BlockIndex block);
  // private -> quarantined, all of them, keeping the list.
  void Quarantine(PoolBlockList* list);
  // Any state -> free, with a new generation. `list` is the one a private or quarantined block is
  // in, else null. REQUIRES: no pins.
  void Free(BlockIndex block, PoolBlockList* list);

 private:
  void Link(BlockIndex block, PoolBlockList* list);
  void Unlink(BlockIndex block, PoolBlockList* list);
  BlockIndex TakeFree();
  void SetState(PoolBlock* block, PoolBlockState state);

  std::vector<PoolBlock> blocks_;
  std::array<uint32_t, kPoolBlockStateCount> counts_{};
  PoolBlockList free_;
};

}  // namespace kvtier
