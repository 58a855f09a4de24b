// SPDX-License-Identifier: Apache-2.0
#include "tiers/transfer/retention.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/result.h"
#include "tiers/space/pin_share.h"

namespace kvtier {
namespace {

// The least number of blocks that one tick checks in each order of ages, however many orders share
// a part.
constexpr size_t kLeastExpiriesPerTick = 64;

}  // namespace

uint64_t Retention::PinLimit(NamespaceId namespace_id, double pin_fraction) const {
  const uint64_t slot_bytes = state_.blocks.namespaces[namespace_id.value].slot_bytes;
  const uint64_t slots = state_.has_disk() ? disk_.allocator().TotalSlots(slot_bytes)
                                           : ExpectedHostSlabs(state_, host_.capacity_bytes()) *
                                                 host_.allocator().SlotsPerSlab(slot_bytes);
  return static_cast<uint64_t>(pin_fraction * static_cast<double>(slots));
}

Status Retention::CheckPinFraction(double pin_fraction) const {
  const uint64_t pinned = state_.orders.pins.size();
  // Pinned blocks were allowed under the present fraction, whatever their sizes.
  if (pinned == 0 || pin_fraction >= state_.options.pin_fraction) return {};
  // Models with blocks of several sizes have limits of their own; the blocks stay as long as one
  // of them would allow so many.
  uint64_t limit = 0;
  for (uint32_t i = 0; i < state_.blocks.namespaces.size(); ++i) {
    if (state_.blocks.namespaces[i].slot_bytes == 0) continue;
    limit = std::max(limit, PinLimit(NamespaceId(i), pin_fraction));
  }
  if (pinned <= limit) return {};
  return MakeError(ErrorCode::kLimitExceeded, "pinned",
                   fmt::format("{} blocks are pinned, {} would be allowed", pinned, limit));
}

Status Retention::MayPin(NamespaceId namespace_id, std::span<const BlockHash> hashes,
                         uint64_t* more) {
  for (const BlockHash& hash : hashes) {
    const EntryIndex index = state_.blocks.Find({namespace_id, hash});
    if (index != kNoEntry && !state_.Expired(state_[index]) && !state_[index].pinned()) ++*more;
  }
  Status allowed = CheckPinLimits(namespace_id, *more);
  const TenantLine tenant = state_.blocks.namespaces[namespace_id.value].line;
  if (!allowed) state_.usage.CountPins(tenant, PinOutcome::kRefused, *more);
  return allowed;
}

Status Retention::CheckPinLimits(NamespaceId namespace_id, uint64_t more) const {
  const uint64_t limit = PinLimit(namespace_id, state_.options.pin_fraction);
  KVT_RETURN_IF_ERROR(TenantMayPin(namespace_id, more));
  if (state_.orders.pins.size() + more <= limit) return {};
  return MakeError(ErrorCode::kLimitExceeded, "pin_limit",
                   fmt::format("{} blocks pinned, {} more asked for, {} allowed",
                               state_.orders.pins.size(), more, limit));
}

// Pinned blocks stay in the lowest tier whatever the tenant stores after them: without this its own
// pins could take its whole cap there.
Status Retention::TenantMayPin(NamespaceId namespace_id, uint64_t more) const {
  const Namespace& name_space = state_.blocks.namespaces[namespace_id.value];
  const Tier lowest = state_.has_disk() ? Tier::kDisk : Tier::kHost;
  const uint64_t cap = state_.tenants.cap_bytes(lowest, name_space.tenant);
  if (cap == UINT64_MAX) return {};
  const auto limit = static_cast<uint64_t>(state_.options.pin_fraction * static_cast<double>(cap));
  const uint64_t bytes =
      state_.tenants.pinned_bytes(name_space.tenant) + more * name_space.slot_bytes;
  if (bytes <= limit) return {};
  return MakeError(
      ErrorCode::kLimitExceeded, "pin_limit",
      fmt::format("{} bytes of the tenant's would be pinned, {} are allowed", bytes, limit));
}

Result<uint32_t> Retention::Pin(NamespaceId namespace_id, std::span<const BlockHash> hashes,
                                SessionId holder, int64_t ttl_ms) {
  uint64_t more = 0;
  if (ttl_ms > 0) KVT_RETURN_IF_ERROR(MayPin(namespace_id, hashes, &more));
  const int64_t until_ms = state_.clock.AgeMs() + ttl_ms;
  uint32_t cached = 0;
  for (const BlockHash& hash : hashes) {
    const EntryIndex index = state_.blocks.Find({namespace_id, hash});
    if (index == kNoEntry || state_.Expired(state_[index])) continue;
    ++cached;
    if (ttl_ms > 0) {
      state_.Pin(index, holder, until_ms);
      // One whose write failed before is to be on disk now.
      state_.Apply(index, BlockEvent::kAllowPersist);
      state_.QueueIfUndecided(index);
    } else {
      state_.Unpin(index, holder);
      // Its time may have passed while it was pinned, and it may stand among the youngest.
      if (state_.Expired(state_[index])) state_.NoteExpired(index);
    }
  }
  if (ttl_ms > 0) {
    const TenantLine tenant = state_.blocks.namespaces[namespace_id.value].line;
    state_.usage.CountPins(tenant, PinOutcome::kGranted, cached);
  }
  return cached;
}

void Retention::Tick() {
  UnpinExpired();
  DropExpired();
  DropAged();
  // Blocks that cannot be dropped now are checked again after the same time.
  lost_left_ = state_.blocks.lost.size();
  GoOn();
  // Blocks left over are idle at the next tick, too.
  if (!state_.has_disk()) return;
  (void)PersistIdleFor(state_.options.persist_after_ms, state_.options.drain_part_rows);
}

// Pins that ended beyond those of a part do so with the next ticks.
void Retention::UnpinExpired() {
  const size_t most = state_.options.close_part_blocks;
  for (const EntryIndex index : state_.orders.pins.TakeEnded(state_.clock.AgeMs(), most)) {
    state_.Unpin(index);
    // A pin counts as use until it ends: the time to live starts now.
    state_.Touch(index);
  }
}

void Retention::DropExpired() {
  for (const EntryRef ref : state_.orders.seen_expired) {
    const EntryIndex index = state_.blocks.directory.Resolve(ref);
    if (index != kNoEntry && state_.Expired(state_[index])) DropIfUnused(index);
  }
  state_.orders.seen_expired.clear();
  // A day's worth of blocks may expire at once.
  const size_t part = state_.options.close_part_blocks;
  const size_t share =
      std::max(part / state_.orders.by_age.size(), std::min(part, kLeastExpiriesPerTick));
  for (const EntryList& list : state_.orders.by_age) {
    EntryIndex index = list.coldest();
    for (size_t looked_at = 0; index != kNoEntry && looked_at < share; ++looked_at) {
      const BlockEntry& entry = state_[index];
      const EntryIndex next = list.Hotter(index);
      if (state_.clock.AgeMs() <= state_.ExpiryMs(entry)) break;
      if (entry.pinned()) {
        // Where it stands, it would hide the blocks behind it.
        state_.orders.AgesOf(state_.blocks.TenantOf(entry), entry.retention).Touch(index);
      } else {
        DropIfUnused(index);
      }
      index = next;
    }
  }
}

// All of a directory of ten million rows is looked at within minutes, which are short beside ages.
// No order by creation is kept for it: restarts and clients that compute a block anew would have to
// put blocks into its middle.
void Retention::DropAged() {
  if (!state_.tenants.AnyMaxAge()) return;
  const uint64_t rows = state_.blocks.directory.end();
  const uint64_t end = std::min<uint64_t>(rows, aged_row_ + state_.options.close_part_blocks);
  for (; aged_row_ < end; ++aged_row_) {
    const EntryIndex index(static_cast<uint32_t>(aged_row_));
    if (state_.blocks.directory.Live(index) && state_.Expired(state_[index])) DropIfUnused(index);
  }
  if (aged_row_ >= rows) aged_row_ = 0;
}

bool Retention::DropIfUnused(EntryIndex index) {
  const BlockEntry& entry = state_[index];
  if (entry.busy()) return false;
  if (Referenced(entry)) {
    // A session holds it: it is in use, however long ago it was asked for.
    state_.Touch(index);
    return false;
  }
  DropEverywhere(index, DropReason::kExpired);
  return true;
}

void Retention::GoOn() {
  // A block that came back has made all that follows it usable.
  if (std::exchange(returned_seen_, state_.blocks.returned) != state_.blocks.returned)
    unwinding_.clear();
  const int64_t lost_until_ms = state_.clock.AgeMs() - state_.options.keep_unusable_ms;
  for (size_t steps = state_.options.search_part_blocks; steps > 0;) {
    if (!unwinding_.empty()) {
      const Unwinding next = unwinding_.back();
      unwinding_.pop_back();
      const EntryIndex index = state_.blocks.directory.Resolve(next.entry);
      if (index == kNoEntry) continue;
      DropFollowers(index, state_.blocks.directory.Resolve(next.next_child), &steps);
      continue;
    }
    const EntryIndex lost = state_.blocks.lost.coldest();
    if (lost_left_ == 0 || lost == kNoEntry) return;
    --lost_left_;
    if (int64_t{state_[lost].last_use_s} * 1000 > lost_until_ms) {
      // So are all others.
      lost_left_ = 0;
      return;
    }
    // Its followers that stay, because they are held, pinned or in flight, are checked again after
    // the same time.
    state_[lost].last_use_s = state_.clock.NowS();
    state_.blocks.lost.Touch(lost);
    DropFollowers(lost, kNoEntry, &steps);
  }
  state_.SchedulePart();
}

void Retention::DropFollowers(EntryIndex index, EntryIndex from, size_t* steps) {
  const bool goes_on = from != kNoEntry && state_.blocks.lineage.ParentOf(from) == index;
  EntryIndex child = goes_on ? from : state_.blocks.lineage.FirstChildOf(index);
  for (; *steps > 0; --*steps) {
    if (child == kNoEntry) break;
    const EntryIndex next = state_.blocks.lineage.NextSiblingOf(child);
    const BlockEntry& entry = state_[child];
    const Unwinding unwinding{state_.blocks.directory.RefOf(child), {}};
    if (!entry.busy() && !entry.pinned() && !Referenced(entry)) {
      // Forgets the lost block with the last that follows it.
      DropEverywhere(child, DropReason::kParentLost);
      if (state_.blocks.lost.Contains(child)) unwinding_.push_back(unwinding);
    } else if (state_.blocks.lineage.HasChildren(child)) {
      unwinding_.push_back(unwinding);
    }
    child = next;
  }
  if (child != kNoEntry) {
    // The next part begins where this one ends: the same blocks may stay again.
    unwinding_.push_back(
        {state_.blocks.directory.RefOf(index), state_.blocks.directory.RefOf(child)});
  } else if (*steps > 0) {
    --*steps;
  }
}

bool Retention::Referenced(const BlockEntry& entry) { return state_.blocks.References(entry) > 0; }

void Retention::DropEverywhere(EntryIndex index, DropReason reason) {
  const BlockEntry& entry = state_[index];
  // The last drop forgets the entry: where the block is must be known before.
  const bool in_host = entry.in_host();
  const bool on_disk = entry.on_disk();
  if (entry.in_pool()) pools_.DropAll(index, reason);
  if (in_host) host_.Drop(index, reason);
  if (on_disk) disk_.Drop(index, reason);
}

EvictOutcome Retention::Evict(const BlockKey& key, std::optional<Tier> tier) {
  constexpr DropReason kReason = DropReason::kEvictedByHand;
  const EntryIndex index = state_.blocks.Find(key);
  if (index == kNoEntry) return EvictOutcome::kAbsent;
  const BlockEntry& entry = state_[index];
  if (entry.pinned()) return EvictOutcome::kPinned;
  if (entry.busy() || entry.offered()) return EvictOutcome::kMoving;
  const bool leaves_pool = !tier || *tier == Tier::kPool;
  if (leaves_pool && Referenced(entry)) return EvictOutcome::kReferenced;
  if (!tier) {
    DropEverywhere(index, kReason);
    return EvictOutcome::kEvicted;
  }
  if (*tier == Tier::kPool && entry.in_pool()) {
    pools_.DropAll(index, kReason);
  } else if (*tier == Tier::kHost && entry.in_host()) {
    // Host is where the disk's copy is made from.
    if (entry.persist_wanted() || entry.write_queued()) return EvictOutcome::kMoving;
    host_.Drop(index, kReason);
  } else if (*tier == Tier::kDisk && entry.on_disk()) {
    disk_.Drop(index, kReason);
  } else {
    return EvictOutcome::kAbsent;
  }
  return EvictOutcome::kEvicted;
}

bool Retention::PersistIdleFor(int64_t idle_ms, uint64_t most) {
  const int64_t now_ms = state_.clock.AgeMs();
  for (; !state_.orders.unpersisted.empty(); --most) {
    const EntryIndex index = state_.orders.unpersisted.coldest();
    const BlockEntry& entry = state_[index];
    if (now_ms - int64_t{entry.last_use_s} * 1000 < idle_ms) return true;
    if (most == 0) return false;
    to_disk_.WantWithBytes(index);
  }
  return true;
}

}  // namespace kvtier
