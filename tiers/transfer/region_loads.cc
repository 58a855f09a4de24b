// SPDX-License-Identifier: Apache-2.0
// RegionTransfers: its loads, from their beginning to the blocks that wait for others.
#include <ranges>
#include <utility>
#include <vector>

#include "tiers/state/cold_copies.h"
#include "tiers/transfer/region_transfers.h"

namespace kvtier {

void RegionTransfers::Load(PoolId id, std::span<const LoadRequest> blocks) {
  Region& region = regions_.at(id);
  const TransferId number = region.uses.at(blocks.front().block).transfer;
  const bool in_layers = region.transfers.at(number).layers > 0;
  const uint32_t to_come = region.transfers.at(number).not_begun -=
      static_cast<uint32_t>(blocks.size());
  std::vector<EntryIndex> begun;
  for (const LoadRequest& block : blocks) {
    const EntryIndex index = TakeForLoad(&region, block);
    if (index == kNoEntry) continue;
    begun.push_back(index);
    if (in_layers && state_[index].in_host() &&
        !loader_.neighbours().SourceOf(*region.pool, index)) {
      Transfer& transfer = region.transfers.at(number);
      region.uses.at(block.block).in_layers = true;
      transfer.in_layers.push_back(loader_.StartInLayers(region.pool, index));
      if (transfer.count) transfer.count->EndWhole();
    } else {
      loader_.Start(region.pool, index);
    }
  }
  // The deepest first, so that the heads of sequences are the youngest in host.
  for (const EntryIndex index : begun | std::views::reverse) {
    loader_.TouchLoading(*region.pool, index);
  }
  if (!begun.empty()) touches_.TouchPrefix(state_.blocks.lineage.ParentOf(begun.front()));
  if (!begun.empty() && to_come == 0) NoteReturn(region, begun.back());
  // It has ended if all of its blocks have failed.
  const auto found = region.transfers.find(number);
  if (found != region.transfers.end() && found->second.not_begun == 0) {
    QueueLayers(region.pool, &found->second);
  }
}

// The last block of a prefix is that which the session's latest request has stored; the others may
// have been used in the engine's own memory since. A load by another engine is no return: it
// decodes what this one has prefilled. With several tenants, no tenant's sessions decide for the
// others.
void RegionTransfers::NoteReturn(const Region& region, EntryIndex deepest) {
  const BlockEntry& entry = state_[deepest];
  if (entry.uses != 1 || entry.offered() || state_.tenants.any()) return;
  const EntryRef block = state_.blocks.directory.RefOf(deepest);
  if (state_.blocks.trust.StorerOf(block) != region.party) return;
  state_.pressure.returns.Note(state_.clock.NowS() - entry.created_s);
}

void RegionTransfers::QueueLayers(CachePool* pool, Transfer* transfer) {
  if (!transfer->in_layers.empty()) {
    loader_.QueueLayers(transfer->count, pool, std::exchange(transfer->in_layers, {}),
                        transfer->layers);
  } else if (transfer->count) {
    transfer->count->AllWhole();
  }
}

EntryIndex RegionTransfers::OfferFromColdStore(const Region& region, const BlockHash& hash) {
  const bool may_ask = state_.env.cold != nullptr && region.block_tokens > 0;
  if (!may_ask || !state_.env.cold->Available()) return kNoEntry;
  return OfferFromStore(&state_, {region.pool->namespace_id, hash}, region.block_tokens, 0);
}

EntryIndex RegionTransfers::TakeForLoad(Region* region, const LoadRequest& request) {
  CachePool* const pool = region->pool;
  MissReason miss = MissReason::kNone;
  EntryIndex index = finder_.Servable(kNoEntry, {pool->namespace_id, request.hash}, &miss);
  if (miss == MissReason::kUnknown) index = OfferFromColdStore(*region, request.hash);
  if (index == kNoEntry) {
    state_.stats.CountMisses(pool->namespace_id, miss, 1, 0);
    End(region, request.block, Outcome::kFailed, miss);
    return kNoEntry;
  }
  if (state_.blocks.BlockIn(*pool, state_[index]) != kNoBlock) {
    region->waiting[index].push_back(request);
    return kNoEntry;
  }
  Use& use = region->uses.at(request.block);
  use.tier = state_.blocks.SourceOf(state_[index]);
  use.from_cold = state_.blocks.FromCold(state_[index]);
  use.tokens = state_[index].tokens;
  state_.Use(pool, index);
  Take(pool, request.block, index);
  return index;
}

// The loader forgets the entry of a block that has not arrived, if nothing else holds it.
void RegionTransfers::OnLoadEnded(const BlockEnd& end) {
  if (!end.pool->is_region) return;
  CachePool* const pool = end.pool;
  const auto region = regions_.find(pool->id);
  const EntryIndex index = end.block.row;
  const BlockIndex block = GiveBack(pool, index);
  const Use& use = region->second.uses.at(block);
  const bool loaded = end.reason == MissReason::kNone;
  if (loaded) {
    state_.stats.CountHit(pool->namespace_id, use.tier, use.tokens, use.from_cold);
  } else {
    state_.stats.CountMisses(pool->namespace_id, end.reason, 1, use.tokens);
  }
  WakeWaiting(&region->second, index);
  if (loaded) state_.ForgetIfGone(index);
  End(&region->second, block, loaded ? Outcome::kCopied : Outcome::kFailed, end.reason);
  ForgetLater(&region->second);
}

void RegionTransfers::WakeWaiting(Region* region, EntryIndex index) {
  auto waiting = region->waiting.extract(index);
  if (waiting.empty()) return;
  region->woken.push_back(std::move(waiting.mapped()));
  GoOnWith(region);
}

// The first of those that wait for one block begins, or fails, and then the next is looked at; the
// others wait for it, and not for one another.
void RegionTransfers::LoadWoken(Region* region, size_t* most) {
  for (; !region->woken.empty() && *most > 0; --*most) {
    Waiting& woken = region->woken.front();
    const LoadRequest first = woken.front();
    woken.pop_front();
    if (const EntryIndex begun = TakeForLoad(region, first); begun != kNoEntry) {
      loader_.Start(region->pool, begun);
      loader_.TouchLoading(*region->pool, begun);
    }
    if (!woken.empty()) {
      const EntryIndex index = state_.blocks.Find({region->pool->namespace_id, first.hash});
      if (index == kNoEntry || state_.blocks.BlockIn(*region->pool, state_[index]) == kNoBlock)
        continue;
      // Loads that came meanwhile stand behind. They are few, and each is moved once.
      Waiting& waiting = region->waiting[index];
      woken.insert(woken.end(), waiting.begin(), waiting.end());
      waiting = std::move(woken);
    }
    region->woken.pop_front();
  }
  if (!region->woken.empty()) GoOnWith(region);
}

}  // namespace kvtier
