// SPDX-License-Identifier: Apache-2.0
#include "tiers/state/reports.h"

#include <utility>

#include "tiers/state/cache_state.h"

namespace kvtier {

void DropLog::Count(const BlockKey& key, Tier tier, DropReason reason) {
  state_.stats.CountDrops(tier, reason, 1);
  state_.history.NoteDrop(key, {state_.clock.ToWallS(state_.clock.NowS()), tier, reason});
  state_.trace.Evict(key, tier, reason);
}

void DropLog::Count(EntryIndex entry, Tier tier, DropReason reason) {
  Count({state_[entry].namespace_id, state_[entry].hash}, tier, reason);
}

void DropLog::CountResidence(Tier tier, uint32_t since_ds) {
  state_.stats.residence[static_cast<size_t>(tier)].ObserveMs(
      int64_t{state_.clock.NowDs() - since_ds} * 100);
}

void Incidents::Tell(const Incident& incident) const {
  if (state_.env.owner != nullptr) state_.env.owner->OnIncident(incident);
}

void Incidents::Report(IncidentKind kind, const Status& failed) {
  Tell({.kind = kind, .reason = failed ? std::string() : failed.error().ToString()});
}

void Incidents::Report(IncidentKind kind, NamespaceId whose, std::string reason) {
  Tell({.kind = kind,
        .reason = std::move(reason),
        .whose = state_.blocks.namespaces[whose.value].identity});
}

void Incidents::ReportSlot(IncidentKind kind, DiskLocation slot, EntryIndex block,
                           std::string reason) {
  const DiskGeometry& geometry = state_.env.geometry;
  Incident incident{.kind = kind,
                    .reason = std::move(reason),
                    .place = SlotPlace{geometry.FileOf(slot), geometry.OffsetInFile(slot)}};
  if (block != kNoEntry) incident.whose = state_.blocks.NamespaceOf(state_[block]).identity;
  Tell(incident);
}

void Incidents::ReportRead(DiskLocation slot, EntryIndex block, const Status& read,
                           SlotVerdict verdict) {
  if (!read) {
    ReportSlot(IncidentKind::kReadFailed, slot, block, read.error().ToString());
  } else if (verdict == SlotVerdict::kCorrupt) {
    ReportSlot(IncidentKind::kDamaged, slot, block, "checksum_mismatch");
  } else if (verdict == SlotVerdict::kIdentityMismatch) {
    ReportSlot(IncidentKind::kDamaged, slot, block, "identity_mismatch");
  }
}

void Incidents::ReportCold(const NamespaceIdentity& whose, const Error& error) {
  if (error.code == ErrorCode::kNotFound || error.reason == kColdStoreAway) return;
  const bool damaged = error.code == ErrorCode::kCorrupt;
  Tell({.kind = damaged ? IncidentKind::kColdDamaged : IncidentKind::kColdFailed,
        .reason = error.ToString(),
        .whose = whose});
}

void Incidents::ReportDrive(uint32_t file, std::string reason) {
  Tell({.kind = IncidentKind::kDriveFailed,
        .reason = std::move(reason),
        .place = SlotPlace{file, 0}});
}

void Incidents::ReportBudgetSpent() {
  const int64_t day = state_.write_budget.state().day;
  if (std::exchange(budget_spent_on_day_, day) == day) return;
  Tell({.kind = IncidentKind::kBudgetSpent, .reason = "disk.write_budget_per_day"});
}

}  // namespace kvtier
