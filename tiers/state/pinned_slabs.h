// SPDX-License-Identifier: Apache-2.0
// The slabs of a tier that pins hold: a slab changes its slot size only when it is empty, so that
// one pinned block keeps all of its slab from blocks of other sizes.
#pragma once

#include <cstdint>
#include <vector>

namespace kvtier {

// The pinned slabs of one tier. Event loop only.
class PinnedSlabs {
 public:
  // A pinned block of so many bytes has come to the slab, or a block there was pinned.
  void Add(uint64_t slab, uint64_t bytes) {
    if (slab >= bytes_.size()) bytes_.resize(slab + 1);
    if (bytes_[slab] == 0) ++held_;
    bytes_[slab] += bytes;
    all_bytes_ += bytes;
  }
  // The reverse.
  void Remove(uint64_t slab, uint64_t bytes) {
    bytes_[slab] -= bytes;
    all_bytes_ -= bytes;
    if (bytes_[slab] == 0) --held_;
  }
  [[nodiscard]] bool Has(uint64_t slab) const { return slab < bytes_.size() && bytes_[slab] > 0; }
  // Whether pins keep the slab from blocks of other sizes: they hold no more than this share of the
  // tier's `slabs`, or it has more of pinned blocks than the held slabs have on average. Pins that
  // are spread over many slabs so give way before those that lie together.
  [[nodiscard]] bool Keep(uint64_t slab, uint64_t slabs, double share) const {
    const auto most_held = static_cast<uint64_t>(share * static_cast<double>(slabs));
    return Has(slab) && (held_ <= most_held || bytes_[slab] > all_bytes_ / held_);
  }

 private:
  std::vector<uint64_t> bytes_;  // by slab
  uint64_t held_ = 0;            // slabs
  uint64_t all_bytes_ = 0;
};

}  // namespace kvtier
