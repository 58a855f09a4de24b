// SPDX-License-Identifier: Apache-2.0
// The blocks that a cache of three LRU tiers must serve, computed from the rules alone. Shares no
// code with the cache, so that equal counts mean something.
//
// One client; each request acquires the longest prefix, waits for its load, allocates and commits
// the rest, releases everything, and lets the cache come to rest before the next. All blocks have
// one size and class `extended`; nothing expires, nothing fails, nothing is pinned.
//
// Rules:
//  1. A block is a hit in the uppermost tier that holds it. The first block that no tier holds ends
//     the prefix; it and all after it are misses. Hits below the pool become the hottest of their
//     tiers, the deepest first, and are judged when room for them has been made in the pool.
//  2. A block that is acquired leaves the pool's order and, if it is on disk, becomes the hottest
//     there; of one acquire the deepest first, so that the sequence's start is the hottest. The
//     same happens when it is committed and, in the order of release, when it is released.
//  3. A hit below the pool is brought to the pool; the lower copies stay. A host copy that serves a
//     hit, or that a disk hit leaves behind, becomes the hottest in host, the deepest first.
//  4. Released blocks become the hottest in the pool, the deepest first.
//  5. The pool evicts its coldest when a block is needed. A block that leaves it has a copy in host
//     or on disk.
//  6. At rest, ceil(clean fraction * blocks) of the pool are free or prepared, the coldest first.
//     To prepare a block is to make its copy in host the hottest there, which may mean to make the
//     copy first. How long that takes does not matter for the order. When more is needed at once
//     than is prepared, blocks on disk are not copied. A block is prepared once; a use ends it. A
//     call that waits for such copies lets the pool prepare up to its share meanwhile.
//  7. Host does the same with the disk: evicts its coldest, which has a copy on disk by then.
//  8. A write takes a free slot of the disk, or its coldest; then the coldest leave until
//     ceil(free fraction * slots) are free. A block that the disk has given up is not written again
//     before it is used again, wherever else it is.
//  9. A block whose parent no tier holds is unusable, and so is all that follows it. It leaves
//  every
//     tier when its parent has not come back for CacheOptions::keep_unusable_ms: DropUnusable() is
//     the moment at which that time has passed for all of them.
// 10. A block that is released, and that host and disk have, becomes the last of those that leave
// host before all that are not prepared: host is the first to give up the pool's blocks.
// 11. A sequence may be said not to be used again. From its last block on, each that is followed by
//     nothing, or by one such block alone, leaves pool and host before all that are not prepared
//     and are not such blocks themselves; it is copied neither to host nor to disk. A use takes
//     this back of the block and of all before it, unless it was said that uses do not; a block
//     that is computed takes it back of all before it. A block for which it is taken back becomes
//     the hottest where it is, unless it is in use there.
// 12. A sequence may be said to be expected back. Its blocks become the hottest where they are, and
//     again whenever one of them would be prepared, at most 64 times before another is. This ends
//     with the block's use, with what rule 11 says of it, and with ForgetReturns().
#pragma once

#include <cstdint>
#include <ostream>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/digest.h"
#include "tests/model/lru_tier.h"

namespace kvtier {

struct LruModelOptions {
  // In blocks.
  uint64_t pool = 0;
  uint64_t host = 0;
  uint64_t disk = 0;
  double pool_clean_fraction = 0;
  double host_clean_fraction = 0;
  double disk_free_fraction = 0;
};

struct LruModelCounts {
  uint64_t asked = 0, pool = 0, host = 0, disk = 0, miss = 0;
  friend bool operator==(const LruModelCounts&, const LruModelCounts&) = default;
};

// For test failures.
inline void PrintTo(const LruModelCounts& counts, std::ostream* out) {
  *out << "asked " << counts.asked << " pool " << counts.pool << " host " << counts.host << " disk "
       << counts.disk << " miss " << counts.miss;
}

class LruModel {
 public:
  // REQUIRES: every tier has room for the blocks of one request.
  explicit LruModel(const LruModelOptions& options);

