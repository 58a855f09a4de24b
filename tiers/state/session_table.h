// SPDX-License-Identifier: Apache-2.0
// Which blocks are held, and by which session: each session's references and private blocks, the
// references of operations that have not been answered yet, and the blocks of ended sessions whose
// processes may still write to them.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "tiers/state/cache_state.h"
#include "tiers/types/cache_requests.h"

namespace kvtier {

// How many references one session holds on each block of one pool. Pages of counters, so that a
// look-up is two loads and a session that touches few blocks of a large pool stays small. Event
// loop only.
class ReferenceCounts {
 public:
  [[nodiscard]] uint32_t Get(BlockIndex block) const {
    const size_t page = block.value / kPageBlocks;
    if (page >= pages_.size() || !pages_[page]) return 0;
    return (*pages_[page])[block.value % kPageBlocks];
  }

  void Add(BlockIndex block) {
    const size_t page = block.value / kPageBlocks;
    if (page >= pages_.size()) pages_.resize(page + 1);
    if (!pages_[page]) pages_[page] = std::make_unique<Page>();
    ++(*pages_[page])[block.value % kPageBlocks];
    ++total_;
  }

  // REQUIRES: Get(block) > 0.
  void Drop(BlockIndex block) {
    --(*pages_[block.value / kPageBlocks])[block.value % kPageBlocks];
    --total_;
  }

  [[nodiscard]] uint64_t total() const { return total_; }

  // Takes out the references of at most `most` blocks and calls `visit(block, count)` for each, in
  // order of index over all calls. Returns how many blocks. REQUIRES: no Add or Drop after the
  // first call.
  template <typename Visit>
  uint32_t TakeOut(uint32_t most, Visit visit) {
    uint32_t taken = 0;
    for (; taken < most && total_ > 0; ++taken_out_) {
      auto& page = pages_[taken_out_ / kPageBlocks];
      if (!page) {
        taken_out_ += kPageBlocks - 1;
        continue;
      }
      const uint32_t count = std::exchange((*page)[taken_out_ % kPageBlocks], 0);
      if (count == 0) continue;
      total_ -= count;
      ++taken;
      visit(BlockIndex(taken_out_), count);
    }
    return taken;
  }

 private:
  static constexpr size_t kPageBlocks = 1024;
  using Page = std::array<uint32_t, kPageBlocks>;
  std::vector<std::unique_ptr<Page>> pages_;
  uint64_t total_ = 0;
  uint32_t taken_out_ = 0;  // no block below it has references any more, once TakeOut was called
};

class HeldReferences;

// Blocks of one pool whose references are dropped together: with the end of this, those that none
// holds any more become evictable together, the deepest first. Event loop only.
class ReleasedBlocks {
 public:
  ReleasedBlocks(CacheState* state, CachePool* pool) : state_(*state), pool_(pool) {}
  ~ReleasedBlocks();
  ReleasedBlocks(const ReleasedBlocks&) = delete;
  ReleasedBlocks& operator=(const ReleasedBlocks&) = delete;

  // Drops so many references. REQUIRES: they are held.
  void Unreference(BlockIndex block, uint32_t times = 1);

 private:
  CacheState& state_;
  CachePool* const pool_;
  std::vector<EntryIndex> cached_;
};

// Event loop only.
class SessionTable {
 public:
  explicit SessionTable(CacheState* state) : state_(*state) {}

  void Open(SessionId session);
  // From now on the session holds nothing that it could use. Its blocks are given back in parts
  // (CacheOptions::close_part_blocks), the first of them at once and the others by CloseSome:
  // references are dropped, private blocks quarantined. Blocks that operations hold on its behalf
  // are theirs to drop (HeldReferences); until they have, the session counts as closing.
  void Close(SessionId session);
  // The next part of what closed sessions held; once for each event that the cache schedules.
  void CloseSome();
  // The session gives back all that it holds in the pool, and the use of it, in the same parts as a
  // closed session does; but its private blocks become free, because its client says that nothing
  // writes to them any more. The session may use the pool again before the last part: blocks that
  // it then gets are not given back. Blocks that operations hold there on its behalf are theirs to
  // drop. REQUIRES: the session is open and uses the pool.
  void LeavePool(SessionId session, CachePool* pool);
  // From now on what closing sessions hold stays as it is, for the next daemon to resume them.
  void KeepHoldings() { keeps_holdings_ = true; }
  // The pool stays until the session has left it or is closed, all that it held has been given
  // back, and its process can no longer write to blocks that were private to it. The table beside
  // the pool's memory names the session for as long, by `identity`. REQUIRES: open.
  void UsePool(SessionId session, CachePool* pool, const SessionIdentity& identity);
  // The blocks that sessions of an earlier daemon hold in a pool that was taken over.
  struct AbsentHoldings {
    std::vector<BlockIndex> referenced;  // REQUIRES: cached, and in no order of eviction
    std::vector<BlockIndex> withheld;    // REQUIRES: free
    std::vector<uint32_t> sessions;      // their numbers in the pool's table
  };
  // As a closed session that holds them until ReleaseQuarantine. REQUIRES: the number is no other
  // session's.
  void AddAbsent(SessionId session, CachePool* pool, AbsentHoldings holdings);
  // The open session holds the block again that `absent`, added with AddAbsent, stands for or
  // referenced: the same block, which has not been free since. REQUIRES: the pool is used by the
  // session.
  [[nodiscard]] ResumeOutcome Resume(SessionId absent, SessionId session, CachePool* pool,
                                     const ResumeClaim& claim);
  // Frees what Close() quarantined, or will. Does nothing if there is nothing.
  void ReleaseQuarantine(SessionId session);
  // Whether the session is closed, and keeps blocks until ReleaseQuarantine or is giving back.
  [[nodiscard]] bool Withholds(SessionId session) const { return closed_.contains(session); }
  [[nodiscard]] bool IsOpen(SessionId session) const { return sessions_.contains(session); }

