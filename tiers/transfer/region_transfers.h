// SPDX-License-Identifier: Apache-2.0
// Regions: memory of engines that choose the block numbers in it themselves, and the transfers
// between them and the cache.
//
// A region is a CachePool of which a block is taken only for as long as a transfer uses it: a store
// makes it the entry's block until the offloader has copied it to host, a load until the loader has
// filled it. Then it is free again, for it is the engine's. So no lookup ever finds a block in a
// region, and copies, reads, checksums and their order are those of all other blocks. A block that
// was stored is a source of others' loads while its engine publishes it (RegionSources).
//
// The engine may use the memory of a block again when the end of its transfer is reported, and not
// before: no copy touches it any more, whichever way the transfer has ended. A region that is
// closed keeps its memory until that holds for all of its blocks.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/gate.h"
#include "tiers/space/offload_queue.h"
#include "tiers/state/cache_state.h"
#include "tiers/state/pins.h"
#include "tiers/transfer/block_taker.h"
#include "tiers/transfer/canary.h"
#include "tiers/transfer/loader.h"
#include "tiers/transfer/prefix_touches.h"
#include "tiers/types/cache_requests.h"

namespace kvtier {

// Event loop only.
class RegionTransfers final : public BlockListener {
 public:
  RegionTransfers(CacheState* state, PrefixFinder* finder, Loader* loader, OffloadQueue* to_host,
                  PrefixTouches* touches, Canary* canary)
      : state_(*state),
        finder_(*finder),
        loader_(*loader),
        to_host_(*to_host),
        touches_(*touches),
        canary_(*canary) {
    state_.ends.AddListener(this);
  }

  // See Cache for the calls. REQUIRES, for those that name a region: it is open.
  [[nodiscard]] Result<CachePool*> Open(SessionId session, NamespaceId namespace_id,
                                        RegionMemory memory);
  void Close(PoolId region, std::function<void()> closed);
  // Closes all regions of the session, a part of them in one event.
  void CloseAll(SessionId session, std::function<void()> closed);
  // The same when the session has ended: nothing is reported any more.
  void CloseSession(SessionId session);
  [[nodiscard]] Status Begin(PoolId region, TransferId transfer, std::span<const BlockIndex> blocks,
                             std::function<void(TransferEnd)> done, const LayerOrder& order);
  void Store(PoolId region, std::span<const StoreRequest> blocks);
  void Load(PoolId region, std::span<const LoadRequest> blocks);

  // Closes regions, ends blocks that were cancelled and begins loads that have waited for others, a
  // part of all that in one event.
  void GoOn();
  // Has host make space for stores that have waited for half of the time that an acquire may wait,
  // and ends those that have waited for all of it.
  void Tick();
  // Blocks that transfers use at present.
  [[nodiscard]] uint64_t in_flight() const { return in_flight_; }
  [[nodiscard]] size_t size() const { return regions_.size(); }

  // Loads into regions and stores from them.
  void OnEnded(std::span<const BlockEnd> ends) override;

 private:
  struct Transfer {
    std::function<void(TransferEnd)> done;
    TransferEnd end;
    uint32_t left = 0;                  // blocks that have not ended
    uint32_t not_begun = 0;             // of a load: blocks that Load has not named yet
    uint32_t layers = 0;                // not 0: blocks in host come in so many layers
    std::shared_ptr<LayerCount> count;  // of these layers; null: they are not counted
    // Until all blocks have been named, so that the first layer of all of them goes first.
    std::vector<PinnedEntry> in_layers;
  };
  // First come, first served, one at a time: with each that ends the next begins.
  using Waiting = std::deque<LoadRequest>;
  // The transfer that uses a block of the region.
  struct Use {
    TransferId transfer;
    uint32_t position = 0;
    Tier tier = Tier::kHost;  // a load's: where it was found
    bool from_cold = false;
    uint16_t tokens = 0;
    bool in_layers = false;  // a load's: it comes layer by layer
  };
  struct Region {
    SessionId session;
    CachePool* pool = nullptr;
    bool in_host_memory = false;
    uint16_t block_tokens = 0;
    Party party;  // that stores from it
    std::unordered_map<TransferId, Transfer> transfers;
    std::unordered_map<BlockIndex, Use> uses;
    // Loads of blocks that another transfer of this region is moving, by the entry, which has one
    // block in a pool at most; all of one hash.
    std::unordered_map<EntryIndex, Waiting> waiting;
    std::vector<RegionSources::Stored> computed;  // of the call of Store that runs
    std::deque<Waiting> woken;                    // no transfer moves their blocks any more
    bool closing = false;
    std::vector<BlockIndex> to_cancel;  // of a region that is closing: those not looked at yet
    bool goes_on = false;               // in `going_on_`
    std::vector<std::function<void()>> closed;
  };
  // A store, and until when it may wait for space in host.
  struct Queued {
    int64_t deadline_ms = 0;
    PoolId region;
    BlockHandle block;
    friend bool operator==(const Queued&, const Queued&) = default;
  };
  // The stores of one tenant, which end late by themselves: another's may wait for nothing but a
  // slow copy.
  struct StoreLine {
    TenantId tenant;
    std::deque<Queued> stores;  // in the order in which they began
    std::optional<Queued> oldest_at_last_tick;
    bool late = false;  // as HostPressure::store_late, of the last tick
  };
  using Regions = std::unordered_map<PoolId, Region>;
  enum class Outcome : uint8_t { kCopied, kSkipped, kFailed };

