// SPDX-License-Identifier: Apache-2.0
// The slabs of a tier that pins hold: a slab changes its slot size only when it is empty, so that
// one pinned block keeps all of its slab from blocks of other sizes.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

#include "tiers/memory/slab_allocator.h"

namespace kvtier {

// The pinned slabs of one tier. Event loop only.
class PinnedSlabs {
 public:
  PinnedSlabs() = default;
  PinnedSlabs(const PinnedSlabs&) = delete;
  PinnedSlabs& operator=(const PinnedSlabs&) = delete;

  // The tier's allocator, which is borrowed, knows the classes of slabs. REQUIRES: none is pinned.
  void SetAllocator(const SlabAllocator* allocator) { allocator_ = allocator; }
  // A pinned block of so many bytes has come to the slab, or a block there was pinned.
  void Add(uint64_t slab, uint64_t bytes);
  // The reverse.
  void Remove(uint64_t slab, uint64_t bytes);
  [[nodiscard]] bool Has(uint64_t slab) const { return slabs_.contains(slab); }
  // Whether slabs of the class may go.
  using MayGo = std::function<bool(const SlotClass&)>;
  // Pins may hold `most_held` slabs, those with the most of pinned blocks: the slab with the least
  // of the others that may go and does not leave. Looks at each class once, and at `steps` slabs of
  // it at most.
  [[nodiscard]] std::optional<uint64_t> LeastBeyond(uint64_t most_held, uint64_t steps,
                                                    const MayGo& may_go);

 private:
  using BytesAndSlab = std::pair<uint64_t, uint64_t>;
  using Slabs = std::set<BytesAndSlab>;
  struct Pinned {
    SlotClass slots;
    uint64_t bytes = 0;
  };

  void Enter(const SlotClass& slots, const BytesAndSlab& slab);
  void Leave(const SlotClass& slots, const BytesAndSlab& slab);
  [[nodiscard]] bool Beyond(const BytesAndSlab& slab) const {
    return held_from_ == all_.end() || slab < *held_from_;
  }

  const SlabAllocator* allocator_ = nullptr;
  std::unordered_map<uint64_t, Pinned> slabs_;
  std::unordered_map<SlotClass, Slabs, SlotClassHash> by_class_;  // none empty
  Slabs all_;
  // Where the slabs that pins may hold begin, as of the last call of LeastBeyond, and how many
  // stand before: the next call passes no more than have come or gone since.
  Slabs::iterator held_from_ = all_.end();
  uint64_t beyond_ = 0;
};

struct PinnedSlabsByTier {
  PinnedSlabs host, disk;
};

}  // namespace kvtier
