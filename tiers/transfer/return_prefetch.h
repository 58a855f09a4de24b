// SPDX-License-Identifier: Apache-2.0
// Brings the blocks of sequences that go on at a known time (SequenceHint::kReturns) up to their
// pool shortly before that time, so that their client finds them there.
//
// When to begin follows from what loads take now, as if all blocks came from disk: to begin too
// early costs room in the pool for a moment, too late costs the client a wait. A prefetch must cost
// no one else more than it can be worth:
//
//  * Its blocks come behind every load that a client waits for, and none begins while an acquire
//    waits for room in the pool, or while half of CacheOptions::max_load_bytes is on its way there.
//  * It takes free blocks, and those whose turn to be evicted has come, but none that is itself
//    awaited: there it ends.
//  * It counts as no use, so that a client that never comes back keeps no block alive.
//  * It is dropped when the session that gave the hint ends or leaves the pool, and when the
//    sequence is used before its time, ends, or is expected at another time. Blocks on their way
//    then still arrive.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/digest.h"
#include "tiers/space/pool_space.h"
#include "tiers/state/cache_state.h"
#include "tiers/transfer/block_taker.h"
#include "tiers/transfer/loader.h"
#include "tiers/types/block_key_hash.h"

namespace kvtier {

class Acquirer;

// Event loop only.
class ReturnPrefetch {
 public:
  // The limit of the sequences of one tenant; those beyond it are not remembered, and counted.
  static constexpr size_t kMostSequences = 1024;
  static constexpr size_t kMostBlocks = 1u << 18;

  ReturnPrefetch(CacheState* state, PoolSpace* pools, Acquirer* acquirer, Loader* loader);

  // The sequence goes on in so long. An earlier time for one with the same last block is replaced.
  // A region's blocks are its engine's to load: nothing is done for those. REQUIRES: SequenceHints
  // has been told.
  void Expect(SessionId session, const CachePool& pool, std::span<const BlockHash> hashes,
              int64_t returns_in_ms);
  // Forgets the session's expected sequences, or only those in `pool`.
  void Forget(SessionId session, std::optional<PoolId> pool);
  // Finds the sequences that are due. Looks at some thousand sequences.
  void Tick();
  // Begins the prefetches that are due, at most CacheOptions::acquire_part_blocks for each pool;
  // once for each event that the cache schedules.
  void Pump();

  [[nodiscard]] size_t remembered() const { return by_last_block_.size(); }

 private:
  struct Return {
    SessionId session;
    PoolId pool;
    TenantId tenant;
    std::vector<BlockHash> hashes;  // from the first block on
    BlockKey last_block;            // which was cached when the hint was given
    int64_t due_ms = 0;
    uint32_t until_s = 0;  // as the entries of its blocks say
    bool is_due = false;   // in due_
    // Before `next` all has been seen to. `part` are those before `part_end` that are to be loaded.
    size_t next = 0, part_end = 0;
    std::vector<size_t> part;
  };
  using Returns = std::list<Return>;
  struct Share {
    size_t sequences = 0;
    size_t blocks = 0;
  };

  // Loading it all would take until its client is back.
  [[nodiscard]] bool IsDue(const CachePool& pool, const Return& awaited) const;
  // Nothing as long as it is to be brought up. `pool`: null if it has been closed.
  [[nodiscard]] std::optional<ReturnOutcome> WhyNoMore(const CachePool* pool,
                                                       const Return& awaited) const;
  // Sees to its next part. Nothing if there is more to do, now or later.
  [[nodiscard]] std::optional<ReturnOutcome> BringUp(CachePool* pool, Return* awaited);
  // Returns the blocks to load of it.
  [[nodiscard]] std::vector<EntryIndex> ChoosePart(const CachePool& pool, Return* awaited,
                                                   uint64_t most);
  // Blocks to be loaded must not be pushed out by blocks that move down to make room for them.
  void TouchLowerTiers(std::span<const EntryIndex> entries);
  // Begins the loads of the part, as many as there are free blocks.
  void Start(CachePool* pool, Return* awaited);
  void End(Returns::iterator awaited, ReturnOutcome outcome);

  CacheState& state_;
  PoolSpace& pools_;
  Acquirer& acquirer_;
  Loader& loader_;
  PrefixFinder finder_;
  Returns waiting_;  // for their time
  Returns due_;
  std::unordered_map<BlockKey, Returns::iterator, BlockKeyHash> by_last_block_;  // of both
  std::vector<Share> shares_;                                                    // by tenant
};

}  // namespace kvtier
