// SPDX-License-Identifier: Apache-2.0
// The counters of the cold tier. Names are stable, they become metrics.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/acquired.h"

namespace kvtier {

// How the cold store answered an acquire that asked it.
enum class ColdAnswer : uint8_t {
  kFound = 0,  // the next block of the prefix, at least; of windows and states any block
  kAbsent,
  kLate,     // not within the deadline
  kFailed,   // with an error
  kSkipped,  // was not asked, because it has lately been late or has failed
};
inline constexpr int kColdAnswerCount = 5;
[[nodiscard]] std::string_view ColdAnswerName(ColdAnswer answer);

// Why a block that the disk evicted for space, and that was worth it, is not in the cold store.
enum class ColdLoss : uint8_t {
  kBudget = 0,  // more was to be written than may be at once, or in a second
  kAway,        // the store was not asked, because it has lately been late or has failed
  kEarly,       // it was evicted before it was its turn
  kFailed,      // the store did not take it
};
inline constexpr int kColdLossCount = 4;
[[nodiscard]] std::string_view ColdLossName(ColdLoss loss);

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

struct ColdGauges {
  bool enabled = false;
  bool available = false;  // requests go to the store
  uint64_t waiting_acquires = 0;
  uint64_t waiting_blocks = 0;  // to be idle for long enough, or for their turn
  uint64_t writes_in_flight = 0;
};

}  // namespace kvtier
