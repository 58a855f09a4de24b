// SPDX-License-Identifier: Apache-2.0
// The slabs of a tier that pins hold: a slab changes its slot size only when it is empty, so that
// one pinned block keeps all of its slab from blocks of other sizes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

namespace kvtier {

// The pinned slabs of one tier. Event loop only.
class PinnedSlabs {
 public:
  // A pinned block of so many bytes has come to the slab, or a block there was pinned.
  void Add(uint64_t slab, uint64_t bytes) { Set(slab, bytes_[slab] + bytes); }
  // The reverse.
  void Remove(uint64_t slab, uint64_t bytes) { Set(slab, bytes_[slab] - bytes); }
  [[nodiscard]] bool Has(uint64_t slab) const { return bytes_.contains(slab); }
  // Pins may hold `most_held` slabs, those with the most of pinned blocks: the slab with the least
  // of the others that `may_go` admits. Looks at `steps` slabs at most.
  template <typename MayGo>
  [[nodiscard]] std::optional<uint64_t> LeastBeyond(uint64_t most_held, uint64_t steps,
                                                    MayGo may_go) const {
    const uint64_t held = by_bytes_.size();
    uint64_t left = std::min(steps, held - std::min(held, most_held));
    for (auto at = by_bytes_.begin(); left > 0; ++at, --left) {
      if (may_go(at->second)) return at->second;
    }
    return std::nullopt;
  }

 private:
  void Set(uint64_t slab, uint64_t bytes) {
    by_bytes_.erase({bytes_[slab], slab});
    bytes_[slab] = bytes;
    if (bytes > 0) {
      by_bytes_.emplace(bytes, slab);
    } else {
      bytes_.erase(slab);
    }
  }

  std::unordered_map<uint64_t, uint64_t> bytes_;      // by slab, of those with pinned blocks
  std::set<std::pair<uint64_t, uint64_t>> by_bytes_;  // bytes and slab, of those with pinned blocks
};

struct PinnedSlabsByTier {
  PinnedSlabs host, disk;
};

}  // namespace kvtier
