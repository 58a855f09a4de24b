// SPDX-License-Identifier: Apache-2.0
// The cache: one owner for all metadata of all tiers. See docs/ARCHITECTURE.md for the picture.
//
// Single-threaded: every call and every callback happens on the event loop's thread. Calls never
// block; slow work goes out through the interfaces handed in and comes back as events. Nothing here
// knows sockets, CUDA or RocksDB.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "gpu/device.h"
#include "tiers/state/cache_environment.h"
#include "tiers/storage/drive_sizer.h"
#include "tiers/types/block_key.h"
#include "tiers/types/block_view.h"
#include "tiers/types/cache_options.h"
#include "tiers/types/cache_requests.h"
#include "tiers/types/cache_stats.h"
#include "tiers/types/session_identity.h"

namespace kvtier {

class Cache {
 public:
  using ReleaseError = kvtier::ReleaseError;
  using VerifyResult = kvtier::VerifyResult;

  // REQUIRES: `options` passed Validate(). `snapshot` lists the disk's blocks; entries that do not
  // fit the files or contradict each other are dropped and counted.
  Cache(const CacheOptions& options, CacheEnvironment environment, IndexSnapshot snapshot);
  ~Cache();

  // --- sessions ---
  // `on_progress` may be called from within any cache call or event, never after CloseSession. It
  // must not call the cache.
  void OpenSession(SessionId session, std::function<void(const LoadProgress&)> on_progress);
  // Drops the session's references. Its private blocks are withheld from reuse until
  // ReleaseQuarantine(session), because the process could still write to them.
  void CloseSession(SessionId session);
  void ReleaseQuarantine(SessionId session);
  // Whether a closed session still keeps blocks from use, or has not given back all.
  [[nodiscard]] bool Withholds(SessionId session) const;
  // Gives back all that the session holds in the pool: references are dropped, private blocks free,
  // for nothing may write to them any more. It happens in parts, the first of them within the call;
  // blocks that the session gets after the call are its own. Its loads there end, its waiting
  // acquires are answered as cancelled within the call, and its expected returns are forgotten.
  // REQUIRES: the session is open and uses the pool.
  void LeavePool(SessionId session, PoolId pool);

  // --- pools ---
  // Calls `done` once pools can be made on the device, within this call if they can be already, or
  // if there is no such device; with an error if it could not be opened. `memory` of the device, if
  // not null, is mapped for OpenRegion before, which otherwise holds up the event loop; it adds the
  // errors of the mapping.
  void WhenDeviceOpen(DeviceIndex device, std::shared_ptr<LentMemory> memory,
                      std::function<void(Status)> done);
  // The pool of (tenant, model) on a device, created on first use with `pool_bytes` (0: one of
  // `shares` equal parts of the device's configured bytes that are left to the tenant; `shares` are
  // the groups of the model's `groups` that have no pool yet). One (tenant, model) may have a pool
  // on each: blocks cached in one can be acquired in all, by way of host. If too little is left,
  // pools that no session uses give their memory back, whole and the longest unused first. This
  // takes time: until it is there, the answer is kUnavailable "pool_bytes_returning", and a later
  // call goes on with it. Errors: kResourceExhausted "pool_bytes_exhausted", kInvalidArgument
  // (block larger than a slab; "pool_below_block"), kNotFound "unknown_device".
  [[nodiscard]] Result<PoolInfo> AttachPool(const NamespaceIdentity& identity, uint64_t pool_bytes,
                                            DeviceIndex device = DeviceIndex(0),
                                            uint32_t shares = 1, uint32_t groups = 1);
  [[nodiscard]] bool HasPool(const NamespaceIdentity& identity, DeviceIndex device) const;
  // The session uses the pool until it leaves it or is closed, and all that it held there is free
  // or evictable. A pool that no session uses keeps its blocks, until an AttachPool needs its
  // memory: blocks that no other tier has are dropped then. One that no session ever used is not
  // closed. REQUIRES: the session is open; there is such a pool. `identity` is for the table beside
  // memory that is kept.
  void UsePool(SessionId session, PoolId pool, const SessionIdentity& identity = {});
  // The clients that had the pools taken over from an earlier daemon when that died; once.
  [[nodiscard]] std::vector<AbsentClients> TakeAbsentClients();
  // Has the session hold again what `absent` (AbsentClients::Session::holdings) held: returns what
  // became of each claim. References beyond options.max_references_per_session are lost. REQUIRES:
  // the caller knows that both are sessions of one process; the session uses the pool.
  [[nodiscard]] std::vector<ResumeOutcome> Resume(SessionId absent, SessionId session, PoolId pool,
                                                  std::span<const ResumeClaim> claims);
  // For a process that is about to end: what sessions hold when they are closed from now on stays
  // theirs in the pools that are kept, for the next process.
  void KeepHoldings();
  // Calls `ready` when the pool's memory may be used: nothing is acquired from it, nor is it shown
  // to any client, before. Within this call if it may be at once; never if there is no such pool.
  void WhenPoolReady(PoolId pool, std::function<void()> ready);