  // Serves one request; returns its counts. The hashes are those of one sequence, from its first
  // block on, each once.
  LruModelCounts Request(std::span<const BlockHash> hashes);

  // The client says of a sequence, whose blocks these are from the first one on, that it will not
  // be used again (`once`: and that uses do not disprove it), or that it is expected back. Between
  // requests only.
  void EndUse(std::span<const BlockHash> hashes, bool once);
  void Expect(std::span<const BlockHash> hashes);
  void ForgetReturns() { awaited_.clear(); }

  // Which tiers hold the block now. Between requests only.
  struct Presence {
    bool pool = false, host = false, disk = false;
    friend bool operator==(const Presence&, const Presence&) = default;
  };
  [[nodiscard]] Presence Where(const BlockHash& hash) const {
    return {pool_.Contains(hash), host_.Contains(hash), disk_.Contains(hash)};
  }

  // The blocks that some tier holds though no acquire can reach them. Between requests only.
  [[nodiscard]] std::vector<BlockHash> Unusable() const;
  void DropUnusable();

  [[nodiscard]] const LruModelCounts& total() const { return total_; }

 private:
  [[nodiscard]] uint64_t PrefixLength(std::span<const BlockHash> hashes) const;
  LruModelCounts Acquire(std::span<const BlockHash> hashes);
  [[nodiscard]] bool FollowedByOthers(const BlockHash& hash) const;
  // Takes back the end of the block and of all before it.
  void TakeBackEnd(const BlockHash& hash);
  void Use(const BlockHash& hash);
  [[nodiscard]] bool IsToBeWritten(const BlockHash& hash) const {
    return !ended_.contains(hash) && !not_written_.contains(hash);
  }
  // Prepares the tier's coldest block that is not spared.
  BlockHash PrepareNext(LruTier* tier);
  void Hold(const BlockHash& hash);
  void Commit(std::span<const BlockHash> hashes, uint64_t hits);
  void Release(std::span<const BlockHash> hashes);

  [[nodiscard]] uint64_t FreePoolBlocks() const {
    return pool_.capacity() - pool_.size() - held_.size() - private_;
  }
  void MakeRoomInPool(uint64_t blocks);
  enum class Need { kLater, kNow };
  void PreparePool(uint64_t target, Need need);
  void SettlePool();
  // A block that will be in host once there is room, as young as it is now.
  struct Arrival {
    BlockHash hash;
    uint64_t time = 0;
  };
  // Makes the block's host copy the hottest, or says that one is to be made.
  void ArriveInHost(const BlockHash& hash, std::vector<Arrival>* arrivals);
  void FillHost(const std::vector<Arrival>& arrivals);
  void MakeRoomInHost();
  void PrepareHost(uint64_t target);
  void SettleHost();
  void WriteToDisk(const BlockHash& hash, uint64_t time);
  void TouchDisk(const BlockHash& hash) {
    if (disk_.Contains(hash)) disk_.Place(hash, ++now_);
  }

  const uint64_t pool_clean_;
  const uint64_t host_clean_;
  const uint64_t disk_free_;
  LruTier pool_;  // what no session holds
  LruTier host_;
  LruTier disk_;
  std::unordered_map<BlockHash, BlockHash> parents_;  // of all blocks asked for but first ones
  std::unordered_map<BlockHash, bool> ended_;         // will not be used again; whether `once`
  std::unordered_set<BlockHash> awaited_;
  std::unordered_set<BlockHash> not_written_;  // the disk had it; it has not been used since
  std::unordered_set<BlockHash> loading_;
  std::unordered_set<BlockHash> held_;  // in the pool, by the request under way
  uint64_t private_ = 0;                // allocated for blocks to be committed
  std::vector<Arrival> sinking_;        // prepared in the pool, not yet in host
  uint64_t now_ = 0;                    // counts the moments at which blocks became young
  LruModelCounts total_;
};

}  // namespace kvtier
