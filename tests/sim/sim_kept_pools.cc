// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/sim_kept_pools.h"

#include <fmt/format.h>

#include <unordered_set>
#include <utility>

#include "tests/fakes/derived_bytes.h"
#include "tests/sim/sim_check.h"

namespace kvtier {

// Pools are made one space after the other, as SimWorld attaches them, and kept in this order.
SimPool SimKeptPools::PoolAt(size_t position) const {
  const auto at = static_cast<uint32_t>(position);
  return {at / context_.plan.sizes.devices, at % context_.plan.sizes.devices};
}

std::span<std::byte> SimKeptPools::Bytes(SimPool pool, BlockIndex block) const {
  return context_.world.Bytes(pool, {block, 0});
}

void SimKeptPools::BeforeDeath() {
  whole_.clear();
  held_.clear();
  readers_.clear();
  writers_.clear();
  kept_ = false;
  if (!context_.plan.sizes.keep_pools) return;
  ReadTables();
  const CacheGauges gauges = context_.world.cache().Gauges();
  uint64_t held = 0;
  uint64_t whole = 0;
  for (const PoolGauges& pool : gauges.pools) {
    held += pool.blocks - pool.free - pool.cached - pool.referenced;
    whole += pool.cached + pool.referenced;
  }
  // A referenced block may have lost its entry: then it is held, and no hit.
  SIM_CHECK(held_.size() >= held, fmt::format("{} blocks held, {} are", held_.size(), held));
  SIM_CHECK(held_.size() + whole_.size() == held + whole,
            fmt::format("{} blocks held and {} whole, {} and {} are", held_.size(), whole_.size(),
                        held, whole));
}

void SimKeptPools::ReadTables() {
  const auto& kept = context_.world.machine().pool_keeper.kept();
  SIM_CHECK(kept.size() == context_.plan.namespaces.size() * context_.plan.sizes.devices, "tables");
  for (size_t i = 0; i < kept.size(); ++i) {
    const SimPool pool = PoolAt(i);
    for (uint32_t b = 0; b < kept[i].description.blocks; ++b) {
      const BlockIndex block(b);
      const PoolEntryState state = kept[i].table->StateOf(block);
      if (state == PoolEntryState::kHeld) held_.push_back({pool, block});
      if (!kept[i].table->Whole(block)) continue;
      const auto facts = kept[i].table->FactsOf(block);
      SIM_CHECK(facts.has_value(), "a record that was written is damaged");
      const NamespaceId space = context_.world.pool(pool).namespace_id;
      const auto known = context_.world.cache().Inspect({space, facts->hash});
      whole_.push_back({pool, block, facts->hash, state == PoolEntryState::kReferenced,
                        known ? known->expires_ms : 0});
    }
  }
}

void SimKeptPools::AfterDeath() {
  if (!context_.plan.sizes.keep_pools) return;
  FakePoolKeeper& keeper = context_.world.machine().pool_keeper;
  kept_ = random_.Chance(0.8);
  if (!kept_) return keeper.LoseAll();
  damaged_ = random_.Chance(0.15);
  if (damaged_) ChangeBits();
}

// Damages the states and the records. A state is one word whose halves vouch for each other: with
// the same bit of both changed it says something else that a daemon may have written.
void SimKeptPools::ChangeBits() {
  damaged_ever_ = true;
  for (const FakePoolKeeper::Kept& kept : context_.world.machine().pool_keeper.kept()) {
    constexpr uint64_t kStatesAt = 17 * 4096;
    const std::span<std::byte> table = kept.table_bytes();
    std::unordered_set<uint64_t> changed_states;
    for (uint64_t i = random_.Below(3); i > 0; --i) {
      const uint64_t block = random_.Below(kept.description.blocks);
      const uint64_t state = kStatesAt + 8 * block + random_.Below(4);
      const uint64_t record =
          table.size() - 128 * (kept.description.blocks - block) + random_.Below(88);
      const auto bit = static_cast<std::byte>(1 << random_.Below(8));
      const bool of_state = random_.Chance(0.5);
      if (of_state && !changed_states.insert(block).second) continue;
      table[of_state ? state : record] ^= bit;
    }
  }
}

void SimKeptPools::AfterRestart() {
  if (!kept_) return;
  readers_ = writers_ = context_.world.cache().TakeAbsentClients();
  context_.oracle.OnAbsent();
  // The next daemon has read other things than the tables said.
  if (damaged_) return;
  if (context_.oracle.erasure_cut()) return WriteLate();
  constexpr int64_t kSlackMs = 10'000;
  for (const Whole& block : whole_) {
    if (block.expires_ms <= context_.world.machine().clock.WallMs() + kSlackMs) continue;
    const auto present =
        context_.world.cache().Lookup(context_.world.pool(block.pool).id, std::vector{block.hash});
    SIM_CHECK(present.front().pool, "a block was in a pool and is not");
    context_.oracle.CheckBytes({block.pool, {block.block, 0}}, block.hash);
    ++survivors_;
  }
  WriteLate();
}

void SimKeptPools::WriteLate() {
  if (writers_.empty()) return;
  for (const Held& block : held_) {
    FillFromHash(TestHash(random_.Next(), 0), Bytes(block.pool, block.block));
  }
}

void SimKeptPools::CheckRead() const {
  if (readers_.empty() || damaged_) return;
  for (const Whole& block : whole_) {
    if (block.referenced) context_.oracle.CheckBytes({block.pool, {block.block, 0}}, block.hash);
  }
}

void SimKeptPools::Step() {
  WriteLate();
  CheckRead();
  if (!readers_.empty()) TouchReferenced();
  if (random_.Chance(0.05)) ReleaseAll();
}

// A reference counts as a use.
void SimKeptPools::TouchReferenced() {
  for (const Whole& block : whole_) {
    if (block.referenced) context_.oracle.OnTouched(block.pool.name_space, block.hash);
  }
}

// A process that reads no more may still write, but not the other way round.
void SimKeptPools::ReleaseAll() {
  for (const AbsentClients& absent : std::exchange(readers_, {})) ReleaseReaders(absent);
  for (const AbsentClients& absent : std::exchange(writers_, {})) {
    context_.world.cache().ReleaseQuarantine(absent.writers);
  }
  TouchReferenced();
  for (const Whole& block : whole_) {
    if (block.referenced) context_.oracle.OnClosing(block.pool.name_space, block.hash);
  }
  whole_.clear();
  held_.clear();
  context_.oracle.OnAbsentGone();
}

void SimKeptPools::ReleaseReaders(const AbsentClients& absent) {
  context_.world.cache().ReleaseQuarantine(absent.readers);
}

}  // namespace kvtier
