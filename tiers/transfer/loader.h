// SPDX-License-Identifier: Apache-2.0
// Brings blocks up to a pool: disk -> host (read and verified) -> pool, in the order asked for.
// A block that another device's pool holds comes from there, if the device can read that pool; if
// not, the same way: that pool -> host -> pool.
// Prefetches go while no client waits for a block, and take at most half of the bytes that may be
// in flight.
//
// The copies of all blocks that have been read in one event begin at its end: a batch of blocks
// from disk takes one event to be verified and one to arrive.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "tiers/policy/tenant_queues.h"
#include "tiers/space/disk_slots.h"
#include "tiers/space/host_slots.h"
#include "tiers/space/offload_queue.h"
#include "tiers/state/cache_state.h"
#include "tiers/state/in_flight.h"
#include "tiers/state/pins.h"
#include "tiers/transfer/copy_batch.h"
#include "tiers/transfer/layer_loader.h"
#include "tiers/transfer/load_table.h"
#include "tiers/transfer/neighbour_loads.h"
#include "tiers/transfer/read_lines.h"
#include "tiers/transfer/reader.h"

namespace kvtier {

// Event loop only.
class Loader final : public BlockListener {
 public:
  // `deletions` is null without a cold store.
  Loader(CacheState* state, HostSlots* host, OffloadQueue* to_host, DiskSlots* disk,
         LoadTable* loads, ColdDeletions* deletions);

  // Brings the block into its block of the pool. REQUIRES: it is in host, on disk, or in another
  // pool, and has just been given a block of this one that awaits it (its `loading` is set here).
  void Start(CachePool* pool, EntryIndex entry);
  // Start brings blocks that have a source there from there.
  [[nodiscard]] NeighbourLoads& neighbours() { return neighbours_; }
  // The same for a block that is in host, to be copied once it is given to QueueLayers.
  [[nodiscard]] PinnedEntry StartInLayers(CachePool* pool, EntryIndex entry);
  // Has the blocks of one load copied layer by layer, see LayerLoader::Add.
  void QueueLayers(std::shared_ptr<LayerCount> count, CachePool* pool,
                   std::vector<PinnedEntry> blocks, uint32_t layers);
  // Prefetched blocks of the pool's tenant that are referenced by now, and not on their way yet, go
  // before those that are not. Looks at a bounded number of those that would go first.
  void PromoteReferenced(const CachePool& pool);
  // Starts copies of whole blocks, as many as may be under way, up to the first block that turns
  // out to be wrong: no load fails from within this call.
  void StartVerifiedCopies();
  // The answer to a request to read to host alone, for a load that has not been asked for yet.
  enum class HostRead : uint8_t {
    kBegun,    // BlockEnds will tell of its end
    kLater,    // as much is being read as prefetches may, or space in host has to be waited for
    kRefused,  // host has no space, and will have none soon
  };
  // Reads the block from disk to host, for no pool; a load that comes meanwhile waits for this read
  // as for another's. REQUIRES: it is on disk, and no pool and not host has it or is about to.
  [[nodiscard]] HostRead ReadToHost(EntryIndex entry);
  // Touches the block in host's order of eviction; once for each block started, deepest first. Does
  // nothing for a block that is not being loaded into the pool.
  void TouchLoading(const CachePool& pool, EntryIndex entry);
  // Touches in host, if it is there, a block that will be loaded soon, so that it is not evicted
  // before.
  void TouchHost(EntryIndex entry);
  // Offloads that loads of other pools wait for, which look again; reads; and blocks in layers.
  void OnEnded(std::span<const BlockEnd> ends) override;
  // Starts what can be started. True if anything was.
  bool Pump();
  void GoOn() { layers_.GoOn(); }
  // Fails loads that wait in a line which has not moved for long, a part of them.
  void Tick();