  // --- blocks ---
  // `done` is called exactly once, now or later, and must not call the cache: allocation may wait,
  // up to options.max_wait_ms, for offloads that free blocks. Errors: kResourceExhausted
  // "pool_full", kLimitExceeded "session_references", kCancelled when the session closed or left
  // the pool meanwhile.
  void Acquire(AcquireRequest request, std::function<void(Result<AcquireReply>)> done);
  // Errors: kStaleHandle, kNotOwner, kWrongState "not_private", kInvalidArgument.
  [[nodiscard]] Result<CommitReply> Commit(SessionId session, PoolId pool,
                                           const CommitRequest& request);
  // Gives back one reference (or the private block) per handle; all handles are tried. Returns the
  // errors by position: kStaleHandle, kNotOwner.
  [[nodiscard]] std::vector<ReleaseError> Release(SessionId session, PoolId pool,
                                                  std::span<const BlockHandle> blocks);
  // The pool's memory, provided that the session may read every one of `blocks`: it holds them, and
  // their bytes have arrived. They stay where they are as long as it holds them. Errors, naming the
  // position: kStaleHandle, kNotOwner, kWrongState "block_not_loaded".
  [[nodiscard]] Result<const DevicePool*> ReadableMemory(SessionId session, PoolId pool,
                                                         std::span<const BlockHandle> blocks) const;
  // Brings the cached prefix into the pool without referencing it; returns how many blocks are
  // there or on their way. `tag` is for the tracer.
  uint32_t Prefetch(PoolId pool, std::span<const BlockHash> hashes, RequestTag tag = {});
  // The same for an engine with a region: brings the prefix that the disk has to host memory, see
  // HostPrefetch. `done` gets how many blocks are in memory when nothing of it is on its way any
  // more, within this call if that is so already; it is not called if the session closes before,
  // and must not call the cache.
  void PrefetchToHost(SessionId session, PoolId region, std::vector<BlockHash> hashes,
                      std::function<void(uint32_t in_memory)> done);
  // Asks the store that hosts share, of blocks that no tier here holds: those of a prefix from its
  // first on, or each for itself. `done` gets whether it has each (no block that was erased here),
  // or no value at all if it is away, fails or is late: at the latest after
  // options.cold_lookup_deadline_ms, and within the call where there is no such store.
  void AskColdStore(PoolId pool, const std::vector<BlockHash>& hashes, ColdAsk ask,
                    std::function<void(std::vector<bool>)> done);
  // The blocks that this pool, for a region any pool, and the tiers below it hold.
  [[nodiscard]] std::vector<BlockPresence> Lookup(PoolId pool,
                                                  std::span<const BlockHash> hashes) const;
  // An engine with a region was told that it can load a prefix that ends with this block, and will
  // do so in a moment: the prefix becomes the youngest, so that it is still there. Does nothing for
  // other pools, whose engines acquire at once what they find.
  void KeepForRegion(PoolId region, const BlockHash& last);
  // Keeps blocks from being forgotten until `ttl_ms` from now, whether or not the session stays; 0
  // ends what this session has pinned. Pins of more than a minute outlive the process, where the
  // block does. Returns how many of the hashes are cached. Errors: kLimitExceeded "pin_limit".
  [[nodiscard]] Result<uint32_t> Pin(SessionId session, PoolId pool,
                                     std::span<const BlockHash> hashes, int64_t ttl_ms);
  // For a Pin of several parts: adds to `*more` how many blocks of a part are cached and not pinned
  // yet. Errors: kLimitExceeded "pin_limit" if so many more may not be pinned.
  [[nodiscard]] Status MayPin(PoolId pool, std::span<const BlockHash> hashes, uint64_t* more);
  // Takes a client's hint about a sequence, or a part of it; the deepest part comes first; see
  // SequenceHints for its effect. `returns_in_ms` belongs to kReturns. Returns the number of blocks
  // that took the hint: blocks that are not cached do not, nor, unless it is kReturns, blocks from
  // which other sequences go on. Errors: kNotFound "unknown_pool".
  [[nodiscard]] Result<uint32_t> Hint(PoolId pool, std::span<const BlockHash> hashes,
                                      SequenceHint hint, int64_t returns_in_ms);

