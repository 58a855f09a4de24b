// SPDX-License-Identifier: Apache-2.0
// How likely blocks are to be used again, by how often they were used and how long they have been
// idle: learned from a sample of the blocks, without constants that are fitted to a workload.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "tiers/types/block_key_hash.h"

namespace kvtier {

// An episode is the time from when a block became evictable until it was used again, whether or not
// it was evicted meanwhile. The latest episodes of a sample are kept: of all blocks at first, and
// of half of them each time that the episodes of the last hours are more than can be kept, so that
// few blocks are learned from as well as many. From the episodes follow the rate of use at each age
// and, from those rates, the rank of a block: the most uses to be expected of it for each second
// that it is kept, over all times for which it might be kept (a Gittins index). The block of the
// lowest rank is the one to evict.
//
// Rates are estimated for each class of uses; a class of which little is known is drawn towards the
// rates of all classes together. Event loop only.
class SurvivalTable {
 public:
  // Blocks used once, twice, 3 or 4, 5 to 8, and more than 8 times.
  static constexpr size_t kClasses = 5;
  static constexpr size_t kMaxEpisodes = 32'768;  // of 16 bytes

  // REQUIRES: uses > 0.
  [[nodiscard]] static size_t ClassOf(uint32_t uses);

  // The block is idle from now on. Does nothing if it was so before and has not been used since, or
  // if it is not in the sample.
  void BeginEpisode(uint64_t block, size_t use_class, uint32_t now_s);
  // The block is used. Does nothing if no episode of it is known.
  void EndEpisode(uint64_t block, uint32_t now_s);
  // Computes the ranks from the episodes so far; those that have not ended count as blocks that
  // were not used up to now. Takes one pass over the episodes. Samples more blocks from now on if
  // episodes have become few.
  void Learn(uint32_t now_s);

  // Before anything has been learned, the rank of the longest idle is the lowest, as in LRU.
  [[nodiscard]] double Rank(size_t use_class, uint32_t idle_s) const;

  [[nodiscard]] size_t memory_bytes() const;

 private:
  // Ages are told apart in steps that grow with the age: the last begins after 21 hours.
  static constexpr size_t kAges = 24;
  using PerAge = std::array<double, kAges>;

  struct Episode {
    uint64_t block = 0;
    uint32_t began_s = 0;
    uint32_t idle_s : 28 = 0;  // once it has ended
    uint32_t use_class : 3 = 0;
    uint32_t ended : 1 = 0;
  };
  static_assert(sizeof(Episode) == 16);

  // The statistics of one class's episodes, or of all.
  struct Observed {
    PerAge uses{};
    PerAge seconds{};  // that blocks of this age were watched
  };

  // Always the same blocks for the same size of the sample; a smaller one has some of these.
  [[nodiscard]] bool Samples(uint64_t block) const;
  // Halves the sample. REQUIRES: the episodes are as many as can be kept.
  void HalveSample();
  [[nodiscard]] static size_t AgeOf(double idle_s);
  [[nodiscard]] std::array<Observed, kClasses> Observe(uint32_t now_s) const;
  // By age, from the rates of use at each.
  [[nodiscard]] static PerAge RanksOf(const PerAge& rates);

  uint32_t halvings_ = 0;          // the sample is one block in 2^halvings_
  std::vector<Episode> episodes_;  // grows up to its bound; from then on the oldest is replaced
  size_t next_ = 0;                // the place of the next episode
  // Block -> place of its episode, until it ends.
  std::unordered_map<uint64_t, uint32_t, BlockKeyHash> open_;
  std::array<PerAge, kClasses> ranks_{};
  bool learned_ = false;
};

}  // namespace kvtier
