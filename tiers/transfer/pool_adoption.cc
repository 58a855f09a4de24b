// SPDX-License-Identifier: Apache-2.0
#include "tiers/transfer/pool_adoption.h"

#include <algorithm>
#include <ranges>

namespace kvtier {

void PoolAdoption::Adopt() {
  if (state_.env.pool_keeper == nullptr) return;
  for (LeftPool& left : state_.env.pool_keeper->TakeLeft()) AdoptPool(std::move(left));
  // A later event: the blocks found have not killed the daemon.
  state_.env.loop->Post(gate_.WhileOpen([this] {
    for (const auto& [id, pool] : state_.blocks.pools) {
      if (pool->blocks.table() != nullptr) pool->blocks.table()->EndAdoption();
    }
  }));
}

void PoolAdoption::AdoptPool(LeftPool left) {
  PoolTable* const table = left.table;
  const Result<std::vector<PoolTable::Session>> sessions = table->Sessions();
  if (!sessions) {
    left.memory.reset();
    return state_.env.pool_keeper->Release(table, sessions.error().reason);
  }
  const Result<CachePool*> added = pools_.Adopt(std::move(left));
  if (!added) return state_.env.pool_keeper->Release(table, added.error().reason);
  CachePool* const pool = *added;
  Holdings holdings;
  for (const PoolTable::Session& session : *sessions) {
    holdings.sessions[session.number].sessions = {session.number};
  }
  const std::vector<Found> whole = Sort(pool, table, &holdings);
  AdoptBlocks(pool, table, whole, &holdings);
  pool->blocks.SetTable(table);
  AddAbsent(pool, *sessions, std::move(holdings));
}

void PoolAdoption::AddAbsent(CachePool* pool, const std::vector<PoolTable::Session>& sessions,
                             Holdings holdings) {
  AbsentClients& absent =
      absent_.emplace_back(AbsentClients{.device = pool->device,
                                         .pool = pool->id,
                                         .sessions = {},
                                         .readers = SessionId(next_absent_--),
                                         .writers = SessionId(next_absent_--),
                                         .writers_hold = !holdings.writers.withheld.empty()});
  for (const PoolTable::Session& session : sessions) {
    const SessionId stands_for(next_absent_--);
    absent.sessions.push_back({session.identity, stands_for});
    sessions_.AddAbsent(stands_for, pool, std::move(holdings.sessions.at(session.number)));
  }
  sessions_.AddAbsent(absent.readers, pool, std::move(holdings.readers));
  sessions_.AddAbsent(absent.writers, pool, std::move(holdings.writers));
}

std::vector<BlockIndex>* PoolAdoption::OwnersOf(BlockIndex block, const PoolTable& table,
                                                Holdings* holdings) {
  if (table.StateOf(block) != PoolEntryState::kPrivate) return nullptr;
  const std::optional<uint32_t> holder = table.HolderOf(block);
  if (!holder) return nullptr;
  const auto session = holdings->sessions.find(*holder);
  return session == holdings->sessions.end() ? nullptr : &session->second.withheld;
}

std::vector<PoolAdoption::Found> PoolAdoption::Sort(CachePool* pool, PoolTable* table,
                                                    Holdings* holdings) {
  std::vector<Found> whole;
  for (uint32_t i = 0; i < pool->blocks.size(); ++i) {
    const BlockIndex block(i);
    const uint32_t generation = table->GenerationOf(block);
    pool->blocks.BeginAt(block, generation);
    const PoolEntryState state = table->StateOf(block);
    std::optional<PoolEntryFacts> facts;
    if (table->Whole(block)) facts = table->FactsOf(block);
    if (facts) {
      whole.push_back({block, *std::move(facts), state == PoolEntryState::kReferenced});
      continue;
    }
    if (std::vector<BlockIndex>* const owners = OwnersOf(block, *table, holdings)) {
      owners->push_back(block);
      continue;
    }
    pool->blocks.BeginAt(block, generation + 1);
    if (state == PoolEntryState::kFree) continue;
    const bool held = state == PoolEntryState::kHeld || state == PoolEntryState::kPrivate;
    ++state_.stats.pool_adoption_drops[static_cast<size_t>(held ? AdoptionDrop::kUnfinished
                                                                : AdoptionDrop::kCorrupt)];
    table->Hold(block, generation + 1);
    // A held block was being loaded: clients could read it, but only the dead daemon wrote to it.
    auto& holders = state == PoolEntryState::kHeld ? holdings->readers : holdings->writers;
    holders.withheld.push_back(block);
  }
  std::ranges::stable_sort(whole, std::ranges::greater(),
                           [](const Found& found) { return found.facts.last_use_s; });
  return whole;
}

// The coldest come first into the order of eviction, and parents are known when they are linked to.
void PoolAdoption::AdoptBlocks(CachePool* pool, PoolTable* table, const std::vector<Found>& whole,
                               Holdings* holdings) {
  std::vector<std::pair<EntryIndex, const Found*>> adopted;
  for (const Found& found : whole) {
    const auto entry = AdoptBlock(pool, found);
    if (entry) {
      adopted.emplace_back(*entry, &found);
      continue;
    }
    ++state_.stats.pool_adoption_drops[static_cast<size_t>(entry.error())];
    const uint32_t generation = table->GenerationOf(found.block) + 1;
    pool->blocks.BeginAt(found.block, generation);
    if (found.referenced) {
      table->Hold(found.block, generation);
      holdings->writers.withheld.push_back(found.block);
    } else {
      table->SetFree(found.block);
    }
  }
  for (const auto& [entry, found] : std::views::reverse(adopted)) {
    if (found->facts.parent) state_.LinkToParent(entry, *found->facts.parent);
    if (found->referenced) {
      holdings->readers.referenced.push_back(found->block);
    } else {
      state_.EnterEvictionOrder(pool, entry);
    }
  }
  state_.stats.adopted_pool_blocks += adopted.size();
  state_.stats.adopted_pool_bytes += adopted.size() * pool->block_bytes;
}

tl::expected<EntryIndex, AdoptionDrop> PoolAdoption::AdoptBlock(CachePool* pool,
                                                                const Found& found) {
  const PoolEntryFacts& facts = found.facts;
  BlockEntry described;
  described.namespace_id = pool->namespace_id;
  described.hash = facts.hash;
  described.depth = facts.depth;
  described.tokens = facts.tokens;
  described.retention = facts.retention;
  described.created_s = state_.clock.FromWallS(facts.created_s);
  described.last_use_s = state_.clock.FromWallS(facts.last_use_s);
  if (state_.BeingErased(described)) return tl::unexpected(AdoptionDrop::kEvictedByHand);
  EntryIndex index = state_.blocks.Find({pool->namespace_id, facts.hash});
  if (index == kNoEntry) {
    if (state_.Expired(described) && !state_.pin_records.Lasts(facts.pinned_until_s))
      return tl::unexpected(AdoptionDrop::kExpired);
    index = entries_.Add(described);
  } else if (state_.blocks.BlockIn(*pool, state_[index]) != kNoBlock) {
    return tl::unexpected(AdoptionDrop::kDuplicate);
  } else if (state_[index].tokens != facts.tokens) {
    return tl::unexpected(AdoptionDrop::kMisplaced);
  }
  BlockEntry& entry = state_[index];
  entry.uses = std::max(entry.uses, facts.uses);
  entry.last_use_s = std::max(entry.last_use_s, described.last_use_s);
  pool->blocks.TakeCommitted(found.block, index);
  pool->blocks.Taken(found.block).since_ds = state_.clock.NowDs();
  state_.AddPlace(pool, found.block);
  state_.pin_records.Adopt(index, facts.pinned_until_s);
  if (facts.checksum && !entry.in_host()) {
    pool->checksums.At(found.block.value) = facts.checksum;
  }
  return index;
}

}  // namespace kvtier
