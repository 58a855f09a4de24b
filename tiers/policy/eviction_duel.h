// SPDX-License-Identifier: Apache-2.0
// The comparison of two orders of eviction while a pool runs: which of them serves more.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "tiers/policy/eviction_policy.h"

namespace kvtier {

// Has two orders evict from shadows of a pool and of the host memory below it. The shadows hold
// names in place of blocks, of a sample of the blocks: about 1,024, however large the tiers are.
//
// A sequence gains, in each shadow, its sampled blocks before the first that is missing, one in
// host a tenth less than one in the pool. The second order leads once the sum of its gains over the
// first's is three standard errors above nothing, and until the sum since then is one below, so
// that it costs little where it was only luck. Older gains count less, those of 3,000 sequences ago
// a third. Event loop only.
class EvictionDuel {
 public:
  // The pool's blocks, and how many of them host memory has room for.
  struct Capacity {
    uint64_t pool_blocks = 0;
    uint64_t host_blocks = 0;
  };
  using Orders = std::array<std::unique_ptr<EvictionPolicy>, 2>;

  EvictionDuel(Orders orders, Capacity capacity);

  // The block was used and has been released: those of a sequence one after the other, the deepest
  // first. Costs next to nothing for blocks that are not in the sample.
  void NoteRelease(EntryIndex entry, const BlockFacts& facts);
  // The block has got a hint: see BlockFacts::leaves_first.
  void NoteHint(const BlockFacts& facts);

  [[nodiscard]] bool second_leads() const { return second_leads_; }
  [[nodiscard]] size_t memory_bytes() const;

 private:
  struct Shadow {
    std::unique_ptr<EvictionPolicy> pool;
    EntryList host;  // nothing that the pool has
  };
  struct Name {
    uint64_t hash = 0;
    std::array<uint8_t, 2> uses{};  // in each shadow, since it came there
    bool leaves_first = false;      // see BlockFacts
  };
  struct Released {
    EntryIndex name;
    BlockFacts facts;
  };

  [[nodiscard]] bool Samples(uint64_t hash) const;
  // The name of the block; a new one if it has none.
  [[nodiscard]] EntryIndex NameOf(uint64_t hash);
  void EndSequence();
  // Uses the sequence in one shadow; how much of it was there.
  double Use(size_t side);
  void MakeRoom(Shadow* shadow);
  void ForgetIfGone(EntryIndex name);

  uint64_t sampled_below_ = UINT64_MAX;  // of hashes that are spread evenly
  Capacity capacity_;                    // of the shadows
  std::array<Shadow, 2> shadows_;
  // Ordered, since clients choose the hashes: no choice of theirs makes a search long.
  std::map<uint64_t, EntryIndex> names_by_hash_;
  std::vector<Name> names_;
  std::vector<EntryIndex> free_names_;
  std::vector<Released> sequence_;  // the one that is being released, as far as it is sampled
  EntryIndex next_released_ = kNoEntry;
  std::vector<EntryIndex> leaving_;  // the names that have left a shadow just now
  double lead_ = 0;
  double variance_ = 0;
  bool second_leads_ = false;
};

// Eviction by the order that has been measured to serve more. LRU; and while an EvictionDuel has it
// lead, the order of MakeUseClassPolicy, of which the arguments are. Both are kept up to date: the
// order takes 8 bytes for each row more than that one.
[[nodiscard]] std::unique_ptr<EvictionPolicy> MakeDuelPolicy(std::function<uint32_t()> now_s,
                                                             EvictionDuel::Capacity capacity);

}  // namespace kvtier
