// SPDX-License-Identifier: Apache-2.0
// Counters with a reason for everything that is refused, dropped or repaired. All exist from the
// start; names are stable, they become metrics.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "base/acquired.h"
#include "base/enum_names.h"
#include "base/ids.h"
#include "tiers/types/block_key.h"
#include "tiers/types/cache_options.h"
#include "tiers/types/meters.h"

namespace kvtier {

// Why a copy of a block left a tier, or never reached it. `kvtierctl inspect` shows the meanings.
#define KVT_DROP_REASONS(X)                                                                      \
  X(kCleanCopyBelow, "clean_copy_below", "its space was needed; a lower tier has a copy")        \
  X(kLru, "lru", "its space was needed, and it was the least recently used")                     \
  X(kMemoryClass, "memory_class", "its space was needed; retention `memory` never goes to disk") \
  X(kExpired, "expired", "its time to live had passed")                                          \
  X(kPoolPressure, "pool_pressure", "an acquire had waited too long for its space")              \
  X(kHostFull, "host_full", "no host slot was free to copy it to")                               \
  X(kDiskFull, "disk_full", "no disk slot was free to write it to")                              \
  X(kWriteBudget, "write_budget", "the day's bytes for disk writes were spent")                  \
  X(kWriteError, "write_error", "the disk failed to write it")                                   \
  X(kCopyFailed, "copy_failed", "the device failed to copy it")                                  \
  X(kClientWroteCommitted, "client_wrote_committed",                                             \
    "its bytes were not those of its checksum at commit")                                        \
  X(kReadError, "read_error", "the disk failed to read it")                                      \
  X(kCorrupt, "corrupt", "its bytes on disk were damaged")                                       \
  X(kStaleIndex, "stale_index", "the index named a place that cannot be")                        \
  X(kSlabReclaimed, "slab_reclaimed", "its slab was needed for another model")                   \
  X(kDriveLost, "drive_lost", "its drive failed, or its directory is gone")                      \
  X(kCopyAbove, "copy_above", "its space was needed; a higher tier has a copy")                  \
  X(kEvictedByHand, "evicted_by_hand", "an administrator evicted it")                            \
  X(kTenantCap, "tenant_cap", "its tenant was at its cap")                                       \
  X(kOnOtherDevice, "on_other_device", "its space was needed; another device's pool has it")     \
  X(kParentLost, "parent_lost", "a block before it in its sequence was lost")                    \
  X(kErased, "erased", "erased, or the key that it was encrypted with is gone")                  \
  X(kCompared, "compared", "an engine's copy, stored to be compared with the cache's block")
KVT_NAMED_ENUM(DropReason, KVT_DROP_REASONS)

// Why a slot of host memory that an earlier daemon left was not taken over.
#define KVT_ADOPTION_DROPS(X)                                                                      \
  X(kCorrupt, "corrupt", "header or payload is damaged, or the table's record of it cannot be")    \
  X(kUnfinished, "unfinished", "it was being filled")                                              \
  X(kMisplaced, "misplaced", "whole, but of another size than its slot, or not its block's facts") \
  X(kExpired, "expired", "its time to live had passed")                                            \
  X(kDuplicate, "duplicate", "the block has come to host again before its turn")                   \
  X(kTenantCap, "tenant_cap", "its tenant would be beyond its cap")                                \
  X(kEvictedByHand, "evicted_by_hand",                                                             \
    "an administrator evicted or erased the block before its turn")
KVT_NAMED_ENUM(AdoptionDrop, KVT_ADOPTION_DROPS)

// Bytes of blocks that left the disk without having been loaded from there, by the blocks' age.
struct NeverRead {
  struct Age {
    const char* name;
    int64_t below_s;
  };
  static constexpr std::array<Age, 4> kAges{{{"under_1h", 3'600},
                                             {"under_6h", 6 * 3'600},
                                             {"under_24h", 24 * 3'600},
                                             {"over_24h", INT64_MAX}}};
  std::array<uint64_t, kAges.size()> bytes{};

  void Add(int64_t age_s, uint64_t block_bytes) {
    size_t age = 0;
    while (age + 1 < kAges.size() && age_s >= kAges[age].below_s) ++age;
    bytes[age] += block_bytes;
  }
};

// The answers to clients and administrators that asked for blocks to be pinned.
#define KVT_PIN_OUTCOMES(X)                                           \
  X(kGranted, "granted", "also those that were pinned already")       \
  X(kRefused, "refused", "beyond the limit of all, or of the tenant") \
  X(kEndedForSpace, "ended_for_space", "granted, and ended before their time")
KVT_NAMED_ENUM(PinOutcome, KVT_PIN_OUTCOMES)

// The result of comparing a block with the same one as another engine computed it (Canary).
#define KVT_CANARY_OUTCOMES(X)                        \
  X(kEqual, "equal", "in all bits")                   \
  X(kNoise, "noise", "but for rounding")              \
  X(kDifferent, "different", "by more than rounding") \
  X(kAbsent, "absent", "one of the two had left host memory")
KVT_NAMED_ENUM(CanaryOutcome, KVT_CANARY_OUTCOMES)

// The counters of the cold tier. Names are stable, they become metrics. How the cold store answered
// an acquire that asked it.
#define KVT_COLD_ANSWERS(X)                                                                     \
  X(kFound, "found", "the next block of the prefix, at least; of windows and states any block") \
  X(kAbsent, "absent", "no such block")                                                         \
  X(kLate, "late", "none within the deadline")                                                  \
  X(kFailed, "failed", "an error")                                                              \
  X(kSkipped, "skipped", "not asked, because it has lately been late or has failed")
KVT_NAMED_ENUM(ColdAnswer, KVT_COLD_ANSWERS)

// Why a block that the disk evicted for space, and that was worth it, is not in the cold store.
#define KVT_COLD_LOSSES(X)                                                                   \
  X(kBudget, "budget", "more was to be written than may be at once, or in a second")         \
  X(kAway, "away", "the store was not asked, because it has lately been late or has failed") \
  X(kEarly, "early", "it was evicted before it was its turn")                                \
  X(kFailed, "failed", "the store did not take it")
KVT_NAMED_ENUM(ColdLoss, KVT_COLD_LOSSES)

// Event loop only; copies are snapshots.
struct ColdStats {
  std::array<uint64_t, kColdAnswerCount> lookups{};
  uint64_t lookup_blocks = 0;  // that the store was asked about
  uint64_t read_blocks = 0, read_bytes = 0;
  // Blocks that the store named and that could not be served, by MissReason.
  std::array<uint64_t, kMissReasonCount> failed_reads{};
  uint64_t write_blocks = 0, write_bytes = 0, write_errors = 0;
  std::array<uint64_t, kColdLossCount> losses{};

  void CountLookup(ColdAnswer answer) { ++lookups[static_cast<size_t>(answer)]; }
  void CountLoss(ColdLoss loss) { ++losses[static_cast<size_t>(loss)]; }
  void CountFailedRead(MissReason reason) { ++failed_reads[static_cast<size_t>(reason)]; }
};

// Counters of everything since the start. A copy takes microseconds.
struct CacheSums {
  void CountDrops(Tier tier, DropReason reason, uint64_t count) {
    drops[static_cast<size_t>(tier)][static_cast<size_t>(reason)] += count;
  }

  // The blocks that acquires asked for; asked = pool + host + disk + miss + declined. Blocks of an
  // acquire that has to load are counted when the load ends.
  struct Asked {
    uint64_t asked = 0;
    std::array<uint64_t, kTierCount> hit{};
    uint64_t cold = 0;  // those of the disk's hits that came from the cold store
    uint64_t miss = 0;
    uint64_t declined = 0;  // cached, but not worth loading

    void AddHit(Tier tier, uint64_t count, bool from_cold) {
      asked += count;
      hit[static_cast<size_t>(tier)] += count;
      if (from_cold) cold += count;
    }
    void AddMisses(uint64_t count) {
      asked += count;
      miss += count;
    }
    void AddDeclined(uint64_t count) {
      asked += count;
      declined += count;
    }
    bool operator==(const Asked&) const = default;
    void Add(const Asked& other) {
      asked += other.asked;
      for (size_t tier = 0; tier < kTierCount; ++tier) hit[tier] += other.hit[tier];
      cold += other.cold;
      miss += other.miss;
      declined += other.declined;
    }
  };
  Asked blocks;
  Asked tokens;
  uint64_t acquires = 0;
  uint64_t acquires_refused = 0;
  uint64_t acquires_waited = 0;
  // Brought from disk to host for engines with regions, before they asked for a load; of these,
  // blocks that left host unused, or were not used within a minute; and requests that were ended
  // because they did not get on.
  uint64_t host_prefetched_blocks = 0, host_prefetched_bytes = 0;
  uint64_t host_prefetched_unused_blocks = 0, host_prefetches_cut = 0;
  // Loads told by events alone, for all counters that their session shares were in use.
  uint64_t loads_without_counter = 0;
  std::array<uint64_t, kMissReasonCount> misses_by_reason{};
  std::array<uint64_t, kMissReasonCount> declined_by_reason{};
  std::array<std::array<uint64_t, kDropReasonCount>, kTierCount> drops{};

  std::array<uint64_t, kCanaryOutcomeCount> canaries{};
  void CountCanary(CanaryOutcome outcome) { ++canaries[static_cast<size_t>(outcome)]; }

  uint64_t commits = 0;
  uint64_t commit_duplicates = 0;
  uint64_t token_ids_refused = 0;  // blocks whose ids came when there was no room left for them
  uint64_t allocated = 0;

  uint64_t offload_blocks = 0, offload_bytes = 0;
  uint64_t onload_blocks = 0, onload_bytes = 0;
  // Loaded from pools of other devices and from engines' regions; and those that did not come that
  // way, as begun, and took another.
  uint64_t neighbour_blocks = 0, neighbour_bytes = 0, neighbour_fallbacks = 0;
  uint64_t disk_write_blocks = 0, disk_write_bytes = 0, disk_write_errors = 0;
  NeverRead disk_never_read;  // of what this process wrote
  uint64_t disk_read_blocks = 0, disk_read_bytes = 0, disk_read_errors = 0;
  uint64_t disk_read_retries = 0, disk_read_repaired = 0;
  uint64_t index_errors = 0;
  uint64_t slots_quarantined = 0;
  uint64_t headers_not_voided = 0;  // of them, those whose block is gone: the disk refused
  // Blocks looked at to find victims; about one for each that was evicted.
  uint64_t host_eviction_steps = 0;
  uint64_t disk_eviction_steps = 0;
  uint64_t pins_ended_for_space = 0;  // of blocks
  uint64_t restored_blocks = 0;
  // Taken over in host from an earlier daemon; of slots that were not, why.
  uint64_t adopted_blocks = 0, adopted_bytes = 0;
  // Blocks that an earlier daemon left in pools, and why others were not taken over.
  uint64_t adopted_pool_blocks = 0, adopted_pool_bytes = 0;
  std::array<uint64_t, kAdoptionDropCount> pool_adoption_drops{};
  // Blocks that clients named when they resumed their sessions: held again, and not.
  uint64_t resumed_blocks = 0, resume_lost_blocks = 0;
  std::array<uint64_t, kAdoptionDropCount> adoption_drops{};
  void CountAdoptionDrop(AdoptionDrop reason) { ++adoption_drops[static_cast<size_t>(reason)]; }

  ColdStats cold;

  [[nodiscard]] CopyMeter& Lane(CopyLane lane) { return lanes[static_cast<size_t>(lane)]; }
  [[nodiscard]] const CopyMeter& Lane(CopyLane lane) const {
    return lanes[static_cast<size_t>(lane)];
  }
  std::array<CopyMeter, kCopyLaneCount> lanes;
  // From a block's arrival in a tier to its leaving; on disk, from its commit.
  std::array<BlockAgeHistogram, kTierCount> residence;
  // From one use of a block to the next.
  BlockAgeHistogram reuse_gap;
};
static_assert(std::is_trivially_copyable_v<CacheSums>);

// Not to be copied on the event loop: there may be hundreds of thousands of namespaces.
struct CacheStats : CacheSums {
  void CountHit(NamespaceId asked_of, Tier tier, uint64_t block_tokens, bool from_cold = false) {
    AskedOf& own = Of(asked_of);
    for (Asked* const counted : {&blocks, &own.blocks}) counted->AddHit(tier, 1, from_cold);
    for (Asked* const counted : {&tokens, &own.tokens}) {
      counted->AddHit(tier, block_tokens, from_cold);
    }
  }
  void CountMisses(NamespaceId asked_of, MissReason reason, uint64_t count, uint64_t block_tokens) {
    if (count == 0) return;
    AskedOf& own = Of(asked_of);
    for (Asked* const counted : {&blocks, &own.blocks}) counted->AddMisses(count);
    for (Asked* const counted : {&tokens, &own.tokens}) counted->AddMisses(count * block_tokens);
    misses_by_reason[static_cast<size_t>(reason)] += count;
  }

  void CountDeclined(NamespaceId asked_of, MissReason reason, uint64_t count,
                     uint64_t block_tokens) {
    AskedOf& own = Of(asked_of);
    for (Asked* const counted : {&blocks, &own.blocks}) counted->AddDeclined(count);
    for (Asked* const counted : {&tokens, &own.tokens}) counted->AddDeclined(count * block_tokens);
    declined_by_reason[static_cast<size_t>(reason)] += count;
  }

  // The same by NamespaceId, as far as any was asked of; their sums are those of all.
  struct AskedOf {
    Asked blocks;
    Asked tokens;
  };
  std::vector<AskedOf> of_namespaces;
  [[nodiscard]] AskedOf& Of(NamespaceId id) {
    if (id.value >= of_namespaces.size()) of_namespaces.resize(id.value + 1);
    return of_namespaces[id.value];
  }
};

struct PoolGauges {
  PoolId id;
  NamespaceId namespace_id;
  DeviceIndex device;
  uint64_t block_bytes = 0;
  uint64_t blocks = 0, free = 0, private_blocks = 0, referenced = 0, cached = 0, loading = 0,
           quarantined = 0;
};

struct DeviceGauges {
  uint64_t pool_capacity_bytes = 0, pool_used_bytes = 0;
  uint64_t load_bytes_per_s = 0;  // host to pool, as measured; 0: nothing was
  uint32_t neighbours = 0;        // by DeviceIndex, a bit for each that it can read
};

// The gauges of a tenant with quotas, by tier.
struct TenantGauges {
  TenantQuota quota;
  std::array<uint64_t, kTierCount> used_bytes{};  // slots with their headers; the pool: all of them
  std::array<uint64_t, kTierCount> bound_bytes{};  // the most it can have now; UINT64_MAX: no cap
  // Host and disk: slabs that the tenant has to itself, which only those with reserved ones do.
  std::array<uint64_t, kTierCount> own_slab_bytes{};
};

// Everything that a tenant has of the tiers, and has had since the start; see UsageTable.
struct TenantUsage {
  std::string tenant;  // empty: of all that are not told apart
  std::array<uint64_t, kTierCount> held_bytes{};
  std::array<double, kTierCount> byte_seconds{};
  uint64_t pinned_bytes = 0;
  std::array<uint64_t, kPinOutcomeCount> pins{};  // blocks, by PinOutcome
};

// One of the disk tier's drives.
struct DriveGauges {
  uint32_t number = 0;
  uint64_t capacity_bytes = 0, used_bytes = 0;
  bool failed = false;  // it was given up
};

struct CacheGauges {
  // The bytes of all pinned blocks, each counted once.
  [[nodiscard]] uint64_t PinnedBytes() const {
    uint64_t bytes = 0;
    for (const TenantUsage& of_tenant : usage) bytes += of_tenant.pinned_bytes;
    return bytes;
  }

  std::vector<PoolGauges> pools;
  std::vector<TenantGauges> tenants;
  std::vector<TenantUsage> usage;
  std::vector<DeviceGauges> devices;                      // by DeviceIndex
  std::vector<DriveGauges> drives;                        // those that the start had
  uint64_t pool_capacity_bytes = 0, pool_used_bytes = 0;  // over all devices
  uint64_t host_capacity_bytes = 0, host_ready_bytes = 0, host_used_bytes = 0, host_blocks = 0;
  uint32_t host_return_ds = 0;  // see ReturnTime
  uint64_t disk_capacity_bytes = 0, disk_used_bytes = 0, disk_blocks = 0, disk_persisted = 0;
  uint64_t entries = 0, entry_bytes = 0;
  uint64_t unpersisted_blocks = 0;  // extended, not yet on disk
  uint64_t drain_left = 0;          // these, and slots in which a drain may find more of them
  uint64_t pinned_blocks = 0, sessions = 0, references = 0;
  // By Tier: blocks right behind one that no tier holds. They cannot be hit, and are dropped
  // together with all that follows them unless that one comes back soon
  // (CacheOptions::keep_unusable_ms).
  std::array<uint64_t, kTierCount> unusable_blocks{};
  // Closed sessions of which some references and private blocks are still to be given back.
  uint64_t sessions_closing = 0;
  uint64_t loads_in_flight = 0, offloads_in_flight = 0, disk_reads_in_flight = 0,
           disk_writes_in_flight = 0, acquires_waiting = 0;
  uint64_t regions = 0, region_blocks_in_flight = 0;
  // Prefixes that were used and whose blocks are still to be made young, some of them after a tick.
  uint64_t prefixes_to_touch = 0;
  // Waiting to be started; acquires_waiting is the acquires' own.
  uint64_t neighbour_copies_queued = 0;
  uint64_t offloads_queued = 0, onload_copies_queued = 0, disk_reads_queued = 0,
           disk_writes_queued = 0;
  // Measured; 0: nothing was yet.
  uint64_t disk_read_bytes_per_s = 0, cold_read_bytes_per_s = 0;
  uint64_t write_budget_left_bytes = 0;   // UINT64_MAX: no limit
  uint64_t write_budget_spent_bytes = 0;  // today
  // Estimate for a cache that never forgets; see infinite_cache.h.
  uint64_t infinite_missed_blocks = 0;
  std::vector<std::string> disk_engines;
  bool disk_degraded = false;
  bool cold_available = false;  // requests go to the store that hosts share
  // Slots that an earlier daemon left in host and that have not been looked at yet.
  uint64_t adoption_waiting = 0;
  std::vector<NamespaceId> distrusted;
  // Blocks whose token ids are kept, and what all ids take in memory.
  uint64_t token_blocks = 0, token_bytes = 0;
};

// Blocks of which it is known, since the daemon's start, that a restart will not find them on disk:
// their write was refused or failed, or the index did not take their records. A drain has given up
// as many as this has grown by.
[[nodiscard]] inline uint64_t BlocksGivenUp(const CacheSums& stats) {
  uint64_t blocks = 0;
  for (const DropReason reason :
       {DropReason::kDiskFull, DropReason::kWriteBudget, DropReason::kWriteError}) {
    blocks += stats.drops[static_cast<size_t>(Tier::kDisk)][static_cast<size_t>(reason)];
  }
  return blocks;
}

}  // namespace kvtier
