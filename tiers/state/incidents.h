// SPDX-License-Identifier: Apache-2.0
// Tells the cache's owner of what goes wrong, each time with the place and the reason. The owner
// decides how many of the same kind it passes on.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "tiers/directory/block_lifecycle.h"
#include "tiers/storage/slot_header.h"
#include "tiers/types/block_key.h"
#include "tiers/types/incident.h"

namespace kvtier {

class CacheState;

// Part of CacheState. Event loop only. Without an owner every call does nothing.
class Incidents {
 public:
  // `state` is borrowed and outlives this.
  explicit Incidents(CacheState* state) : state_(*state) {}

  void Report(IncidentKind kind, const Status& failed);
  void Report(IncidentKind kind, NamespaceId whose, std::string reason);
  // Names a slot on disk, and the block that is or was in it; kNoEntry: none is known.
  void ReportSlot(IncidentKind kind, DiskLocation slot, EntryIndex block, std::string reason);
  // The slot was read, or could not be, and is not to be served: nothing is reported of a block
  // that was erased.
  void ReportRead(DiskLocation slot, EntryIndex block, const Status& read, SlotVerdict verdict);
  // The cold store failed with an object or a question: nothing is reported of an object that it
  // has forgotten, nor while the store is known to be away.
  void ReportCold(const NamespaceIdentity& whose, const Error& error);
  // A drive was given up; `file` as in SlotPlace.
  void ReportDrive(uint32_t file, std::string reason);
  // The day's bytes are spent; reported once a day.
  void ReportBudgetSpent();

 private:
  void Tell(const Incident& incident) const;

  CacheState& state_;
  int64_t budget_spent_on_day_ = -1;  // that was reported
};

}  // namespace kvtier