  // Which tokens a block holds, for events: of one that is cached, or will be within half a minute.
  // The first ids stay. Returns whether it has ids, or will have; never if the tenant is none of
  // options.token_tenants. REQUIRES: there is such a pool or region, as for the other.
  bool GiveTokenIds(PoolId pool, const BlockHash& hash, std::span<const uint32_t> ids);
  [[nodiscard]] bool KeepsTokenIds(PoolId pool) const;

  // --- regions: memory of engines that choose the block numbers in it themselves ---
  // Memory that the session lends, for blocks of the namespace. It is given back with the session,
  // once nothing moves to or from it. LOOKUP and Pin take its number as a pool's. Errors:
  // kInvalidArgument "bad_namespace_identity", "bad_region_memory", "block_too_large"; kUnsupported
  // "region_memory_kind"; kLimitExceeded "too_many_regions", "pool_numbers_used_up".
  [[nodiscard]] Result<PoolId> OpenRegion(SessionId session, const NamespaceIdentity& identity,
                                          RegionMemory memory);
  // Transfers that have not begun to move are cancelled; the others end first. `closed` is called
  // when the memory is not used any more, within this call if that is so already.
  void CloseRegion(PoolId region, std::function<void()> closed);
  // Closes all regions of the session in this way.
  void CloseRegions(SessionId session, std::function<void()> closed);
  // Announces a transfer of `blocks`, each of which Store or Load then has to name once, in any
  // number of calls. `done` is called once, when all of them have ended and the engine may use them
  // again; not at all if the session closes before. It must not call the cache. Errors:
  // kInvalidArgument "block_out_of_range"; kWrongState "block_busy" (another transfer has it, or it
  // was named twice), "transfer_busy". REQUIRES: the region is open, as for the following.
  [[nodiscard]] Status BeginTransfer(PoolId region, TransferId transfer,
                                     std::span<const BlockIndex> blocks,
                                     std::function<void(TransferEnd)> done, LayerOrder order = {});
  // Copies blocks of the region to host; what some tier has already is skipped. A block that finds
  // no space in host within options.max_wait_ms fails as kHostFull; no block that came to host
  // more lately than sessions take to come back is given up unwritten for it.
  void Store(PoolId region, std::span<const StoreRequest> blocks);
  // Copies cached blocks into the region, each for itself. Blocks in layers begin to be copied with
  // the call that names the last of the transfer's blocks. REQUIRES: not empty.
  void Load(PoolId region, std::span<const LoadRequest> blocks);

  // --- looking into it, for administrators ---
  // The number of a namespace that was attached or restored from disk before; nothing if it never
  // was.
  [[nodiscard]] std::optional<NamespaceId> FindNamespace(const NamespaceIdentity& identity) const;
  // NamespaceIds are the numbers below it, of which there may be hundreds of thousands. The
  // identities of those that are free have no size of blocks.
  [[nodiscard]] uint32_t NamespaceCount() const;
  // The blocks that `filter` admits, from `cursor` on (0 at first), looking at `max_rows` rows of
  // the directory and reporting `max_blocks` at most; so that a walk over millions can be cut into
  // steps. A block that is cached from the first step to the last is reported exactly once.
  [[nodiscard]] BlockWalk Walk(uint64_t cursor, uint32_t max_rows, uint32_t max_blocks,
                               const BlockFilter& filter) const;
  // Tells `sink` all that the environment's sink was told and still holds, for `max_rows` rows of
  // the directory from `cursor` on (0 at first). Returns the cursor to go on from, or kReplayEnd. A
  // block that a tier holds from the first step to the last is told exactly once.
  uint64_t ReplayEvents(uint64_t cursor, uint32_t max_rows, BlockEventSink* sink) const;
  static constexpr uint64_t kReplayEnd = UINT64_MAX;
  // How far ReplayEvents goes that begins now: rows behind these tell of nothing that is stored by
  // now. It takes so many steps of `max_rows` at most, unless blocks get token ids meanwhile.
  struct ReplaySize {
    uint64_t rows = 0;
    uint64_t steps = 0;
    uint64_t namespaces = 0;  // numbers that are not free
  };
  [[nodiscard]] ReplaySize SizeOfReplay(uint32_t max_rows) const;
  // Nothing if the block is not cached.
  [[nodiscard]] std::optional<BlockRecord> Inspect(const BlockKey& key) const;
  [[nodiscard]] BlockPast PastOf(const BlockKey& key) const;
  // As Lookup and Pin, for a namespace that may have no pool. 0 ends all pins.
  [[nodiscard]] std::vector<BlockPresence> Lookup(NamespaceId namespace_id,
                                                  std::span<const BlockHash> hashes) const;
  [[nodiscard]] Result<uint32_t> Pin(NamespaceId namespace_id, std::span<const BlockHash> hashes,
                                     int64_t ttl_ms);
  // Forgets a block in one tier, or in all of them. A block that is held, pinned or on the move
  // stays.
  EvictOutcome Evict(const BlockKey& key, std::optional<Tier> tier,
                     const std::shared_ptr<ObjectEviction>& objects = nullptr);
  // Whatever canaries have found of the identity counts no more: its blocks are served and stored.
  void Forgive(NamespaceId namespace_id);
  // Calls `done` when nothing of what Evict took can come back at a restart, even if the index is
  // lost, and the cold store has deleted `objects`: within this call if that is so already. Blocks
  // that had left the disk before for other reasons cannot come back with the index then, either.
  // With an error, kIoError, if the index or the store refuses ("cold_object_kept"), or if the disk
  // has refused for seconds.
  void WhenEvictionsAreDurable(std::function<void(Status)> done,
                               std::shared_ptr<ObjectEviction> objects = nullptr);

