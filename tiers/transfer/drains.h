// SPDX-License-Identifier: Apache-2.0
// Drains: a caller waits until all that should be on disk is there, as before a shutdown.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/gate.h"
#include "tiers/space/disk_slots.h"
#include "tiers/state/cache_state.h"
#include "tiers/transfer/host_adoption.h"
#include "tiers/transfer/offloader.h"
#include "tiers/transfer/persister.h"
#include "tiers/transfer/retention.h"

namespace kvtier {

// Event loop only.
class Drains {
 public:
  // All are borrowed.
  Drains(CacheState* state, DiskSlots* disk, Retention* retention, HostAdoption* adoption,
         Offloader* offloader, Persister* persister)
      : state_(*state),
        disk_(*disk),
        retention_(*retention),
        adoption_(*adoption),
        offloader_(*offloader),
        persister_(*persister) {}

  // Calls `done` when all that should be on disk is there and the index knows of all uses.
  void Begin(std::function<void()> done);
  // Begins no more writes: each drain ends with the writes that are under way.
  void Stop() { stopped_ = true; }
  [[nodiscard]] bool stopped() const { return stopped_; }
  // A drain waits for every write, so that others begin none that can come later.
  [[nodiscard]] bool UnderWay() const { return beginning_ > 0 || !waiting_.empty(); }
  // Ends the drains that can end.
  void Pump();
  // None has rows to walk, and nothing moves down.
  [[nodiscard]] bool Idle() const { return beginning_ == 0 && Settled(); }

 private:
  [[nodiscard]] bool Settled() const;
  // A drain could bring nothing more to disk.
  [[nodiscard]] bool NothingLeft() const;
  // Tells the index of uses, from this row of the directory on, in parts of `drain_part_rows`; then
  // `done` waits for the writes.
  void WalkFrom(uint64_t row, std::function<void()> done);

  CacheState& state_;
  DiskSlots& disk_;
  Retention& retention_;
  HostAdoption& adoption_;
  Offloader& offloader_;
  Persister& persister_;
  std::vector<std::function<void()>> waiting_;
  uint64_t beginning_ = 0;  // their rows are being walked
  bool stopped_ = false;
  // Events that go on with a walk are posted through it, so that they do not outlive the cache.
  Gate gate_;
};

}  // namespace kvtier
