// SPDX-License-Identifier: Apache-2.0
#include "tiers/space/kept_slots.h"

#include <algorithm>
#include <utility>

#include "base/units.h"
#include "tiers/storage/slot_header.h"

namespace kvtier {
namespace {

// A dead daemon's threads have ended when its memory is handed over, and the lock of its disk
// directory is not had before its last disk I/O has ended. Only reads from another directory are
// left, for which the kernel waits for so long at most before it gives up,
constexpr int64_t kLateReadsMs = 30 * kSecondMs;
// and copies of a device, which end with the process's context, a moment after its files.
constexpr int64_t kLateCopiesMs = 5 * kSecondMs;
// Headers looked at to learn whose slab it is.
constexpr uint64_t kHeadersTried = 8;

}  // namespace

KeptSlots::KeptSlots(CacheState* state, SlabAllocator* allocator)
    : state_(*state), allocator_(*allocator) {
  const CacheEnvironment& env = state_.env;
  HostTable* const table = env.arena->table();
  if (table == nullptr) return;
  left_slabs_ = table->cut_slabs();
  for (uint64_t slab = 0; slab < left_slabs_; ++slab) unready_ += SlotsIn(slab);
  const bool from_host = std::ranges::all_of(
      env.devices, [](const PoolDevice& each) { return each.device->info().kind == "host"; });
  late_until_ms_ = state_.clock.NowMs() + (from_host ? 0 : kLateCopiesMs);
  if (table->disk_set() == Digest128{}) table->SetDiskSet(env.disk_set);
  if (table->disk_set() != env.disk_set) late_until_ms_ = state_.clock.NowMs() + kLateReadsMs;
}

uint64_t KeptSlots::SlotsIn(uint64_t slab) const {
  const uint64_t slot_bytes = state_.env.arena->table()->SlotBytesOf(slab);
  return allocator_.Fits(slot_bytes) ? allocator_.SlotsPerSlab(slot_bytes) : 0;
}

bool KeptSlots::MoreToCome() const {
  const HostArena& arena = *state_.env.arena;
  return arena.growing() && arena.ready_bytes() < left_slabs_ * allocator_.slab_bytes();
}

void KeptSlots::ForgetRest() {
  unready_ = 0;
  const uint64_t ready = state_.env.arena->ready_bytes() / allocator_.slab_bytes();
  for (uint64_t slab = ready; slab < left_slabs_; ++slab)
    state_.env.arena->table()->ForgetSlab(slab);
}

void KeptSlots::Claim(uint64_t first_slab, uint64_t end_slab) {
  HostTable* const table = state_.env.arena->table();
  if (table == nullptr) return;
  std::vector<Slot> found;
  for (uint64_t slab = first_slab; slab < end_slab; ++slab) {
    if (table->TakeDamagedCut(slab)) ReportDamage();
    if (SlotsIn(slab) > 0) ClaimSlab(slab, table->SlotBytesOf(slab), &found);
  }
  if (found.empty()) return;
  std::ranges::sort(found, {}, &Slot::last_use_s);
  waiting_ += found.size();
  found_.push_back(std::move(found));
}

void KeptSlots::ClaimSlab(uint64_t slab, uint64_t slot_bytes, std::vector<Slot>* found) {
  HostTable& table = *state_.env.arena->table();
  unready_ -= SlotsIn(slab);
  const SlotClass slots{slot_bytes, GroupOf(slab, slot_bytes)};
  const uint64_t begin = slab * allocator_.slab_bytes();
  for (uint64_t i = 0; i < allocator_.SlotsPerSlab(slot_bytes); ++i) {
    const uint64_t address = begin + i * slot_bytes;
    switch (table.StateOf(address)) {
      case HostSlotState::kEmpty:
        break;
      case HostSlotState::kDamaged:
        ReportDamage();
        table.Clear(address);
        break;
      case HostSlotState::kFilling:
        ClaimUnfinished(address, slots);
        break;
      case HostSlotState::kComplete:
        KVT_CHECK(allocator_.Claim(address, slots, kNoEntry));
        found->push_back({address, table.FactsOf(address).last_use_s});
        break;
    }
  }
}

void KeptSlots::ReportDamage() {
  state_.stats.CountAdoptionDrop(AdoptionDrop::kCorrupt);
  state_.incidents.Report(
      IncidentKind::kRestartDamaged,
      MakeError(ErrorCode::kCorrupt, "table_damaged", "a record of host memory"));
}

void KeptSlots::ClaimUnfinished(uint64_t address, const SlotClass& slots) {
  state_.stats.CountAdoptionDrop(AdoptionDrop::kUnfinished);
  if (state_.clock.NowMs() >= late_until_ms_) return state_.env.arena->table()->Clear(address);
  KVT_CHECK(allocator_.Claim(address, slots, kNoEntry));
  unfinished_.push_back(address);
}

// The header is not checked against its payload yet: whatever it says, the slab gets a group that
// exists. A wrong one costs nothing but the slab's place in another tenant's reserve.
uint32_t KeptSlots::GroupOf(uint64_t slab, uint64_t slot_bytes) const {
  if (!state_.tenants.any()) return 0;
  const HostTable& table = *state_.env.arena->table();
  const uint64_t slots = allocator_.SlotsPerSlab(slot_bytes);
  uint64_t tries = kHeadersTried;
  for (uint64_t i = 0; i < slots && tries > 0; ++i) {
    const uint64_t address = slab * allocator_.slab_bytes() + i * slot_bytes;
    if (table.StateOf(address) != HostSlotState::kComplete) continue;
    --tries;
    const std::span<const std::byte> slot(state_.env.arena->data() + address, slot_bytes);
    const auto header = DecodeSlotHeader(slot.first<kSlotHeaderBytes>());
    if (header) return state_.tenants.GroupOf(Tier::kHost, state_.tenants.Find(header->tenant));
  }
  return 0;
}

std::optional<KeptSlots::Slot> KeptSlots::Next() {
  if (found_.empty()) return std::nullopt;
  const auto hottest = std::ranges::max_element(
      found_, {}, [](const std::vector<Slot>& slots) { return slots.back().last_use_s; });
  const Slot next = hottest->back();
  hottest->pop_back();
  if (hottest->empty()) found_.erase(hottest);
  --waiting_;
  return next;
}

void KeptSlots::Free(uint64_t address) {
  state_.env.arena->table()->Clear(address);
  allocator_.Free(address);
}

bool KeptSlots::Tick() {
  HostTable* const table = state_.env.arena->table();
  if (table == nullptr || state_.clock.NowMs() < late_until_ms_) return false;
  // Not sooner: a daemon that follows before that has to wait for the same reads.
  const Digest128& disk_set = state_.env.disk_set;
  if (table->disk_set() != disk_set) table->SetDiskSet(disk_set);
  for (const uint64_t address : unfinished_) Free(address);
  return !std::exchange(unfinished_, {}).empty();
}

}  // namespace kvtier
