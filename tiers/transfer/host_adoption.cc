// SPDX-License-Identifier: Apache-2.0
#include "tiers/transfer/host_adoption.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/units.h"

namespace kvtier {
namespace {

// One piece of work for a thread: under a millisecond, so that the checksum of an offload never
// waits for long, and few enough blocks for one event.
constexpr uint64_t kBatchBytes = 4 * kMiB;
// Enough for all threads there are (16 at most) to have one each.
constexpr uint64_t kMaxInFlightBytes = 16 * kBatchBytes;
constexpr size_t kOrderedPerEvent = 512;

}  // namespace

HostAdoption::HostAdoption(CacheState* state, HostSlots* host)
    : state_(*state), host_(*host), entries_(state) {}

bool HostAdoption::Pump() {
  bool started = false;
  while (in_flight_bytes_ < kMaxInFlightBytes && host_.kept().waiting() > 0) {
    if (stage_ != Stage::kVerifying) began_ms_ = state_.clock.NowMs();
    stage_ = Stage::kVerifying;
    StartBatch();
    started = true;
  }
  if (stage_ == Stage::kVerifying && waiting() == 0 && !host_.kept().MoreToCome()) BeginOrdering();
  if (!end_noted_ && Ended()) {
    end_noted_ = true;
    evicted_.clear();
    // Erasures are answered from here on, and have seen nothing of memory that never came.
    host_.kept().ForgetRest();
    if (HostTable* const table = state_.env.arena->table()) table->EndAdoption();
  }
  return started;
}

bool HostAdoption::Ended() const {
  // Memory that comes later, with another size, is new.
  if (end_noted_) return true;
  return !host_.kept().MoreToCome() && waiting() == 0 &&
         (stage_ == Stage::kNone || stage_ == Stage::kDone);
}

void HostAdoption::NoteEvicted(const BlockKey& key) {
  if (!Ended()) evicted_.insert(key);
}

void HostAdoption::StartBatch() {
  const auto batch = std::make_shared<Batch>();
  uint64_t bytes = 0;
  while (bytes < kBatchBytes) {
    const std::optional<KeptSlots::Slot> next = host_.kept().Next();
    if (!next) break;
    const uint64_t slot_bytes = host_.allocator().ClassAt(next->address).slot_bytes;
    batch->push_back({.address = next->address,
                      .bytes = {state_.env.arena->data() + next->address, slot_bytes}});
    bytes += slot_bytes;
  }
  in_flight_bytes_ += bytes;
  slots_in_flight_ += batch->size();
  // The slots are taken and no block's: nothing writes to them meanwhile. The work may end after
  // the cache, but not after the arena.
  state_.env.executor->Run(
      [batch] { std::ranges::for_each(*batch, [](Slot& slot) { Verify(&slot); }); },
      gate_.WhileOpen([this, batch, bytes] {
        in_flight_bytes_ -= bytes;
        slots_in_flight_ -= batch->size();
        Finish(*batch);
      }));
}

// The payload comes last: its checksum costs most.
void HostAdoption::Verify(Slot* slot) {
  Result<SlotHeader> header = DecodeSlotHeader(slot->bytes.first<kSlotHeaderBytes>());
  if (!header) return;
  slot->misplaced = SlotBytes(header->payload_bytes) != slot->bytes.size();
  if (slot->misplaced) return;
  const auto payload = slot->bytes.subspan(kSlotHeaderBytes, header->payload_bytes);
  if (ChecksumPayload(payload) == header->payload_checksum) slot->header = *std::move(header);
}

void HostAdoption::Finish(const Batch& batch) {
  state_.SchedulePump();
  for (const Slot& slot : batch) {
    if (const std::optional<AdoptionDrop> dropped = Adopt(slot)) {
      state_.stats.CountAdoptionDrop(*dropped);
      if (*dropped == AdoptionDrop::kCorrupt) ReportDamage();
      host_.FreeKept(slot.address);
      continue;
    }
    ++state_.stats.adopted_blocks;
    state_.stats.adopted_bytes += slot.header->payload_bytes;
  }
}

void HostAdoption::ReportDamage() {
  state_.incidents.Report(
      IncidentKind::kRestartDamaged,
      tl::unexpected(Error{ErrorCode::kCorrupt, "checksum_mismatch", "a slot of host memory"}));
}

Result<BlockEntry> HostAdoption::Describe(const Slot& slot) {
  const SlotHeader& header = *slot.header;
  BlockEntry found;
  KVT_ASSIGN_OR_RETURN(
      found.namespace_id,
      state_.blocks.InternNamespace({header.tenant, header.model, header.payload_bytes}));
  // The table knows of later uses than the header, but no checksum guards it: its times can make a
  // block younger than it is, by its time to live at most, and never older.
  const HostSlotFacts facts = state_.env.arena->table()->FactsOf(slot.address);
  found.hash = header.hash;
  found.depth = header.depth;
  found.tokens = header.tokens;
  found.uses = facts.uses;
  found.retention = std::max(header.retention, facts.retention);
  found.created_s = state_.clock.FromWallS(std::max(header.created_s, facts.created_s));
  found.last_use_s = state_.clock.FromWallS(std::max(header.last_use_s, facts.last_use_s));
  return found;
}

std::optional<AdoptionDrop> HostAdoption::Adopt(const Slot& slot) {
  if (slot.misplaced) return AdoptionDrop::kMisplaced;
  if (!slot.header) return AdoptionDrop::kCorrupt;
  const Result<BlockEntry> found = Describe(slot);
  if (!found || found->tokens == 0) return AdoptionDrop::kMisplaced;
  const BlockKey key{found->namespace_id, found->hash};
  if (evicted_.contains(key) || state_.BeingErased(*found)) return AdoptionDrop::kEvictedByHand;
  EntryIndex index = state_.blocks.Find(key);
  const uint32_t pinned_until_s = state_.env.arena->table()->FactsOf(slot.address).pinned_until_s;
  if (index == kNoEntry && state_.Expired(*found) && !state_.pin_records.Lasts(pinned_until_s)) {
    return AdoptionDrop::kExpired;
  }
  if (index != kNoEntry) {
    const BlockEntry& known = state_[index];
    if (known.has_host_slot()) return AdoptionDrop::kDuplicate;
    if (known.tokens != found->tokens) return AdoptionDrop::kMisplaced;
  }
  if (!state_.tenants.Fits(Tier::kHost, state_.blocks.TenantOf(*found), slot.bytes.size())) {
    return AdoptionDrop::kTenantCap;
  }
  if (index == kNoEntry) index = entries_.Add(*found);
  BlockEntry& entry = state_[index];
  entry.uses = std::max(entry.uses, found->uses);
  entry.last_use_s = std::max(entry.last_use_s, found->last_use_s);
  // Before the table has the block's facts from here: they are never without its pin.
  state_.pin_records.Adopt(index, pinned_until_s);
  host_.Adopt(index, slot.address);
  adopted_.push_back({state_.blocks.directory.RefOf(index), entry.last_use_s});
  return std::nullopt;
}

void HostAdoption::BeginOrdering() {
  stage_ = Stage::kOrdering;
  const auto order = std::make_shared<std::vector<Adopted>>(std::move(adopted_));
  adopted_.clear();
  // There may be a million.
  state_.env.executor->Run(
      [order] { std::ranges::sort(*order, std::ranges::greater(), &Adopted::last_use_s); },
      gate_.WhileOpen([this, order] { OrderFrom(order, 0); }));
}

void HostAdoption::OrderFrom(const Order& order, size_t next) {
  const size_t end = std::min(order->size(), next + kOrderedPerEvent);
  for (; next < end; ++next) PutInOrder((*order)[next]);
  if (next < order->size()) {
    return state_.env.loop->Post(gate_.WhileOpen([this, order, next] { OrderFrom(order, next); }));
  }
  stage_ = Stage::kDone;
  state_.SchedulePump();
  const CacheStats& stats = state_.stats;
  if (state_.env.owner == nullptr) return;
  state_.env.owner->OnAdopted({.blocks = stats.adopted_blocks,
                               .bytes = stats.adopted_bytes,
                               .dropped = std::accumulate(stats.adoption_drops.begin(),
                                                          stats.adoption_drops.end(), uint64_t{0}),
                               .ms = state_.clock.NowMs() - began_ms_});
}

// Slabs became ready one after the other, so that older blocks may have been adopted before younger
// ones. The block may have been used since, and then it stands where it should. Parents are looked
// for now, since they may have been adopted after their children; one that is not there, because
// only a pool had it, is not counted as lost.
void HostAdoption::PutInOrder(const Adopted& adopted) {
  const EntryIndex index = state_.blocks.directory.Resolve(adopted.entry);
  if (index == kNoEntry || !state_[index].in_host()) return;
  const BlockEntry& entry = state_[index];
  if (entry.last_use_s == adopted.last_use_s) host_.MakeColdest(index);
  const auto header = DecodeSlotHeader(state_.tables.HostBytes(entry).first<kSlotHeaderBytes>());
  if (!header || !header->parent) return;
  const EntryIndex parent = state_.blocks.Find({entry.namespace_id, *header->parent});
  if (parent != kNoEntry) state_.LinkToParent(index, parent);
}

}  // namespace kvtier
