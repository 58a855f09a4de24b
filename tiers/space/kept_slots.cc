// SPDX-License-Identifier: Apache-2.0
#include "tiers/space/kept_slots.h"

#include <algorithm>

#include "base/units.h"
#include "tiers/storage/slot_header.h"

namespace kvtier {
namespace {

// A read from disk that was under way when its process died ends when the drive has answered: the
// kernel waits for so long at most before it gives up. Its bytes must not reach another block.
constexpr int64_t kLateWritesMs = 30 * kSecondMs;
// Headers looked at to learn whose slab it is.
constexpr uint64_t kHeadersTried = 8;

}  // namespace

void KeptSlots::Claim(uint64_t first_slab, uint64_t end_slab) {
  HostTable* const table = state_.env.arena->table();
  if (table == nullptr) return;
  std::vector<Slot> found;
  for (uint64_t slab = first_slab; slab < end_slab; ++slab) {
    const uint64_t slot_bytes = table->SlotBytesOf(slab);
    if (slot_bytes != 0 && allocator_.Fits(slot_bytes)) ClaimSlab(slab, slot_bytes, &found);
  }
  if (found.empty()) return;
  std::ranges::sort(found, {}, &Slot::last_use_s);
  waiting_ += found.size();
  found_.push_back(std::move(found));
}

void KeptSlots::ClaimSlab(uint64_t slab, uint64_t slot_bytes, std::vector<Slot>* found) {
  HostTable& table = *state_.env.arena->table();
  const SlotClass slots{slot_bytes, GroupOf(slab, slot_bytes)};
  const uint64_t begin = slab * allocator_.slab_bytes();
  for (uint64_t i = 0; i < allocator_.SlotsPerSlab(slot_bytes); ++i) {
    const uint64_t address = begin + i * slot_bytes;
    switch (table.StateOf(address)) {
      case HostSlotState::kEmpty:
        break;
      case HostSlotState::kDamaged:
        state_.stats.CountAdoptionDrop(AdoptionDrop::kCorrupt);
        table.Clear(address);
        break;
      case HostSlotState::kFilling:
        state_.stats.CountAdoptionDrop(AdoptionDrop::kUnfinished);
        KVT_CHECK(allocator_.Claim(address, slots, kNoEntry));
        unfinished_.emplace_back(state_.NowMs() + kLateWritesMs, address);
        break;
      case HostSlotState::kComplete:
        KVT_CHECK(allocator_.Claim(address, slots, kNoEntry));
        found->push_back({address, table.FactsOf(address).last_use_s});
        break;
    }
  }
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
  bool freed = false;
  while (!unfinished_.empty() && unfinished_.front().first <= state_.NowMs()) {
    Free(unfinished_.front().second);
    unfinished_.pop_front();
    freed = true;
  }
  return freed;
}

}  // namespace kvtier
