// SPDX-License-Identifier: Apache-2.0
// The cache's reports on single blocks for people who look into it.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "base/digest.h"
#include "base/ids.h"
#include "tiers/types/block_key.h"
#include "tiers/types/cache_stats.h"

namespace kvtier {

// Which tiers hold a block now.
struct BlockPresence {
  bool pool = false;  // of any device, unless one pool was asked about
  bool host = false;
  bool disk = false;  // data and index entry are durable
  // A rebuild of the index found the block by its header; its payload has not been read since.
  bool disk_unverified = false;
  // The store that hosts share was given the block, or gave it; it may have dropped it since.
  bool cold = false;
  // In a tier of this host.
  [[nodiscard]] bool anywhere() const { return pool || host || disk || disk_unverified; }
  [[nodiscard]] bool in(Tier tier) const {
    return tier == Tier::kPool ? pool : tier == Tier::kHost ? host : disk || disk_unverified;
  }
};

// A block as it stands. Times are Unix times.
struct BlockRecord {
  BlockKey key;
  BlockPresence presence;
  uint16_t tokens = 0;
  uint32_t depth = 0;  // blocks before this one in its sequence
  RetentionClass retention = RetentionClass::kExtended;
  uint32_t created_s = 0;
  uint32_t last_use_s = 0;
  uint32_t uses = 0;
  uint32_t references = 0;      // over all sessions
  int64_t pinned_until_ms = 0;  // 0: not pinned
  int64_t expires_ms = 0;       // unless used, referenced or pinned until then
  bool moving = false;          // a copy, read or write of it is under way
  bool persist_failed = false;  // the last attempt to write it to disk; not tried again unused
  uint64_t disk_offset = 0;     // in the disk tier's address space; if on disk
};

// All hashes that begin with the same hexadecimal digits.
struct HashRange {
  BlockHash first;
  BlockHash last;

  // Nothing unless `digits` are 1 to 64 hexadecimal digits.
  [[nodiscard]] static std::optional<HashRange> BeginningWith(std::string_view digits);
  [[nodiscard]] bool Contains(const BlockHash& hash) const { return first <= hash && hash <= last; }
};

// Which blocks a walk reports.
struct BlockFilter {
  std::optional<Tier> tier;                            // held by this tier, among others
  bool cold = false;                                   // held by the store that hosts share
  std::optional<std::vector<NamespaceId>> namespaces;  // of one of these, in rising order
  std::optional<HashRange> hashes;
};

// A stretch of a walk over all blocks.
struct BlockWalk {
  std::vector<BlockRecord> blocks;
  uint64_t next_cursor = 0;
  bool finished = false;
};

// The last time that a copy of a block left a tier, or that an acquire stopped at it.
struct BlockDrop {
  uint32_t when_s = 0;
  Tier tier = Tier::kPool;
  DropReason reason = DropReason::kLru;
};
struct BlockMiss {
  uint32_t when_s = 0;
  MissReason reason = MissReason::kUnknown;
};
// As far as it is remembered; see BlockHistory.
struct BlockPast {
  std::optional<BlockDrop> drop;
  std::optional<BlockMiss> miss;
};

enum class EvictOutcome : uint8_t {
  kEvicted,
  kAbsent,      // not cached, or not in that tier
  kReferenced,  // a session holds it
  kPinned,
  kMoving,  // a copy, read or write of it is under way; try again
};

}  // namespace kvtier
