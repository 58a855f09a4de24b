// SPDX-License-Identifier: Apache-2.0
// The counters of the cold tier. Names are stable, they become metrics.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/acquired.h"
#include "base/enum_names.h"

namespace kvtier {

// How the cold store answered an acquire that asked it.
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

}  // namespace kvtier