  // Erases the tenant's blocks for good. The index remembers that first, so that a cache that is
  // made from it later goes on with it. If the disk is encrypted, the keys of the tenant's blocks
  // there are then destroyed. Then the blocks are dropped from every tier, in parts, pinned ones
  // too; those that sessions hold are found by no lookup any more and live until they are released.
  // Blocks committed meanwhile stay, though the disk may have lost their key. `done` is called
  // once, when no restart brings anything back, or with kIoError if disk, index or cold store
  // refuse; not if the cache is destroyed before.
  void Erase(const EraseRequest& request,
             std::function<void(const EraseReport&, const Status&)> done);

  // --- upkeep ---
  // Takes over `options`, less pool_bytes and slab_bytes, which stay as they are; of tenants, the
  // caps and times to live of those that had quotas at the start. A shorter time to live takes
  // effect with the next ticks, and so does a lower cap; a pool stays as large as it is. Nothing
  // changes on error: kLimitExceeded "pinned" if more blocks are pinned than the new pin_fraction
  // allows. REQUIRES: passed Validate().
  [[nodiscard]] Status Reconfigure(const CacheOptions& options);
  // Tiers are to have these sizes from now on; the latest call counts, and absent ones stay. Growth
  // comes in the background. For smaller sizes the coldest blocks leave; blocks in use are waited
  // for. REQUIRES: as HostArena::Resize; each drive that is there has a slab.
  struct Sizes {
    std::optional<uint64_t> host_bytes;
    std::optional<DriveSlabs> disk;  // see DiskResize
  };
  void Resize(const Sizes& sizes);
  // Expiry, persist-after-idle, waiting acquires' deadlines. Call every few hundred milliseconds.
  void Tick();
  // Writes every `extended` block that is not on disk yet. `done` is called when none is left to
  // write or the rest cannot be written.
  void Drain(std::function<void()> done);
  // For a process that is about to end: starts no more copies to host and no more writes to disk or
  // to the cold store.
  // Work under way ends; then the cache is idle, whatever still waits.
  void StopDraining();
  // The drive's files are gone, so that nothing that is written there would last. If another
  // serves, its blocks are misses from now on. If none does, or the index is gone (`with_index`),
  // no disk is written to any more, and blocks there are served. Returns whether writing goes on.
  bool LoseDrive(uint32_t drive, const std::string& why, bool with_index);
  // All that an earlier daemon left in host memory was looked at: nothing of it will appear.
  [[nodiscard]] bool AdoptionEnded() const;
  // True when no copy, disk I/O, index batch or wait is under way, and none is to be started.
  [[nodiscard]] bool Idle() const;

  // Reads up to `max_blocks` blocks on disk back from disk, from `cursor` on (0 at first), and
  // checks header and payload without disturbing recency. A bad slot is quarantined as on any read.
  // A step may end with fewer blocks, or none, before all have been read.
  // kCold: blocks that this host wrote to the cold store or read from it, one after the other; a
  // bad object is deleted. REQUIRES, for it: HasColdStore().
  enum class Verified : uint8_t { kDisk, kCold };
  void VerifyStep(uint64_t cursor, uint32_t max_blocks, std::function<void(VerifyResult)> done,
                  Verified of = Verified::kDisk);
  [[nodiscard]] bool HasColdStore() const;

  [[nodiscard]] const CacheStats& stats() const;
  // REQUIRES: id < NamespaceCount().
  [[nodiscard]] const NamespaceIdentity& IdentityOf(NamespaceId id) const;
  // Sizes and states now; O(pools), not O(blocks).
  [[nodiscard]] CacheGauges Gauges() const;
  // The part about one pool. REQUIRES: there is such a pool.
  [[nodiscard]] PoolGauges GaugesOfPool(PoolId pool) const;
  // Aborts with a message if any invariant is broken; O(everything), for tests and the simulator.
  void CheckInvariants() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvtier
