// SPDX-License-Identifier: Apache-2.0
// Host to pool in the order in which an engine computes: layer 0 of all of an acquire's blocks,
// then layer 1, and so on.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "tiers/state/cache_state.h"
#include "tiers/transfer/load_table.h"

namespace kvtier {

// Event loop only. What arrives and fails goes to the two callbacks, once for each block, when no
// copy of it is under way any more.
class LayerLoader {
 public:
  using OnArrived = std::function<void(CachePool* pool, EntryIndex entry)>;
  using OnFailed = std::function<void(CachePool* pool, EntryIndex entry, MissReason reason)>;

  LayerLoader(CacheState* state, LoadTable* loads, OnArrived on_arrived, OnFailed on_failed);

  // Queues the blocks of one load, whose host slots are pinned until the callback. REQUIRES: not
  // empty; a block is so many equal layers.
  void Add(LoadId load, CachePool* pool, const std::vector<EntryIndex>& entries, uint32_t layers);
  // Starts one copy request of whoever has come first; false if there is nothing to start.
  bool StartOne();

  [[nodiscard]] uint64_t bytes_in_flight() const { return bytes_in_flight_; }
  [[nodiscard]] uint64_t pieces_in_flight() const { return pieces_in_flight_; }
  [[nodiscard]] bool Idle() const { return groups_.empty() && bytes_in_flight_ == 0; }
  // Blocks of which something has not been started.
  [[nodiscard]] uint64_t queued() const;

 private:
  struct Member {
    EntryIndex entry;
    uint32_t pieces_in_flight = 0;
    MissReason failure = MissReason::kNone;
    bool begun = false;
    bool ended = false;
  };
  // The blocks of one load, and where in them the next piece is.
  struct Group {
    LoadId load;
    CachePool* pool = nullptr;
    uint32_t layers = 0;
    std::vector<Member> members;
    uint32_t layer = 0;
    size_t member = 0;
    std::vector<uint32_t> pieces_left;  // by layer: queued and not landed
    uint32_t layers_here = 0;
    bool broken = false;  // some block failed: no further layer is complete

    [[nodiscard]] bool AllStarted() const { return layer == layers; }
    [[nodiscard]] uint64_t slice_bytes() const { return pool->block_bytes / layers; }
  };
  struct Piece {
    size_t member = 0;
    uint32_t layer = 0;
  };
  struct Batch {
    std::shared_ptr<Group> group;
    std::vector<Piece> pieces;
    uint64_t bytes = 0;
  };

  // Fills the request with what comes next; it may stay empty when blocks fall out.
  void Fill(const std::shared_ptr<Batch>& batch, CopyRequest* request);
  // Whether the block's next slice may be copied; if not, its failure is noted.
  [[nodiscard]] bool Sound(const Group& group, Member* member);
  void OnCopied(const Batch& batch, const Status& status);
  // Hands the block over if it is complete, or failed, and no piece of it is under way.
  void EndIfDone(const Group& group, Member* member);

  CacheState& state_;
  LoadTable& loads_;
  const OnArrived on_arrived_;
  const OnFailed on_failed_;
  std::deque<std::shared_ptr<Group>> groups_;  // of which something has not been started
  uint64_t bytes_in_flight_ = 0;
  uint64_t pieces_in_flight_ = 0;
};

}  // namespace kvtier
