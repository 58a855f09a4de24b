// SPDX-License-Identifier: Apache-2.0
#include "tiers/transfer/pool_adoption.h"

#include <algorithm>
#include <ranges>

namespace kvtier {

void PoolAdoption::Adopt() {
  if (state_.env.pool_keeper == nullptr) return;
  for (LeftPool& left : state_.env.pool_keeper->TakeLeft()) AdoptPool(std::move(left));
  // A later event: what was found has not killed the daemon.
  state_.env.loop->Post(gate_.WhileOpen([this] {
    for (const auto& pool : state_.pools) {
      if (pool && pool->blocks.table() != nullptr) pool->blocks.table()->EndAdoption();
    }
  }));
}

void PoolAdoption::AdoptPool(LeftPool left) {
  PoolTable* const table = left.table;
  const Result<std::vector<PoolTable::Process>> processes = table->Processes();
  if (!processes) {
    left.memory.reset();
    return state_.env.pool_keeper->Release(table, processes.error().reason);
  }
  const Result<CachePool*> added = pools_.Adopt(std::move(left));
  if (!added) return state_.env.pool_keeper->Release(table, added.error().reason);
  CachePool* const pool = *added;
  table->BeginAdoption();
  SessionTable::AbsentHoldings readers;
  SessionTable::AbsentHoldings writers;
  const std::vector<Found> whole = Sort(pool, table, &writers.withheld);
  AdoptBlocks(pool, table, whole, &readers, &writers.withheld);
  pool->blocks.SetTable(table);
  // Sessions count up from 1, and never come near.
  const uint64_t number = UINT64_MAX - 2 * absent_.size();
  AbsentClients& absent = absent_.emplace_back(
      AbsentClients{pool->device, {}, SessionId(number), SessionId(number - 1)});
  for (const PoolTable::Process& process : *processes) {
    absent.processes.push_back(process.identity);
    writers.processes.push_back(process.number);
  }
  sessions_.AddAbsent(absent.readers, pool, std::move(readers));
  sessions_.AddAbsent(absent.writers, pool, std::move(writers));
}

std::vector<PoolAdoption::Found> PoolAdoption::Sort(CachePool* pool, PoolTable* table,
                                                    std::vector<BlockIndex>* withheld) {
  std::vector<Found> whole;
  for (uint32_t i = 0; i < pool->blocks.size(); ++i) {
    const BlockIndex block(i);
    pool->blocks.BeginAt(block, table->GenerationOf(block) + 1);
    const PoolEntryState state = table->StateOf(block);
    if (state == PoolEntryState::kFree) continue;
    std::optional<PoolEntryFacts> facts;
    if (table->Whole(block)) facts = table->FactsOf(block);
    if (facts) {
      whole.push_back({block, *std::move(facts), state == PoolEntryState::kReferenced});
      continue;
    }
    const bool held = state == PoolEntryState::kHeld;
    ++state_.stats.pool_adoption_drops[static_cast<size_t>(held ? AdoptionDrop::kUnfinished
                                                                : AdoptionDrop::kCorrupt)];
    table->Hold(block, table->GenerationOf(block) + 1);
    withheld->push_back(block);
  }
  std::ranges::stable_sort(whole, std::ranges::greater(),
                           [](const Found& found) { return found.facts.last_use_s; });
  return whole;
}

// The coldest come first into the order of eviction, and parents are known when they are linked to.
void PoolAdoption::AdoptBlocks(CachePool* pool, PoolTable* table, const std::vector<Found>& whole,
                               SessionTable::AbsentHoldings* readers,
                               std::vector<BlockIndex>* withheld) {
  std::vector<std::pair<EntryIndex, const Found*>> adopted;
  for (const Found& found : whole) {
    const auto entry = AdoptBlock(pool, found);
    if (entry) {
      adopted.emplace_back(*entry, &found);
      continue;
    }
    ++state_.stats.pool_adoption_drops[static_cast<size_t>(entry.error())];
    if (found.referenced) {
      table->Hold(found.block, table->GenerationOf(found.block) + 1);
      withheld->push_back(found.block);
    } else {
      table->SetFree(found.block);
    }
  }
  for (const auto& [entry, found] : std::views::reverse(adopted)) {
    if (found->facts.parent) state_.LinkToParent(entry, *found->facts.parent);
    if (found->referenced) {
      readers->referenced.push_back(found->block);
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
  described.created_s = state_.FromWallS(facts.created_s);
  described.last_use_s = state_.FromWallS(facts.last_use_s);
  if (state_.BeingErased(described)) return tl::unexpected(AdoptionDrop::kEvictedByHand);
  EntryIndex index = state_.Find({pool->namespace_id, facts.hash});
  if (index == kNoEntry) {
    if (state_.Expired(described)) return tl::unexpected(AdoptionDrop::kExpired);
    index = entries_.Add(described);
  } else if (state_.BlockIn(*pool, state_[index]) != kNoBlock) {
    return tl::unexpected(AdoptionDrop::kDuplicate);
  } else if (state_[index].tokens != facts.tokens) {
    return tl::unexpected(AdoptionDrop::kMisplaced);
  }
  BlockEntry& entry = state_[index];
  entry.uses = std::max(entry.uses, facts.uses);
  entry.last_use_s = std::max(entry.last_use_s, described.last_use_s);
  pool->blocks.TakeCommitted(found.block, index);
  pool->blocks[found.block].since_ds = state_.NowDs();
  state_.AddPlace(pool, found.block);
  if (facts.checksum && !entry.in_host()) {
    state_.commit_checksums[ArrivalKey(*pool, index)] = *facts.checksum;
  }
  return index;
}

}  // namespace kvtier
