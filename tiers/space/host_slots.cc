// SPDX-License-Identifier: Apache-2.0
#include "tiers/space/host_slots.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "base/result.h"
#include "tiers/space/pin_share.h"

namespace kvtier {
namespace {

// Classes of slots whose searches are known to have ended; with more, all others seem to have.
constexpr size_t kMostEndedClasses = 64;

// How long the block has been in host.
uint32_t AgeDs(const CacheState& state, const BlockEntry& entry) {
  return state.clock.NowDs() - entry.host_since_ds;
}

// The block may leave host: at no cost, or because others have waited for long enough.
bool MayLeave(const CacheState& state, const BlockEntry& entry) {
  return entry.EvictableFromHost(state.has_disk()) ||
         (entry.DroppableFromHost() && state.pressure.MayGiveUp(AgeDs(state, entry)));
}

// The block is pinned and nowhere else: not the coldest after all.
bool Kept(const CacheState& state, const BlockEntry& entry) {
  return entry.in_host() && entry.HoldsHostSlab(state.has_disk()) &&
         state.blocks.ReadyPool(entry) == nullptr;
}

DropReason ReasonFor(const CacheState& state, const BlockEntry& entry) {
  if (entry.on_disk()) return DropReason::kCleanCopyBelow;
  if (entry.in_pool()) return DropReason::kCopyAbove;
  if (entry.retention == RetentionClass::kMemory) return DropReason::kMemoryClass;
  if (entry.NeedsPersist(state.has_disk())) return DropReason::kPoolPressure;
  return DropReason::kLru;
}

}  // namespace

HostSlots::HostSlots(CacheState* state, PersistQueue* to_disk)
    : state_(*state),
      order_(state->orders.host),
      to_disk_(*to_disk),
      allocator_(state->options.slab_bytes, 0),
      kept_(state, &allocator_),
      capacity_bytes_(state->env.arena->capacity_bytes()),
      shares_(state->tenants.rows()) {
  state_.pinned_slabs.host.SetAllocator(&allocator_);
}

void HostSlots::Grow() {
  const uint64_t bytes = std::min(state_.env.arena->ready_bytes(), capacity_bytes_);
  const uint64_t slabs = bytes / allocator_.slab_bytes();
  if (slabs <= allocator_.slabs()) return;
  allocator_.Resize(slabs);
  if (slabs <= claimed_slabs_) return;
  // In the same event, before any of these slots can be given out.
  kept_.Claim(std::exchange(claimed_slabs_, slabs), slabs);
}

void HostSlots::Resize(uint64_t bytes) {
  capacity_bytes_ = bytes;
  allocator_.Resize(std::min(allocator_.slabs(), bytes / allocator_.slab_bytes()));
  Grow();
  ++changes_;
}

std::optional<uint64_t> HostSlots::BeginMove(EntryIndex index) {
  const SpaceRequest request = RequestFor(state_.blocks.NamespaceOf(state_[index]));
  const std::optional<uint64_t> to = allocator_.Allocate(request.slots, kNoEntry);
  HostTable* const table = state_.env.arena->table();
  if (to && table != nullptr) table->BeginFill(*to, request.slots.slot_bytes);
  return to;
}

// A process that dies between the two changes of the table leaves the block twice.
void HostSlots::EndMove(EntryIndex index, uint64_t to, bool moved) {
  BlockEntry& entry = state_[index];
  const uint64_t from = entry.host_slot.value * kHostSlotUnit;
  if (moved) {
    if (state_.HoldsSlab(Tier::kHost, entry)) {
      const uint64_t bytes = state_.blocks.NamespaceOf(entry).slot_bytes;
      state_.pinned_slabs.host.Remove(from / allocator_.slab_bytes(), bytes);
      state_.pinned_slabs.host.Add(to / allocator_.slab_bytes(), bytes);
    }
    entry.host_slot = HostSlot(static_cast<uint32_t>(to / kHostSlotUnit));
    allocator_.SetOwner(to, index);
    state_.tables.EndHostChange(index);
  }
  const uint64_t empty = moved ? from : to;
  if (HostTable* const table = state_.env.arena->table()) table->Clear(empty);
  allocator_.Free(empty);
  ++changes_;
}

// A tenant that has less than was reserved for it takes from others first.
HostSlots::SpaceRequest HostSlots::RequestFor(const Namespace& name_space) const {
  const TenantId tenant = name_space.tenant;
  const uint32_t group = state_.tenants.GroupOf(Tier::kHost, tenant);
  SpaceRequest request{tenant, {name_space.slot_bytes, group}, SpaceRequest::From::kCommon};
  if (allocator_.GroupSlabs(group) < state_.tenants.ReservedSlabs(Tier::kHost, tenant)) {
    request.from = SpaceRequest::From::kOthers;
  }
  return request;
}

HostSlots::Outcome HostSlots::Allocate(EntryIndex index) {
  const Namespace& name_space = state_.blocks.NamespaceOf(state_[index]);
  const SpaceRequest request = RequestFor(name_space);
  last_slots_ = request.slots;
  shares_[request.tenant.value].slot_bytes = name_space.slot_bytes;
  const Outcome allowed = MakeSpaceUnderCap(request.tenant, name_space.slot_bytes);
  if (allowed != Outcome::kAllocated) return allowed;
  if (TakeFreeSlot(index, request)) return Outcome::kAllocated;
  const Outcome made = EvictFromOthersFirst(request);
  if (made != Outcome::kAllocated) return made;
  if (TakeFreeSlot(index, request)) return Outcome::kAllocated;
  // The block that went had its slot in a slab that leaves: the next may do better.
  if (state_.env.arena->capacity_bytes() > capacity_bytes_) state_.SchedulePart();
  return Outcome::kWait;
}

HostSlots::Outcome HostSlots::MakeRoomFor(EntryIndex index) {
  return EvictFromOthersFirst(RequestFor(state_.blocks.NamespaceOf(state_[index])));
}

HostSlots::Outcome HostSlots::EvictFromOthersFirst(SpaceRequest request) {
  const Outcome made = EvictFor(request);
  if (made != Outcome::kFull || request.from != SpaceRequest::From::kOthers) return made;
  request.from = SpaceRequest::From::kCommon;
  return EvictFor(request);
}

HostSlots::Outcome HostSlots::MakeSpaceUnderCap(TenantId tenant, uint64_t bytes) {
  for (uint32_t evictions = state_.options.search_part_blocks;
       !state_.tenants.Fits(Tier::kHost, tenant, bytes); --evictions) {
    if (evictions == 0) {
      state_.SchedulePart();
      return Outcome::kWait;
    }
    const Outcome own = EvictFor({tenant, {}, SpaceRequest::From::kOwn});
    if (own == Outcome::kFull) return Outcome::kOverCap;
    if (own != Outcome::kAllocated) return own;
  }
  return Outcome::kAllocated;
}

bool HostSlots::TakeFreeSlot(EntryIndex index, const SpaceRequest& request) {
  const std::optional<uint64_t> address = allocator_.Allocate(request.slots, index);
  if (!address) return false;
  GiveSlot(index, *address);
  state_.tables.BeginHostChange(state_[index]);
  state_.pressure.await_disk.erase(request.tenant);
  return true;
}

void HostSlots::GiveSlot(EntryIndex index, uint64_t address) {
  const Namespace& name_space = state_.blocks.NamespaceOf(state_[index]);
  state_[index].host_slot = HostSlot(static_cast<uint32_t>(address / kHostSlotUnit));
  state_.Apply(index, BlockEvent::kTakeHostSlot);
  state_.tenants.Charge(Tier::kHost, name_space.tenant, name_space.slot_bytes);
  state_.usage.Take(name_space.line, Tier::kHost, name_space.slot_bytes);
  ++shares_[name_space.tenant.value].slots;
}

// A block that some movement expects keeps the place in the order that it took with that.
void HostSlots::Adopt(EntryIndex index, uint64_t address) {
  KVT_CHECK(allocator_.ClassAt(address).slot_bytes ==
            state_.blocks.NamespaceOf(state_[index]).slot_bytes);
  const bool expected = InOrder(index);
  GiveSlot(index, address);
  allocator_.SetOwner(address, index);
  if (!expected) MakeColdest(index);
  // The table says all the time that the slot is whole: a death now does not cost the block.
  Ready(index);
}

void HostSlots::FreeKept(uint64_t address) {
  kept_.Free(address);
  ++changes_;
}

void HostSlots::Ready(EntryIndex index) {
  BlockEntry& entry = state_[index];
  KVT_CHECK(InOrder(index));
  state_.Apply(index, BlockEvent::kFillHostSlot);
  state_.tables.EndHostChange(index);
  entry.host_since_ds = state_.clock.NowDs();
  ++ready_blocks_;
  ++changes_;
  ++shares_[state_.blocks.TenantOf(entry).value].ready;
  to_disk_.SourceReady(index);
}

void HostSlots::RollBack(EntryIndex index) {
  BlockEntry& entry = state_[index];
  state_.Apply(index, BlockEvent::kFreeHostSlot);
  const Namespace& name_space = state_.blocks.NamespaceOf(entry);
  const uint64_t address = entry.host_slot.value * kHostSlotUnit;
  // Before the slot can be given to another block.
  if (HostTable* const table = state_.env.arena->table()) table->Clear(address);
  allocator_.Free(address);
  ++changes_;
  state_.tenants.Refund(Tier::kHost, name_space.tenant, name_space.slot_bytes);
  state_.usage.GiveBack(name_space.line, Tier::kHost, name_space.slot_bytes);
  --shares_[name_space.tenant.value].slots;
  entry.host_slot = kNoHostSlot;
}

void HostSlots::Drop(EntryIndex index, DropReason reason) {
  const BlockEntry& entry = state_[index];
  state_.Apply(index, BlockEvent::kDropFromHost);
  state_.drops.Count(index, Tier::kHost, reason);
  state_.drops.CountResidence(Tier::kHost, entry.host_since_ds);
  --ready_blocks_;
  --shares_[state_.blocks.TenantOf(entry).value].ready;
  RollBack(index);
  state_.ForgetIfGone(index);
}

// Whether waiting can help: a slot that is being filled will hold a block that can be evicted, one
// that an earlier daemon left will be adopted or freed, and an arena that grows will have more.
bool HostSlots::MoreToCome(const SpaceRequest& request, bool grows) const {
  // Slots that are in use but not cached are being filled, or wait to be adopted.
  if (request.from == SpaceRequest::From::kOwn) {
    const Share& own = shares_[request.tenant.value];
    return own.slots > own.ready;
  }
  return allocator_.used_slots() > ready_blocks_ || grows;
}

bool HostSlots::EvictableForOthers(TenantId tenant) const {
  const uint64_t reserved = state_.tenants.ReservedSlabs(Tier::kHost, tenant);
  return reserved == 0 || allocator_.GroupSlabs(tenant.value) > reserved;
}

bool HostSlots::Admits(const SpaceRequest& request, TenantId tenant) const {
  switch (request.from) {
    case SpaceRequest::From::kOwn:
      return tenant == request.tenant;
    case SpaceRequest::From::kOthers:
      return tenant != request.tenant && EvictableForOthers(tenant);
    case SpaceRequest::From::kCommon:
      break;
  }
  return tenant == request.tenant || EvictableForOthers(tenant);
}

EntryIndex HostSlots::Coldest(const SpaceRequest& request, Search* search, uint64_t* steps) {
  const auto admits = [&](TenantId tenant) { return Admits(request, tenant); };
  for (; *steps > 0; --*steps) {
    const uint64_t spared = state_.pressure.awaited_spared;
    state_.pressure.spares_awaited = !search->takes_awaited;
    const EntryIndex front = order_.Front(admits, [this](EntryIndex entry) { PrepareOne(entry); });
    state_.pressure.spares_awaited = true;
    search->spared |= state_.pressure.awaited_spared != spared;
    if (front == kNoEntry) return kNoEntry;
    ++state_.stats.host_eviction_steps;
    if (!state_[front].PassesThroughHost()) return front;
    search->passing |= state_[front].has_host_slot();
    // More is on its way than host can hold: blocks that have arrived leave first.
    PassOver(front, search);
  }
  return kNoEntry;
}

void HostSlots::Asked::GoOnWith(const SlotClass& slots, uint64_t pumps) {
  next = slots;
  next_since = pumps;
}

void HostSlots::Asked::NoteEnd(const End& end, uint64_t changes) {
  if (next == end.slots) next.reset();
  if (std::exchange(ended_since, changes) != changes) ended.clear();
  std::erase_if(ended, [&](const End& earlier) { return earlier.slots == end.slots; });
  if (ended.size() < kMostEndedClasses) ended.push_back(end);
}

std::optional<HostSlots::Asked::End> HostSlots::Asked::EndOf(const SlotClass& slots,
                                                             uint64_t changes) const {
  if (ended_since != changes) return std::nullopt;
  const auto found = std::ranges::find(ended, slots, &End::slots);
  if (found != ended.end()) return *found;
  if (ended.size() < kMostEndedClasses) return std::nullopt;
  return End{slots, Outcome::kWait, 0};
}

HostSlots::Outcome HostSlots::EvictFor(const SpaceRequest& request) {
  Asked& asked = shares_[request.tenant.value].asked[static_cast<size_t>(request.from)];
  const uint64_t pumps = state_.parts.pumps();
  const std::optional<Asked::End> end = asked.EndOf(request.slots, changes_);
  if (end && end->in == pumps && end->outcome == Outcome::kFull) return Outcome::kFull;
  uint64_t& left = state_.parts.LeftOf(&asked.part);
  const bool others_turn = asked.IsOthersTurn(request.slots, pumps);
  if (left == 0 || others_turn) {
    if (end) return end->outcome;
    if (!others_turn) asked.GoOnWith(request.slots, pumps);
    state_.SchedulePart();
    return Outcome::kWait;
  }
  const uint64_t before = state_.stats.host_eviction_steps;
  asked.next.reset();
  const Outcome outcome = EvictWithin(left, request);
  Search& search = shares_[request.tenant.value].searches[static_cast<size_t>(request.from)];
  const bool goes_on = std::exchange(search.goes_on, false);
  if (goes_on) {
    asked.GoOnWith(request.slots, pumps);
    state_.SchedulePart();
  }
  left -= std::min(left, state_.stats.host_eviction_steps - before);
  if (outcome != Outcome::kAllocated && !goes_on) {
    asked.NoteEnd({request.slots, outcome, pumps}, changes_);
  }
  return outcome;
}

// The coldest leaves, or the search ends with it: a block that must be written first is waited for,
// so that eviction follows the policy. Only blocks that may stay for an unknown time (pinned ones,
// ones in a slab of another class that cannot be emptied) are passed over.
HostSlots::Outcome HostSlots::EvictWithin(uint64_t part, const SpaceRequest& request) {
  const bool own = request.from == SpaceRequest::From::kOwn;
  Search& search = shares_[request.tenant.value].searches[static_cast<size_t>(request.from)];
  const EntryIndex unpinned =
      own ? kNoEntry
          : EndPinsBeyondShare(&state_, Tier::kHost, allocator_,
                               ExpectedHostSlabs(state_, capacity_bytes_), request.slots,
                               [this](TenantId tenant) { return EvictableForOthers(tenant); });
  if (unpinned != kNoEntry && EvictSlab(unpinned) == SlabEviction::kDone) {
    search = {};
    return Outcome::kAllocated;
  }
  // It goes on waiting for all that it waited for: two that began anew by turns would have no end.
  if (search.slots != request.slots) {
    search = {.slots = request.slots,
              .takes_awaited = search.takes_awaited,
              .waits_since = search.waits_since};
  }
  const uint64_t candidates = order_.size([&](TenantId tenant) { return Admits(request, tenant); });
  const uint64_t last_step = state_.stats.host_eviction_steps + part;
  const auto left = [&] { return state_.stats.host_eviction_steps < last_step; };
  // A tier may be full of pinned blocks, or of blocks that are being loaded.
  for (uint64_t looks = std::min(candidates, part); looks > 0 && left(); --looks) {
    const EntryIndex coldest = Coldest(request, &search, &looks);
    if (coldest == kNoEntry) break;
    const BlockEntry& entry = state_[coldest];
    const uint64_t slab = entry.host_slot.value * kHostSlotUnit / allocator_.slab_bytes();
    // A slab that leaves is never cut anew: its blocks go one by one.
    const uint64_t address = slab * allocator_.slab_bytes();
    const bool whole_slab =
        !own && !allocator_.Leaving(address) && allocator_.ClassAt(address) != request.slots;
    if (Kept(state_, entry) || (whole_slab && search.blocked_slabs.contains(slab))) {
      PassOver(coldest, &search);
      continue;
    }
    // The disk may decline it, and then it may leave; else it leaves as soon as it is written.
    if (!MayLeave(state_, entry)) to_disk_.Want(coldest);
    if (!MayLeave(state_, entry)) {
      state_.pressure.await_disk.insert(request.tenant);
      if (!state_.pressure.MayGiveUp(AgeDs(state_, entry))) return Outcome::kWait;
      search.passing = true;
      PassOver(coldest, &search);
      continue;
    }
    if (!whole_slab) {
      const DropReason reason = ReasonFor(state_, entry);
      if (reason == DropReason::kPoolPressure) {
        state_.pressure.WritePrefixesFirst(state_.clock.NowMs());
      }
      search = {};
      Drop(coldest, own && reason == DropReason::kLru ? DropReason::kTenantCap : reason);
      return Outcome::kAllocated;
    }
    const SlabEviction eviction = EvictSlab(coldest);
    if (eviction == SlabEviction::kDone) search = {};
    if (eviction != SlabEviction::kBlocked) {
      return eviction == SlabEviction::kDone ? Outcome::kAllocated : Outcome::kWait;
    }
    search.blocked_slabs.insert(slab);
    PassOver(coldest, &search);
  }
  return EndSearch(request, search.passed_over < candidates && !left(), &search);
}

HostSlots::Outcome HostSlots::EndSearch(const SpaceRequest& request, bool more, Search* search) {
  if (more) {
    // In an event of their own; not if all were looked at, and nothing has changed since: several
    // requests that wait for the same blocks would search in turn without end.
    search->goes_on = search->waits_since != changes_;
    return Outcome::kWait;
  }
  // All others are on their way, and the slots that they wait for are those of awaited blocks.
  if (search->spared && !search->takes_awaited && !search->passing &&
      !MoreToCome(request, /*grows=*/false) && search->waits_since != changes_) {
    *search = {.takes_awaited = true, .waits_since = search->waits_since};
    state_.SchedulePart();
    return Outcome::kWait;
  }
  const bool waits = search->passing || MoreToCome(request, state_.env.arena->growing());
  *search = {};
  // After others' blocks, a request goes on with all that may go: then this one was no end, either.
  if (waits || request.from == SpaceRequest::From::kOthers) search->waits_since = changes_;
  return waits ? Outcome::kWait : Outcome::kFull;
}

// Behind all others, though it may be one that leaves first: the search would meet it again at
// once.
void HostSlots::PassOver(EntryIndex index, Search* search) {
  Touch(index);
  ++search->passed_over;
}

// A slab changes its slot size only when it is empty: all of its blocks leave together, or none.
HostSlots::SlabEviction HostSlots::EvictSlab(EntryIndex coldest) {
  SlabEviction outcome = SlabEviction::kDone;
  std::vector<EntryIndex> owners;
  allocator_.ForEachInSlab(
      state_[coldest].host_slot.value * kHostSlotUnit, [&](uint64_t, EntryIndex owner) {
        ++state_.stats.host_eviction_steps;
        if (outcome == SlabEviction::kBlocked) return;
        // A slot that an earlier daemon left is no block's until it has been checked.
        if (owner == kNoEntry) {
          outcome = SlabEviction::kBlocked;
          return;
        }
        const BlockEntry& entry = state_[owner];
        owners.push_back(owner);
        if (MayLeave(state_, entry) && !Kept(state_, entry)) return;
        // A write to disk ends soon, and then the block may go. Pins and loads may last.
        const bool leaves_soon = entry.in_host() && (entry.NeedsPersist(state_.has_disk()) ||
                                                     entry.writing() || entry.committing());
        if (!leaves_soon) outcome = SlabEviction::kBlocked;
        if (outcome == SlabEviction::kDone) outcome = SlabEviction::kWait;
      });
  if (outcome == SlabEviction::kBlocked) return outcome;
  if (outcome == SlabEviction::kWait) {
    for (const EntryIndex owner : owners) {
      if (state_[owner].in_host()) to_disk_.Want(owner);
    }
    // Blocks that the disk declines may leave at once.
    const bool all_may = std::ranges::all_of(owners, [&](EntryIndex owner) {
      return MayLeave(state_, state_[owner]) && !Kept(state_, state_[owner]);
    });
    if (!all_may) return outcome;
  }
  for (const EntryIndex owner : owners) Drop(owner, DropReason::kSlabReclaimed);
  return SlabEviction::kDone;
}

// Blocks of several sizes stand in the order: they count by their bytes, whichever of them asked
// last. More than a part is left to the events that follow: to ask for one would have no end where
// a search that waits for the disk passes over, and so takes back, all that was prepared.
void HostSlots::Prepare() {
  uint64_t steps = state_.options.search_part_blocks;
  for (uint32_t i = 1; i < shares_.size(); ++i) PrepareOwn(TenantId(i), &steps);
  if (last_slots_.slot_bytes > 0) {
    const double share = state_.options.host_clean_fraction;
    const auto total = static_cast<double>(allocator_.TotalSlots(last_slots_.slot_bytes));
    const auto wanted = static_cast<uint64_t>(std::ceil(share * total));
    const uint64_t free = std::min(wanted, allocator_.FreeSlots(last_slots_));
    order_.PrepareColdest((wanted - free) * last_slots_.slot_bytes,
                          [this](TenantId tenant) { return EvictableForOthers(tenant); },
                          [this](EntryIndex entry) { PrepareOne(entry); }, &steps);
  }
}

// A tenant with a cap or slabs of its own will have to evict its own blocks, however cold those of
// others are: its share of clean blocks is counted apart.
void HostSlots::PrepareOwn(TenantId tenant, uint64_t* steps) {
  (void)MakeSpaceUnderCap(tenant, 0);
  const Share& own = shares_[tenant.value];
  if (own.slot_bytes == 0) return;
  uint64_t bound = state_.tenants.cap_bytes(Tier::kHost, tenant);
  if (const uint32_t group = state_.tenants.GroupOf(Tier::kHost, tenant); group != 0) {
    bound = std::min(bound, allocator_.GroupSlabs(group) * allocator_.slab_bytes());
  }
  if (bound == UINT64_MAX) return;
  const uint64_t slots = bound / own.slot_bytes;
  const auto wanted = static_cast<uint64_t>(
      std::ceil(state_.options.host_clean_fraction * static_cast<double>(slots)));
  const uint64_t used = state_.tenants.used_bytes(Tier::kHost, tenant);
  const uint64_t free = (bound - std::min(bound, used)) / own.slot_bytes;
  if (wanted <= free) return;
  order_.PrepareTenant(
      tenant, (wanted - free) * own.slot_bytes, [this](EntryIndex entry) { PrepareOne(entry); },
      steps);
}

void HostSlots::PrepareOne(EntryIndex index) {
  BlockEntry& entry = state_[index];
  if (entry.on_disk()) {
    state_.orders.TouchDisk(state_.blocks.TenantOf(state_[index]), index, state_[index]);
  } else {
    to_disk_.Want(index);
  }
}

}  // namespace kvtier
