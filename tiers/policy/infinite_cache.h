// SPDX-License-Identifier: Apache-2.0
// Estimates what even a cache that never forgets would have missed: the difference to the real
// misses is what more space or longer retention could win.
//
// Remembers which blocks were ever committed, not exactly but by a sample of keys: a key is looked
// at only if the low `sampling_shift` bits of its hash are zero, and counts 2^sampling_shift times.
// When the sample outgrows its bound, the shift grows by one and half of it is forgotten. This is
// spatial sampling with a fixed bound after Waldspurger, Park, Garthwaite and Ahmad, "Efficient MRC
// Construction with SHARDS", USENIX FAST 2015, for the one point of the curve where the cache is
// infinite. Misses are sampled and not hits for the reason of the paper's adjustment: a few hot
// keys make most hits, and whether they fall into the sample is luck. Exact until the bound is
// reached.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "tiers/types/block_key.h"

namespace kvtier {

// Event loop only.
class InfiniteCache {
 public:
  // 64 Ki keys: an error of about 1 % at any size, and less than 1 MiB.
  static constexpr size_t kMaxSampledKeys = size_t{1} << 16;

  explicit InfiniteCache(size_t max_sampled_keys = kMaxSampledKeys);
  ~InfiniteCache();
  InfiniteCache(const InfiniteCache&) = delete;
  InfiniteCache& operator=(const InfiniteCache&) = delete;

  // These blocks were asked for.
  void Ask(NamespaceId namespace_id, std::span<const BlockHash> hashes);
  // This block was in the cache at some time.
  void Store(NamespaceId namespace_id, const BlockHash& hash);

  // Estimate of how many blocks asked for had never been stored.
  [[nodiscard]] uint64_t misses() const { return misses_; }
  [[nodiscard]] uint32_t sampling_shift() const { return sampling_shift_; }

 private:
  struct Table;
  void HalveSample();

  const std::unique_ptr<Table> table_;
  const size_t max_sampled_keys_;
  uint32_t sampling_shift_ = 0;
  uint64_t mask_ = 0;
  uint64_t misses_ = 0;
};

}  // namespace kvtier
