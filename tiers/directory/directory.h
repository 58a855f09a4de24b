// SPDX-License-Identifier: Apache-2.0
// Every block the cache knows, in whatever tier: key to entry, and the entry's places and states.
#pragma once

#include <cstdint>
#include <memory>

#include "base/ids.h"
#include "tiers/policy/eviction_policy.h"
#include "tiers/policy/paged_array.h"
#include "tiers/types/block_key.h"
#include "tiers/types/disk_location.h"
#include "tiers/types/entry_index.h"
#include "tiers/types/pool_place.h"

namespace kvtier {

// A slot's address in the host arena, in units of 4 KiB (so that an entry stays small; 16 TiB
// reach).
using HostSlot = Strong<struct HostSlotTag, uint32_t>;
inline constexpr HostSlot kNoHostSlot{UINT32_MAX};
inline constexpr uint64_t kHostSlotUnit = 4096;

// How a copy of a block is on its way between tiers. At most one movement of each kind at a time,
// but for loads: each pool may have one.
struct BlockMotion {
  bool loading : 1 = false;         // some pool's block awaits its bytes (all come through host)
  bool offload_queued : 1 = false;  // pool to host, waiting for its turn
  bool offloading : 1 = false;      // pool to host, copying
  bool reading : 1 = false;         // disk to host
  bool write_queued : 1 = false;    // host to disk, waiting for its turn
  bool writing : 1 = false;         // host to disk
  bool committing : 1 = false;      // on disk, its index entry not yet durable
  bool verifying : 1 = false;       // being read back by a verification
};

struct BlockEntry {
  BlockHash hash;
  NamespaceId namespace_id;
  // The first of the pools that hold it; each names the next (PoolBlock::elsewhere).
  PoolPlace place;
  HostSlot host_slot = kNoHostSlot;
  uint32_t disk_generation = 0;
  DiskLocation disk;
  uint32_t depth = 0;
  uint32_t created_s = 0;
  uint32_t last_use_s = 0;
  uint32_t indexed_use_s = 0;  // last_use_s as the index knows it
  uint32_t uses = 0;
  uint16_t tokens = 0;
  RetentionClass retention = RetentionClass::kExtended;
  BlockMotion motion;
  bool host_ready : 1 = false;      // the host slot holds the block's bytes
  bool persisted : 1 = false;       // data and index entry are durable
  bool verified : 1 = false;        // the payload on disk is known to be whole
  bool update_queued : 1 = false;   // the index is to learn of a later use
  bool persist_wanted : 1 = false;  // write to disk as soon as the bytes are in host
  bool persist_failed : 1 = false;  // not to be written before its next use; may be dropped
  bool offload_failed : 1 = false;  // do not try again unasked; may be dropped from the pool
  bool pinned : 1 = false;
  uint8_t host_pins = 0;       // I/O or copies under way on the host slot
  uint32_t host_since_ds = 0;  // when its bytes came to host (CacheState::NowDs)

  // In some pool, or on its way there.
  [[nodiscard]] bool in_pool() const { return place != kNoPlace; }
  [[nodiscard]] bool in_host() const { return host_ready; }
  [[nodiscard]] bool on_disk() const { return disk.valid() && !motion.writing; }
  [[nodiscard]] BlockFacts facts() const { return {uses, created_s, last_use_s, depth, retention}; }
};
static_assert(sizeof(BlockEntry) <= 88);

// Event loop only.
class Directory {
 public:
  Directory();
  ~Directory();
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;

  // kNoEntry if the block is not known.
  [[nodiscard]] EntryIndex Find(const BlockKey& key) const;
  // The same, looking first behind `before`, where the next block of a sequence mostly stands: rows
  // are given in the order of commits. kNoEntry as `before` is no hint.
  [[nodiscard]] EntryIndex FindAfter(EntryIndex before, const BlockKey& key) const;
  // REQUIRES: Find(key) == kNoEntry.
  EntryIndex Insert(const BlockKey& key);
  // The index may be given to another block from now on. REQUIRES: the entry lives.
  void Erase(EntryIndex entry);
  void Reserve(size_t entries);

  [[nodiscard]] BlockEntry& operator[](EntryIndex entry);
  [[nodiscard]] const BlockEntry& operator[](EntryIndex entry) const;

  [[nodiscard]] size_t size() const;
  // One past the highest index in use; for walks over everything (check `Live`).
  [[nodiscard]] uint32_t end() const;
  [[nodiscard]] bool Live(EntryIndex entry) const;
  [[nodiscard]] size_t memory_bytes() const;

 private:
  struct Table;
  std::unique_ptr<Table> table_;
};

}  // namespace kvtier