  // Whether the block is private to the session, and not among those that it gives back since it
  // left the pool. REQUIRES: open.
  [[nodiscard]] bool OwnsPrivate(SessionId session, const CachePool& pool, BlockIndex block) const;
  // Turns one free block of the pool into a private one. REQUIRES: open; a block is free.
  BlockHandle AllocatePrivate(SessionId session, CachePool* pool);
  // Drops one reference. `released` is the pool's. REQUIRES: the session holds one.
  void DropReference(SessionId session, CachePool* pool, BlockIndex block,
                     ReleasedBlocks* released);
  void FreePrivate(SessionId session, CachePool* pool, BlockIndex block);
  // A private block becomes committed, with the session's reference.
  void Publish(SessionId session, CachePool* pool, BlockIndex block, EntryIndex entry);

  // Whether the session itself holds a reference, which it may then release. References that an
  // operation holds on its behalf do not count.
  [[nodiscard]] bool Holds(SessionId session, const CachePool& pool, BlockIndex block) const;
  // The session's references and those that operations hold on its behalf.
  [[nodiscard]] uint64_t references(SessionId session) const;
  [[nodiscard]] uint64_t references() const;
  [[nodiscard]] size_t size() const { return sessions_.size(); }
  // Closed sessions that are not given back completely, and pools that sessions have left.
  [[nodiscard]] size_t closing() const { return closing_.size(); }

 private:
  friend class HeldReferences;
  struct Holdings {
    ReferenceCounts references;
    PoolBlockList private_blocks;
  };
  using HoldingsByPool = std::map<PoolId, Holdings>;
  struct Use {
    PoolId pool;
    std::vector<uint32_t> numbers;  // of sessions in the pool's table
  };
  // Stays at its address, open or closed, for as long as HeldReferences may point to it.
  struct Session {
    HoldingsByPool pools;
    std::vector<Use> used;  // see UsePool
    uint64_t held = 0;      // references of HeldReferences
    // The owner of its private blocks in pools that it has left before; in others it is itself.
    std::map<PoolId, SessionId> owners;
    // Once it is closed:
    std::map<PoolId, PoolBlockList> quarantined;
    bool process_gone = false;  // the private blocks may be freed
  };
  using Sessions = std::unordered_map<SessionId, Session>;

  [[nodiscard]] static uint64_t ReferencesOf(const Session& session);
  [[nodiscard]] Holdings& Of(SessionId session, const CachePool& pool) {
    return sessions_.at(session).pools[pool.id];
  }
  // Under which the session's private blocks in the pool stand now.
  [[nodiscard]] SessionId OwnerIn(SessionId session, const CachePool& pool) const;
  // A number that no session has.
  [[nodiscard]] SessionId NewNumber() { return SessionId(next_number_++); }
  // A session that was closed, or a part of one, stands in closed_ under this number.
  void BeginToGiveBack(SessionId closed);
  // One session less uses the pool, and has not given back all.
  void EndUse(PoolId pool);
  // The session's number in the pool's table, if it has one.
  [[nodiscard]] std::optional<uint32_t> NumberOf(SessionId session, const CachePool& pool) const;
  // Gives back at most `*most` blocks of a closed session, and takes them off it; true if nothing
  // is left to give back.
  bool GiveBack(Session* closed, uint32_t* most);
  // Nothing of the closed session is left, so that its pools may be closed.
  void Forget(Sessions::iterator closed);

  CacheState& state_;
  Sessions sessions_;
  Sessions closed_;
  bool keeps_holdings_ = false;
  std::deque<SessionId> closing_;  // of the closed, those not given back completely, in order
  // Sessions count from 1 on, those that stand for an earlier daemon's from the largest number
  // down.
  uint64_t next_number_ = uint64_t{1} << 63;
};

// The references that an operation holds on blocks of one pool until it is answered, by position.
// They protect the blocks from eviction as a session's do, and count against the session's limit,
// but they are the operation's: nothing that the session sends can release them before HandOver.
// Whatever is still held at the end is dropped; the session may be closed by then.
class HeldReferences {
 public:
  HeldReferences(SessionTable* table, SessionId session, CachePool* pool);
  HeldReferences(HeldReferences&& other) noexcept;
  HeldReferences& operator=(HeldReferences&& other) noexcept;
  ~HeldReferences();

  [[nodiscard]] size_t size() const { return blocks_.size(); }
  // Positions that hold a reference; the others are kNoBlock.
  [[nodiscard]] uint32_t count() const { return count_; }
  [[nodiscard]] BlockIndex operator[](size_t position) const { return blocks_[position]; }

  // References `blocks` (kNoBlock: none) in place of those held before.
  void Assign(std::vector<BlockIndex> blocks);
  // References the block. REQUIRES: nothing is held at the position.
  void Add(size_t position, BlockIndex block);
  // Drops the reference at the position. REQUIRES: there is one.
  void Drop(size_t position);
  // Drops all references from the position on.
  void Truncate(size_t size);
  // All references become the session's.
  void HandOver();

 private:
  void Reference(BlockIndex block);
  void DropAll(std::span<const BlockIndex> blocks);

  SessionTable* table_;  // null: moved from
  CachePool* pool_;
  SessionTable::Session* session_;  // in the table, where it stays until the session is closed
  std::vector<BlockIndex> blocks_;
  uint32_t count_ = 0;
};

}  // namespace kvtier
