// SPDX-License-Identifier: Apache-2.0
#include "tiers/transfer/return_prefetch.h"

#include <algorithm>
#include <iterator>
#include <ranges>
#include <utility>

#include "tiers/transfer/acquirer.h"

namespace kvtier {
namespace {

// Besides what loading is expected to take: ticks come late, and others want the disk as well.
constexpr int64_t kMarginMs = 500;
// The assumed time for a byte from disk before it was measured: that of a slow drive.
constexpr double kUnknownUsPerByte = 1.0 / 500;
// Prefetches are begun up to one part of so many of the bytes that may be on their way to a pool.
constexpr uint64_t kReturnShare = 2;
constexpr size_t kLooksPerTick = 4096;

}  // namespace

ReturnPrefetch::ReturnPrefetch(CacheState* state, PoolSpace* pools, Acquirer* acquirer,
                               Loader* loader)
    : state_(*state),
      pools_(*pools),
      acquirer_(*acquirer),
      loader_(*loader),
      finder_(state),
      shares_(state->tenants.rows()) {}

// Blocks at the end of the sequence that no tier holds need not be remembered.
void ReturnPrefetch::Expect(SessionId session, const CachePool& pool,
                            std::span<const BlockHash> hashes, int64_t returns_in_ms) {
  if (pool.is_region) return;
  EntryIndex last = kNoEntry;
  while (!hashes.empty()) {
    last = state_.blocks.Find({pool.namespace_id, hashes.back()});
    if (last != kNoEntry) break;
    hashes = hashes.first(hashes.size() - 1);
  }
  if (last == kNoEntry) return;
  const BlockKey last_block{pool.namespace_id, hashes.back()};
  if (const auto earlier = by_last_block_.find(last_block); earlier != by_last_block_.end()) {
    End(earlier->second, ReturnOutcome::kCancelled);
  }
  const TenantId tenant = state_.blocks.namespaces[pool.namespace_id.value].tenant;
  Share& share = shares_[tenant.value];
  if (share.sequences == kMostSequences || share.blocks + hashes.size() > kMostBlocks) {
    state_.stats.CountReturn(ReturnOutcome::kForgotten);
    return;
  }
  ++share.sequences;
  share.blocks += hashes.size();
  waiting_.push_back({.session = session,
                      .pool = pool.id,
                      .tenant = tenant,
                      .hashes = {hashes.begin(), hashes.end()},
                      .last_block = last_block,
                      .due_ms = state_.clock.NowMs() + returns_in_ms,
                      .until_s = state_.orders.ReturnsAtS(last)});
  by_last_block_[last_block] = std::prev(waiting_.end());
}

void ReturnPrefetch::Forget(SessionId session, std::optional<PoolId> pool) {
  for (Returns* list : {&waiting_, &due_}) {
    for (auto next = list->begin(); next != list->end();) {
      const auto awaited = next++;
      const bool meant = awaited->session == session && (!pool || awaited->pool == *pool);
      if (meant) End(awaited, ReturnOutcome::kCancelled);
    }
  }
}

void ReturnPrefetch::End(Returns::iterator awaited, ReturnOutcome outcome) {
  state_.stats.CountReturn(outcome);
  Share& share = shares_[awaited->tenant.value];
  --share.sequences;
  share.blocks -= awaited->hashes.size();
  by_last_block_.erase(awaited->last_block);
  (awaited->is_due ? due_ : waiting_).erase(awaited);
}

bool ReturnPrefetch::IsDue(const CachePool& pool, const Return& awaited) const {
  const LoadPrices prices = loader_.PricesNow(pool.device);
  const WayPrice& disk = prices[static_cast<size_t>(LoadWay::kDisk)];
  const double us_per_byte = disk.us_per_byte > 0 ? disk.us_per_byte : kUnknownUsPerByte;
  const double bytes = static_cast<double>(awaited.hashes.size() * pool.block_bytes);
  const auto load_ms = static_cast<int64_t>((disk.wait_us + bytes * us_per_byte) / 1000);
  return state_.clock.NowMs() + load_ms + kMarginMs >= awaited.due_ms;
}

// Sequences that were looked at and are not due go behind the others, so that all have their turn.
void ReturnPrefetch::Tick() {
  for (size_t looks = std::min(waiting_.size(), kLooksPerTick); looks > 0; --looks) {
    const auto awaited = waiting_.begin();
    const CachePool* const pool = state_.blocks.FindPool(awaited->pool);
    if (pool == nullptr) {
      End(awaited, ReturnOutcome::kCancelled);
    } else if (IsDue(*pool, *awaited)) {
      awaited->is_due = true;
      due_.splice(due_.end(), waiting_, awaited);
    } else {
      waiting_.splice(waiting_.end(), waiting_, awaited);
    }
  }
}

// One sequence of each pool in an event, also where it ends at once: to see that all of it is in
// the pool takes as long as to begin loads.
void ReturnPrefetch::Pump() {
  std::vector<const CachePool*> seen_to;
  for (auto next = due_.begin(); next != due_.end();) {
    const auto awaited = next++;
    CachePool* const pool = state_.blocks.FindPool(awaited->pool);
    if (std::ranges::find(seen_to, pool) != seen_to.end()) continue;
    seen_to.push_back(pool);
    const std::optional<ReturnOutcome> outcome = BringUp(pool, &*awaited);
    if (!outcome) continue;
    End(awaited, *outcome);
    if (!due_.empty()) state_.SchedulePart();
  }
}

// A block of it that is used has lost its time, and one that is expected anew has got another.
std::optional<ReturnOutcome> ReturnPrefetch::WhyNoMore(const CachePool* pool,
                                                       const Return& awaited) const {
  if (pool == nullptr) return ReturnOutcome::kCancelled;
  const EntryIndex last = state_.blocks.Find(awaited.last_block);
  if (last != kNoEntry && state_.orders.ReturnsAtS(last) != awaited.until_s) {
    return ReturnOutcome::kCancelled;
  }
  if (state_.clock.NowS() >= awaited.until_s) return ReturnOutcome::kShort;
  return std::nullopt;
}

std::optional<ReturnOutcome> ReturnPrefetch::BringUp(CachePool* pool, Return* awaited) {
  if (const std::optional<ReturnOutcome> end = WhyNoMore(pool, *awaited)) return end;
  const uint64_t most_blocks =
      std::max<uint64_t>(state_.options.max_load_bytes / kReturnShare / pool->block_bytes, 1);
  const uint64_t loading = pool->blocks.loading();
  if (acquirer_.AnyWaits(pool->id) || loading >= most_blocks) return std::nullopt;
  if (awaited->part_end == awaited->next) {
    TouchLowerTiers(ChoosePart(*pool, awaited, most_blocks - loading));
  }
  bool cut = false;
  if (!pools_.EnsureFree(pool, awaited->part.size(), PoolSpace::Spare::kAwaited)) {
    // Where the next to leave is awaited itself, or nothing can leave, there it ends.
    const EntryIndex next = pool->victims.Front();
    if (next != kNoEntry && !state_.Awaited(next)) return std::nullopt;
    cut = true;
  }
  Start(pool, awaited);
  if (cut) return ReturnOutcome::kShort;
  if (awaited->next == awaited->hashes.size()) return ReturnOutcome::kComplete;
  state_.SchedulePart();
  return std::nullopt;
}

// A block that no tier holds ends the prefix: nothing behind it could be hit.
std::vector<EntryIndex> ReturnPrefetch::ChoosePart(const CachePool& pool, Return* awaited,
                                                   uint64_t most) {
  size_t& end = awaited->part_end;
  std::vector<EntryIndex> chosen;
  MissReason miss = MissReason::kNone;
  EntryIndex index = kNoEntry;
  for (uint32_t looks = state_.options.acquire_part_blocks;
       looks > 0 && end < awaited->hashes.size() && awaited->part.size() < most; --looks) {
    index = finder_.Servable(index, {pool.namespace_id, awaited->hashes[end]}, &miss);
    if (index == kNoEntry) {
      end = awaited->hashes.size();
      break;
    }
    if (state_.blocks.BlockIn(pool, state_[index]) == kNoBlock) {
      awaited->part.push_back(end);
      chosen.push_back(index);
    }
    ++end;
  }
  return chosen;
}

// The deepest first, so that the start of the sequence stays youngest. Where tenants share the
// orders of host and disk, a hint of one changes nothing there.
void ReturnPrefetch::TouchLowerTiers(std::span<const EntryIndex> entries) {
  if (entries.empty() || state_.blocks.IsShared(state_.blocks.TenantOf(state_[entries.front()])))
    return;
  for (const EntryIndex index : std::views::reverse(entries)) {
    state_.orders.TouchDisk(state_.blocks.TenantOf(state_[index]), index, state_[index]);
    loader_.TouchHost(index);
  }
}

// Making room may have forgotten blocks that were found, and clients may have loaded some.
void ReturnPrefetch::Start(CachePool* pool, Return* awaited) {
  std::vector<EntryIndex> started;
  MissReason miss = MissReason::kNone;
  for (const size_t position : std::exchange(awaited->part, {})) {
    const BlockKey key{pool->namespace_id, awaited->hashes[position]};
    const EntryIndex index = finder_.Servable(kNoEntry, key, &miss);
    if (index == kNoEntry) {
      awaited->part_end = awaited->hashes.size();
      break;
    }
    if (pool->blocks.free() == 0) break;
    if (state_.blocks.BlockIn(*pool, state_[index]) != kNoBlock) continue;
    acquirer_.StartPrefetch(pool, index, {awaited->session});
    started.push_back(index);
  }
  awaited->next = awaited->part_end;
  state_.stats.return_blocks += started.size();
  state_.stats.return_bytes += started.size() * pool->block_bytes;
  TouchLowerTiers(started);
  for (const EntryIndex index : std::views::reverse(started)) loader_.TouchLoading(*pool, index);
}

}  // namespace kvtier
