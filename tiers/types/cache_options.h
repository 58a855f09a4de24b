// SPDX-License-Identifier: Apache-2.0
// The options of the cache. Units are in the names; zero means "off" only where it says so.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "base/units.h"

namespace kvtier {

// Blocks may be pinned for a year at most. It keeps sums of times far from overflow.
inline constexpr int64_t kMaxPinTtlMs = int64_t{366} * 24 * 60 * 60 * 1000;

// By Tier: in labels of metrics, JSON and the configuration's keys.
inline constexpr std::array<std::string_view, kTierCount> kTierNames = {"pool", "host", "disk"};

struct TierQuota {
  // The tenant never takes more; 0: no cap of its own.
  uint64_t max_bytes = 0;
  // The tenant's own bytes, up to this number, are not taken for others; 0: none. Host and disk
  // reserve whole slabs: the next multiple of CacheOptions::slab_bytes.
  uint64_t reserved_bytes = 0;

  bool operator==(const TierQuota&) const = default;
};

// One tenant's limits in each tier, and how long its blocks live.
struct TenantQuota {
  std::string name;
  std::array<TierQuota, kTierCount> tiers;  // by Tier
  // In place of those of all tenants; 0: the same as all.
  int64_t memory_ttl_ms = 0;
  int64_t extended_ttl_ms = 0;
  int64_t max_age_ms = 0;

  bool operator==(const TenantQuota&) const = default;
};

// How a pool chooses the block to evict. Host and disk evict the least recently used.
enum class PoolEviction : uint8_t {
  kCls,        // as kClsAlways while that is measured to serve more than kLru; see EvictionDuel
  kLru,        // the least recently used
  kClsAlways,  // of the lowest rank, by class of use and age (no key: for tests and comparisons)
};

struct CacheOptions {
  // Pool memory over all pools of a device: a hard cap.
  uint64_t pool_bytes = 1 * kGiB;
  // Applies to pools created after the change.
  PoolEviction pool_eviction = PoolEviction::kCls;
  // Slots are carved from slabs of this size, in the host arena and on disk. The largest block and
  // its header must fit into one.
  uint64_t slab_bytes = 64 * kMiB;

  // The share of a tier's blocks, coldest first, that is kept ready to be dropped at no cost
  // (copied to the tier below ahead of need).
  double pool_clean_fraction = 0.10;
  double host_clean_fraction = 0.10;
  // The share of the disk's slots kept free, so that a write finds one at once. No key: a hundredth
  // is 10 GiB of a TiB, more than a burst of writes that is under way takes.
  double disk_free_fraction = 0.01;

  // How long an acquire may wait for blocks to become free before dirty ones are dropped.
  int64_t max_wait_ms = 100;
  // A read from disk that has waited so long for a host slot takes the slot of a block that has
  // arrived in the pool; host then no longer holds that one. No key: a write to disk takes less, so
  // that only a disk that is behind makes host give up blocks.
  int64_t read_slot_wait_ms = 5;

  int64_t memory_ttl_ms = 10 * 60 * 1000;
  int64_t extended_ttl_ms = 24 * 60 * 60 * 1000;
  // Life since creation, however often used; 0 means no maximum.
  int64_t max_age_ms = 0;
  // An `extended` block that has been idle this long is written to disk without being pushed.
  int64_t persist_after_ms = 30 * 1000;
  // How long blocks are kept that follow one that no tier holds any more. They cannot be hit until
  // it is back, which a client that missed it and computed it anew may bring about. No key: that
  // client commits the block within the seconds that its prompt takes.
  int64_t keep_unusable_ms = 60 * 1000;
  // Bytes written to disk per UTC day; 0 means no limit.
  uint64_t disk_write_budget_bytes_per_day = 0;
  // At most this share of the lowest tier's blocks may be pinned. No key: half is left to blocks
  // that are not pinned, so that pins cannot stop the cache.
  double pin_fraction = 0.5;

  // Bytes under way at once, each direction and kind. Reads from disk alone have a key. On an H200
  // half as many bytes of loads made no difference, and 64 MiB of offloads kept copies waiting for
  // their checksums (79 % of the bus). More writes would keep reads waiting in the drive.
  uint64_t max_load_bytes = 256 * kMiB;
  uint64_t max_offload_bytes = 256 * kMiB;
  uint64_t max_disk_read_bytes = 64 * kMiB;
  uint64_t max_disk_write_bytes = 32 * kMiB;

  // The first layer of a load comes alone, as early as can be. So many of the others come together
  // that a piece of a block has this many bytes: the bus carries smaller ones slowly.
  uint64_t layer_piece_bytes = 64 * kKiB;

  // --- the cold tier, if there is one
  // An `extended` block that has been idle this long is written to the cold store if it has had so
  // many hits (no key: a block never hit is not worth a write that all hosts wait behind), and
  // again when its uses have moved its end by a quarter of its time to live. 0 bytes: nothing is
  // written.
  int64_t cold_after_ms = 60 * 1000;
  uint32_t cold_min_uses = 1;
  uint64_t cold_write_bytes_per_s = 64 * kMiB;
  // How long an acquire waits for the cold store's answer, and a load for one block of it.
  int64_t cold_lookup_deadline_ms = 5;
  int64_t cold_read_deadline_ms = 1000;

  uint32_t max_references_per_session = 1u << 20;

  // Tenants of whose blocks token ids are kept, for events, in so many bytes of memory together.
  std::vector<std::string> token_tenants;
  uint64_t token_bytes = 256 * kMiB;

  // --- how much one event does; more takes several, so that nothing holds the event loop for long
  // Blocks for which one acquire makes room.
  uint32_t acquire_part_blocks = 1024;
  // Blocks that a drain or a tick queues for their writes, and rows of the directory that a drain
  // looks at.
  uint32_t drain_part_rows = 16'384;
  // Blocks of a closed session that are given back, hits of its loads that are forgotten, pins that
  // end, blocks that are looked at for expiry: each takes about a millisecond.
  uint32_t close_part_blocks = 8192;
  // Blocks that are passed over in search of one to evict or to write, evicted for a cap, or made
  // ready to leave host.
  uint32_t search_part_blocks = 1024;

  // Tenants with quotas or times to live of their own, at most kMaxTenants.
  static constexpr size_t kMaxTenants = 256;
  std::vector<TenantQuota> tenants;

  // Errors: kInvalidArgument naming the field and its bounds.
  [[nodiscard]] Status Validate() const;
};

}  // namespace kvtier
