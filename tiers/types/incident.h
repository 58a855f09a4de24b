// SPDX-License-Identifier: Apache-2.0
// Something that went wrong, or became well again, while the cache serves, as an operator should
// hear of it. Counters say how often; an incident says where and why.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tiers/types/block_key.h"

namespace kvtier {

enum class IncidentKind : uint8_t {
  kDamaged = 0,     // a slot's bytes are not its block's; it is not used again
  kReadFailed,      // the disk refused to read a slot; it is not used again
  kWriteFailed,     // the disk refused to write a slot; it is not used again
  kIndexFailed,     // the index, or a sync before it, failed; it is tried again
  kHeaderKept,      // an evicted block's header could not be voided; its slot is not used again
  kWritesPaused,    // nothing is written for some seconds, over and over until it succeeds
  kWritesResumed,   // a write is durable again
  kBudgetSpent,     // nothing more is written until 00:00 UTC
  kColdDamaged,     // an object of the cold store is not its block
  kColdFailed,      // the cold store failed to answer, or to read or take an object
  kPoolExhausted,   // an acquire found no room in its pool in time
  kOverwritten,     // a client wrote to a block after it had committed it
  kCopyFailed,      // a device failed to copy
  kRestartDamaged,  // memory that an earlier daemon left is damaged
  kKvDiffers,       // two engines have different KV of one block; it is dropped
  kDistrusted,      // so often that none of the identity's blocks is served any more
  kDriveFailed,     // one of several drives is given up until a restart; its blocks are misses
  kNotEncrypted,    // a block could not be encrypted, and stays in memory
};
inline constexpr int kIncidentKindCount = 18;

// Where on disk.
struct SlotPlace {
  uint32_t file = 0;
  uint64_t offset = 0;  // in the file
  friend bool operator==(const SlotPlace&, const SlotPlace&) = default;
};

struct Incident {
  IncidentKind kind = IncidentKind::kDamaged;
  std::string reason;  // in the words of the system or of the check that failed
  std::optional<SlotPlace> place;
  std::optional<NamespaceIdentity> whose;  // of the block concerned
};

}  // namespace kvtier
