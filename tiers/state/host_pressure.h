// SPDX-License-Identifier: Apache-2.0
// Signs that space in host is short, which parts of the cache give each other.
#pragma once

#include <cstdint>

#include "tiers/policy/return_time.h"

namespace kvtier {

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
  // Host has no slot to give, because blocks in it wait for their writes to disk.
  bool host_awaits_disk = false;
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
