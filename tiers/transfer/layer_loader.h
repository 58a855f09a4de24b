// SPDX-License-Identifier: Apache-2.0
// Host to pool in the order in which an engine computes: layer 0 of all of a load's blocks, then
// layer 1, and so on; or several layers at once behind the first, if they are small.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "tiers/state/cache_state.h"
#include "tiers/state/pins.h"
#include "tiers/transfer/copy_batch.h"
#include "tiers/transfer/layer_count.h"

namespace kvtier {

// Event loop only. Each block ends once, when no copy of it is under way any more (kInLayers).
class LayerLoader {
 public:
  // `copies` is shared with the loads of whole blocks, whose requests it counts as well.
  LayerLoader(CacheState* state, CopyLimiter* copies, BlockListener* listener)
      : state_(*state), copies_(*copies), listener_(*listener) {}

  // Queues the blocks of one load, whose host slots stay pinned until they end. `count`, which
  // may be null, hears of each layer that all of them have. REQUIRES: not empty; a block is so many
  // equal layers.
  void Add(std::shared_ptr<LayerCount> count, CachePool* pool, std::vector<PinnedEntry> blocks,
           uint32_t layers);
  // Starts one copy request of the load that came first in the line whose turn it is among those
  // that may; false if there is nothing to start.
  bool StartOne(const std::function<bool(CopyLine)>& may_start);

  // Ends blocks of large loads that had arrived before all of their load was started, a part of
  // them in one event.
  void GoOn();

  // Blocks of which something has not been started.
  [[nodiscard]] uint64_t queued() const { return queued_blocks_; }
  // The bytes of them that have not been started, over that device's bus.
  [[nodiscard]] uint64_t queued_bytes(DeviceIndex device) const {
    return queued_bytes_[LoadRates::SlotOf(device)];
  }

 private:
  struct Member {
    EntryIndex entry;
    HostPin pin;
    uint32_t pieces_in_flight = 0;
    MissReason failure = MissReason::kNone;
    bool begun = false;
    bool ended = false;
  };
  // The blocks of one load, and where in them the next piece is.
  struct Group {
    std::shared_ptr<LayerCount> count;
    CachePool* pool = nullptr;
    uint32_t layers = 0;
    // Kept here, since the pool of a region may go with the last block of the group that fails.
    uint64_t layer_bytes = 0;
    DeviceIndex device;
    std::vector<Member> members;
    uint32_t layer = 0;
    size_t member = 0;
    std::vector<uint32_t> pieces_left;  // by the first of their layers: queued and not landed
    uint32_t layers_here = 0;
    bool broken = false;  // some block failed: no further layer is complete

    [[nodiscard]] bool AllStarted() const { return layer == layers; }
  };
  struct Piece {
    size_t member = 0;
    uint32_t layer = 0;  // its first
  };

  // A load whose members up to `next` have been looked at.
  struct Ending {
    std::shared_ptr<Group> group;
    size_t next = 0;
  };

  // Starts the next request of the group in the front of the line.
  void StartNext(std::deque<std::shared_ptr<Group>>* line);
  // Fills the batch with what comes next; it may stay empty when blocks fall out. Returns the
  // pieces.
  [[nodiscard]] std::vector<Piece> Fill(Group* group, CopyBatch* batch);
  // How many layers the next piece of each block has.
  [[nodiscard]] uint32_t LayersAtOnce(const Group& group) const;
  // Whether the block's next piece may be copied; if not, its failure is noted.
  [[nodiscard]] bool Valid(const Group& group, Member* member);
  void OnCopied(Group* group, const std::vector<Piece>& pieces, const Status& status);
  // Hands the block over if it is complete, or failed, and no piece of it is under way.
  void EndIfDone(const Group& group, Member* member);

  CacheState& state_;
  CopyLimiter& copies_;
  BlockListener& listener_;
  TenantQueues<std::shared_ptr<Group>, CopyLine> groups_;  // not started to their ends
  std::deque<Ending> ending_;
  uint64_t queued_blocks_ = 0;
  std::array<uint64_t, LoadRates::kBuses> queued_bytes_{};
};

}  // namespace kvtier