  // Whether a known block is in memory: a tier there has it, or is about to have it.
  [[nodiscard]] bool InMemory(EntryIndex entry) const;
  // Returns the block's entry, which may have ended, if no tier has the block then.
  EntryIndex StoreOne(Region* region, const StoreRequest& request);
  // The region's block is on its way to host, as the entry's.
  void QueueStore(CachePool* pool, BlockIndex block, EntryIndex entry);
  // Stores blocks that follow each other in one sequence.
  void StoreRun(Region* region, std::span<const StoreRequest> run);
  // The block's entry, to be loaded; kNoEntry if it waits for another transfer, or has failed.
  [[nodiscard]] EntryIndex TakeForLoad(Region* region, const LoadRequest& request);
  // The entry of a block that no tier of this host has, offered for a load by the cold store;
  // kNoEntry without one. Asking for the block shows whether the store has it.
  [[nodiscard]] EntryIndex OfferFromColdStore(const Region& region, const BlockHash& hash);
  // A load has begun whose last block this is: if that is its first use, its session has come back
  // after this time.
  void NoteReturn(const Region& region, EntryIndex deepest);
  // All blocks of the load have been named, or it is given up.
  void QueueLayers(CachePool* pool, Transfer* transfer);
  // The region's block becomes the entry's, as if a session held it.
  void Take(CachePool* pool, BlockIndex block, EntryIndex entry);
  // The reverse. REQUIRES: no copy uses it.
  BlockIndex GiveBack(CachePool* pool, EntryIndex entry);
  void OnLoadEnded(const BlockEnd& end);
  void OnStoreEnded(const BlockEnd& end);
  // The store has ended, whether the block is in host or not, and whether its copy has begun.
  // REQUIRES: the copy is not under way.
  void EndStore(Region* region, EntryIndex entry, MissReason reason);
  // The first of the loads of the same block that waited goes on in an event of its own.
  void WakeWaiting(Region* region, EntryIndex entry);
  // The region has something to do in GoOn.
  void GoOnWith(Region* region);
  // At most `*most` of them; takes those that were looked at off it.
  void CancelSome(Region* region, size_t* most);
  void CancelOne(Region* region, BlockIndex block);
  void LoadWoken(Region* region, size_t* most);
  // The oldest store whose copy has not begun; null if there is none, or not among the next many.
  // Forgets those before it.
  [[nodiscard]] const Queued* OldestWaiting(StoreLine* line);
  void TickLine(StoreLine* line);
  void EndLateStores(StoreLine* line, int64_t now_ms);
  // The block that is being stored; null if that has ended.
  [[nodiscard]] const PoolBlock* UnderWay(PoolId region, BlockHandle block);
  // One block of a transfer has ended; with the last, the transfer has.
  void End(Region* region, BlockIndex block, Outcome outcome,
           MissReason reason = MissReason::kNone);
  void CloseLater(Region* region);
  // Does nothing if it is closing already.
  void CancelAll(Region* region, size_t* most);
  void ForgetIfClosed(Regions::iterator region);
  // The same in an event of its own: the listeners after this one are told of the region's pool
  // yet.
  void ForgetLater(Region* region);

  CacheState& state_;
  PrefixFinder& finder_;
  Loader& loader_;
  OffloadQueue& to_host_;
  PrefixTouches& touches_;
  Canary& canary_;
  Regions regions_;
  // Regions that close stand here, too; a session that has ended does not.
  std::unordered_map<SessionId, std::unordered_set<PoolId>> of_session_;
  std::deque<PoolId> going_on_;  // regions, some of them closed by now
  std::deque<PoolId> to_close_;  // of sessions that end or close all; the same
  std::vector<PoolId> unread_;   // that have closed but for others' loads that read them
  std::map<TenantLine, StoreLine> stores_;
  uint64_t in_flight_ = 0;
  Gate gate_;
};

}  // namespace kvtier
