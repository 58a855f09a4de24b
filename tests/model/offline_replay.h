// SPDX-License-Identifier: Apache-2.0
// Plays a trace against the cache alone, in memory and at the times of the trace: hours of requests
// in seconds. It does the same as `kvtierctl replay` does with a daemon, for results that policies
// alone decide.
#pragma once

#include <array>
#include <cstdint>

#include "tiers/types/cache_options.h"
#include "tools/replay/trace.h"

namespace kvtier {

struct OfflineSizes {
  // In blocks of the trace; at least those of its longest request.
  uint64_t pool = 0;
  uint64_t host = 0;
  uint64_t disk = 0;
  PoolEviction eviction = PoolEviction::kLru;
  // The share of conversations that the client says with the last request to be closed.
  // Requests whose first 1,536 tokens are the same are one conversation.
  double closed_share = 0;
};

struct OfflineReport {
  uint64_t asked_tokens = 0;
  std::array<uint64_t, kTierCount> hit_tokens{};  // by Tier
  // Milliseconds that computing all prompts would take; those that hits spare, and would spare if
  // nothing were ever forgotten; and those for which loads of hits keep prompts waiting.
  double asked_ms = 0;
  double saved_ms = 0;
  double possible_ms = 0;
  double load_ms = 0;
  uint64_t disk_read_blocks = 0;
  uint64_t disk_written_blocks = 0;

  [[nodiscard]] double PoolHitPercent() const { return Percent(hit_tokens[0]); }
  [[nodiscard]] double TotalHitPercent() const {
    return Percent(hit_tokens[0] + hit_tokens[1] + hit_tokens[2]);
  }
  // The share of all computing that hits spare after their loads, and of what they could spare.
  [[nodiscard]] double NetPercent() const { return 100 * (saved_ms - load_ms) / asked_ms; }
  [[nodiscard]] double OfPossiblePercent() const {
    return 100 * (saved_ms - load_ms) / possible_ms;
  }

 private:
  [[nodiscard]] double Percent(uint64_t tokens) const {
    return asked_tokens == 0
               ? 0
               : 100 * static_cast<double>(tokens) / static_cast<double>(asked_tokens);
  }
};

// One client: each request acquires its longest prefix, commits the rest and releases all of it at
// one moment, and the cache comes to rest before the next. The same arguments lead to the same
// report.
[[nodiscard]] OfflineReport ReplayOffline(const Trace& trace, const OfflineSizes& sizes);

}  // namespace kvtier