  [[nodiscard]] bool Idle() const {
    return loading_ == 0 && reader_.in_flight() == 0 && copies_.Idle() && neighbours_.Idle();
  }
  [[nodiscard]] uint64_t reads_queued() const { return reads_.size() + fetches_.size(); }
  // Fills in the loads, reads and copies that are in flight or queued.
  void Report(CacheGauges* gauges) const;
  // The cost, from now on, of bringing blocks to a pool of the device.
  [[nodiscard]] LoadPrices PricesNow(DeviceIndex device) const;

 private:
  // One that is in host and waits for its copy.
  struct Loadable {
    Arrival arrival;
    HostPin pin;
    InFlightBytes ahead;
  };
  // Whole blocks that are copied together.
  struct Batch {
    CopyBatch copies;
    std::vector<EntryIndex> entries;
    std::vector<HostPin> pins;
  };

  // Whether the block is on its way to host, or can be brought there from another pool.
  [[nodiscard]] bool ComesToHost(Arrival* arrival);
  void OnReadEnded(const BlockEnd& end);
  void OnNeighbourEnded(std::span<const BlockEnd> ends);
  // By host, or from disk.
  void StartFromBelow(Arrival arrival);
  // The block is about to be read to host for this arrival.
  void AwaitHost(const Arrival& arrival);
  // Retries all loads that wait for this block to reach host memory.
  void Wake(EntryIndex entry);
  // The block is about to reach host by another way.
  void AwaitOther(Arrival arrival);
  bool PumpReads();
  [[nodiscard]] ReadLines::Step TryRead(Arrival arrival);
  // The same for what comes from the cold store.
  bool PumpFetches();
  [[nodiscard]] ReadLines::Step TryFetch(Arrival arrival);
  // Fails loads whose blocks no other pool has copied to host for long.
  void FailStuckOffloads();

  void QueueCopy(const Arrival& arrival);
  bool PumpCopies();
  void StartCopy(const std::shared_ptr<Batch>& batch);
  // A block that must not be copied fails, or with kLeave ends the batch.
  enum class OnInvalid : uint8_t { kFail, kLeave };
  // Starts a batch of the line's blocks of that priority; false if none has left the line.
  [[nodiscard]] bool StartBatch(PriorityQueue<Loadable>* blocks, CopyPriority priority,
                                OnInvalid on_invalid);
  void OnCopied(Batch* batch, const Status& status);
  // `lane`: in which they came.
  void Arrived(CachePool* pool, std::span<const EntryIndex> entries, CopyLane lane);
  // Gives the slots of blocks that have arrived since the reads in line began to wait for some to
  // these reads, once they have waited long.
  void PassSlotsOn();

  void Fail(const Arrival& arrival, MissReason reason);
  void StartLoading(const Arrival& arrival);
  void StopLoading(const Arrival& arrival);

  CacheState& state_;
  HostSlots& host_;
  OffloadQueue& to_host_;
  LoadTable& loads_;
  Reader reader_;
  CopyLimiter copies_;
  LayerLoader layers_;
  NeighbourLoads neighbours_;
  // The bytes that demand loads behind these have to wait for. Declared above the line, whose items
  // count themselves off when they end.
  std::array<InFlight, LoadRates::kBuses> copies_ahead_;
  ReadLines reads_, fetches_;
  // Until a read, or another pool's offload, has brought the block to host.
  std::unordered_map<EntryIndex, std::vector<Arrival>> waiting_;
  std::unordered_map<TenantLine, int64_t> offloaded_ms_;  // when such an offload last ended
  size_t next_bucket_ = 0;  // of `waiting_`, at which the next tick goes on
  TenantQueues<Loadable, CopyLine> copy_queue_;
  // Since when some read in line has waited for a host slot without a break; kNoWait: none does.
  static constexpr int64_t kNoWait = INT64_MAX;
  int64_t host_wait_since_ms_ = kNoWait;
  // The blocks that have arrived since then.
  std::vector<BlockKey> arrived_in_wait_;
  uint64_t loading_ = 0;
};

}  // namespace kvtier
