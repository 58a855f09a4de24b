// SPDX-License-Identifier: Apache-2.0
// Which region holds a block beside the tiers, by what its engine has stored from it: a source of
// loads into other regions and pools of the GPUs that can read it.
//
// The engine may overwrite its memory at any time and is asked nothing. It publishes its blocks,
// and the daemon looks at that while the block is stored, and again when a copy has landed
// (PublishedBlocks).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/gate.h"
#include "tiers/state/cache_state.h"

namespace kvtier {

// A block of a pool or, with a number, one that a region's engine has published under it.
struct NeighbourSource {
  CachePool* pool = nullptr;
  BlockIndex block = kNoBlock;
  uint64_t number = 0;
};

// Event loop only. It has one region for an entry and one entry for a block of a region, so that it
// is bounded by the blocks of the regions that are open.
class RegionSources {
 public:
  struct Stored {
    BlockIndex block;
    EntryRef entry;
  };

  explicit RegionSources(CacheState* state) : state_(*state) {}

  // The engine has blocks of the region stored as these entries, which nothing of this host held.
  void Note(CachePool* region, std::vector<Stored> blocks);
  // A region other than `reader` that held the entry when it was last looked at.
  [[nodiscard]] std::optional<NeighbourSource> Find(const CachePool& reader,
                                                    EntryIndex entry) const;
  [[nodiscard]] bool empty() const { return places_.empty(); }
  // The entry's place is none: its engine has retracted it.
  void Drop(EntryIndex entry);
  // The region is no source before more of its blocks are stored.
  void DropAll(PoolId region);
  // The region is closed.
  void Forget(PoolId region) {
    DropAll(region);
    regions_.erase(region);
  }

 private:
  struct Place {
    PoolId region;
    BlockIndex block;
    uint64_t number = 0;
    EntryRef entry;
  };
  struct Region {
    std::unordered_map<BlockIndex, EntryIndex> held;
    uint32_t looks = 0;  // under way
  };
  void OnLooked(PoolId region, const std::vector<Stored>& blocks,
                const std::vector<uint64_t>& numbers);
  void Put(PoolId region, const Stored& stored, uint64_t number);

  CacheState& state_;
  std::unordered_map<EntryIndex, Place> places_;
  std::unordered_map<PoolId, Region> regions_;
  Gate gate_;  // last
};

}  // namespace kvtier
