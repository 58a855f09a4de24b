// SPDX-License-Identifier: Apache-2.0
// Signs that space in host is short, which parts of the cache give each other.
#pragma once

#include <algorithm>
#include <cstdint>
#include <set>

#include "tiers/policy/tenant_table.h"

namespace kvtier {

// After how long blocks that an engine has stored are used for the first time. Follows the third
// quartile of these times and keeps none of them: a longer time raises it, each other one lowers it
// by a third as much, so that it rests where one time in four is longer. Some dozen uses move it
// anywhere within its bounds. Event loop only.
class ReturnTime {
 public:
  static constexpr uint32_t kLeastS = 1;
  static constexpr uint32_t kMostS = 60;
  // Before anything is known. Short, because the first burst is over before it has been learned;
  // where sessions take longer, their first uses tell so within seconds.
  static constexpr uint32_t kAssumedS = 3;

  // A block was used for the first time, so long after it was stored. More than kMostS is not
  // counted: host does not hold unwritten blocks for such sessions.
  void Note(uint32_t waited_s) {
    if (waited_s > kMostS) return;
    // Times are whole seconds, rounded down.
    const bool longer = waited_s + 0.5 > seconds_;
    seconds_ *= 1 + kStep * (longer ? kShorter : kShorter - 1);
    seconds_ = std::clamp<double>(seconds_, kLeastS, kMostS);
  }
  [[nodiscard]] uint32_t ds() const { return static_cast<uint32_t>(10 * seconds_); }

 private:
  // The part of itself that one time moves the quartile by, up and down together.
  static constexpr double kStep = 0.25;
  static constexpr double kShorter = 0.75;

  double seconds_ = kAssumedS;
};

// Says how far space in host falls short of the demand. Event loop only.
struct HostPressure {
  // Until then, on the monotonic clock, acquires have lately waited for space in host that the disk
  // could not make in time, or blocks were given up unwritten: blocks are written from the start of
  // their sequences on, because not all of them will be.
  static constexpr int64_t kPrefixesFirstMs = 10'000;
  int64_t prefixes_first_until_ms = 0;
  // For a store, host gives up no block unwritten that came so lately that its session is probably
  // still to come back: where engines store more than host can hold for that long, each block would
  // otherwise give way right before its use. An engine hears that its last blocks failed, and keeps
  // those that it was told are stored.
  ReturnTime returns;
  // An acquire, or a store of a region, has waited for half of its time: host gives up its coldest
  // blocks, written or not, so that younger blocks need not be dropped for want of space in it.
  bool acquire_late = false;
  bool store_late = false;
  // Tenants for which host has no slot, because blocks in it wait for their writes to disk.
  std::set<TenantId> await_disk;
  // Blocks in host that clients expect to use again are spared, and so often some were. Where
  // nothing else may leave, a search for a victim takes them nevertheless.
  bool spares_awaited = true;
  uint64_t awaited_spared = 0;
  // As much is being copied from pools to host as may be, and more waits.
  bool to_host_is_busy = false;

  [[nodiscard]] bool host_space_is_overdue() const { return acquire_late || store_late; }
  // A block that has been in host for so long may be lost to make space.
  [[nodiscard]] bool MayGiveUp(uint32_t age_ds) const {
    return acquire_late || (store_late && age_ds >= returns.ds());
  }
  // The disk could not make space in host in time.
  void WritePrefixesFirst(int64_t now_ms) { prefixes_first_until_ms = now_ms + kPrefixesFirstMs; }
};

}  // namespace kvtier
