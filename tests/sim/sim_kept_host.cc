// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/sim_kept_host.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "tests/fakes/derived_bytes.h"
#include "tests/sim/sim_check.h"
#include "tiers/storage/slot_header.h"

namespace kvtier {

FakeMachine::HostMemory SimKeptHost::BeforeDeath() {
  expected_.clear();
  filling_.clear();
  kept_ = context_.plan.sizes.keep_host && random_.Chance(0.8);
  if (!kept_) {
    damaged_ = false;
    changed_.clear();
    return FakeMachine::HostMemory::kLost;
  }
  adopted_ever_ = true;
  NoteComplete();
  FakeArena& arena = *context_.world.machine().arena;
  const HostTable& table = *arena.table();
  const uint64_t slab_bytes = context_.plan.sizes.slab_bytes;
  for (uint64_t slab = 0; slab < table.slabs(); ++slab) {
    const uint64_t slot_bytes = table.SlotBytesOf(slab);
    for (uint64_t i = 0; slot_bytes > 0 && i < slab_bytes / slot_bytes; ++i) {
      const uint64_t address = slab * slab_bytes + i * slot_bytes;
      const HostSlotState state = table.StateOf(address);
      if (state == HostSlotState::kFilling) filling_.push_back({address, slot_bytes});
      if (state == HostSlotState::kComplete) NoteCopy(address);
    }
  }
  return FakeMachine::HostMemory::kKept;
}

void SimKeptHost::AfterDeath() {
  if (!kept_) return;
  WriteLate();
  if (random_.Chance(0.15)) ChangeBits();
}

void SimKeptHost::NoteComplete() {
  const Cache& cache = context_.world.cache();
  for (uint32_t name_space = 0; name_space < context_.plan.namespaces.size(); ++name_space) {
    const SimPool pool{name_space, 0};
    const PoolInfo& info = context_.world.pool(pool);
    const std::vector<BlockHash>& all = context_.universe.all();
    const auto present = cache.Lookup(info.id, all);
    for (size_t i = 0; i < present.size(); ++i) {
      if (!present[i].host) continue;
      const auto block = cache.Inspect({info.namespace_id, all[i]});
      SIM_CHECK(block.has_value(), "a block in host that is not known");
      expected_.push_back({pool, all[i], block->expires_ms});
    }
  }
}

void SimKeptHost::NoteCopy(uint64_t address) {
  FakeArena& arena = *context_.world.machine().arena;
  const std::span<const std::byte> slot{arena.data() + address, kSlotHeaderBytes};
  const auto header = DecodeSlotHeader(slot.first<kSlotHeaderBytes>());
  if (!header) return;
  const uint32_t last_use_s = arena.table()->FactsOf(address).last_use_s;
  context_.oracle.OnCopyLeft(*header, std::max(header->last_use_s, last_use_s));
}

void SimKeptHost::WriteLate() {
  FakeArena& arena = *context_.world.machine().arena;
  for (const Slot& slot : filling_) {
    FillFromHash(TestHash(random_.Next(), 0), {arena.data() + slot.address, slot.bytes});
  }
}

// Damages the table's states and cuts: times and uses are believed as they are (tiers_cache_test
// damages these). The halves of such a word vouch for each other: with the same bit of both changed
// it says something else that a daemon may have written. So each word changes once.
void SimKeptHost::ChangeBits() {
  damaged_ = damaged_ever_ = true;
  FakeArena& arena = *context_.world.machine().arena;
  for (uint64_t i = random_.Between(1, 6); i > 0; --i) {
    arena.data()[random_.Below(arena.capacity_bytes())] ^= std::byte{1};
  }
  const std::span<std::byte> table = arena.table_bytes();
  // The head has a page; a slab's record stands before those of its slots, of 20 bytes.
  constexpr uint64_t kPage = 4096;
  const uint64_t slabs = arena.table()->slabs();
  const uint64_t stride = (table.size() - kPage) / context_.plan.sizes.host_slabs;
  for (uint64_t i = random_.Below(4); i > 0; --i) {
    const uint64_t slab = kPage + random_.Below(slabs) * stride;
    const uint64_t cut = slab + random_.Below(8);
    const uint64_t record = slab + 8 + 20 * random_.Below(8);
    const uint64_t word = record + random_.Below(4);
    const auto bit = static_cast<std::byte>(1 << random_.Below(8));
    const bool of_cut = random_.Chance(0.3);
    if (changed_.insert(of_cut ? slab : record).second) table[of_cut ? cut : word] ^= bit;
  }
}

void SimKeptHost::AfterRestart() {
  if (!kept_) return;
  FakeMachine& machine = context_.world.machine();
  // No block has these slots yet, so that no block changes by it.
  const bool late = random_.Chance(0.5) && !damaged_;
  if (random_.Chance(0.4)) return;
  while (machine.arena->ready_bytes() < machine.arena->capacity_bytes()) {
    machine.arena->Grow(context_.plan.sizes.slab_bytes);
  }
  machine.loop.RunAll();
  if (late) WriteLate();
  const Cache& cache = context_.world.cache();
  SIM_CHECK(cache.Gauges().adoption_waiting == 0, "kept slots that are never looked at");
  if (std::exchange(damaged_, false) || context_.oracle.erasure_cut()) return;
  const auto& drops = cache.stats().adoption_drops;
  // A block may be there twice: it came to host anew while an earlier life had not looked at all.
  for (const AdoptionDrop reason :
       {AdoptionDrop::kCorrupt, AdoptionDrop::kMisplaced, AdoptionDrop::kEvictedByHand}) {
    SIM_CHECK(drops[static_cast<size_t>(reason)] == 0,
              fmt::format("dropped as {}", AdoptionDropName(reason)));
  }
  SIM_CHECK(drops[static_cast<size_t>(AdoptionDrop::kUnfinished)] == filling_.size(),
            "slots that were being filled");
  // A cap that was lowered may be below what its tenant had.
  if (drops[static_cast<size_t>(AdoptionDrop::kTenantCap)] > 0) {
    SIM_CHECK(!context_.plan.options.tenants.empty(), "a cap without quotas");
    return;
  }
  // Blocks adopted in pools are copied down, and take the place of the blocks that were here.
  if (!machine.pool_keeper.kept().empty()) return;
  // Times are kept in seconds, and the table knows of a use 8 seconds later at most.
  constexpr int64_t kSlackMs = 10'000;
  for (const Expected& block : expected_) {
    if (block.expires_ms <= machine.clock.WallMs() + kSlackMs) continue;
    const auto present = cache.Lookup(context_.world.pool(block.pool).id, std::vector{block.hash});
    SIM_CHECK(present.front().host,
              fmt::format("a block of space {} was in host and is not; it would expire in {} ms",
                          block.pool.name_space, block.expires_ms - machine.clock.WallMs()));
    ++survivors_;
  }
}

}  // namespace kvtier
