// SPDX-License-Identifier: Apache-2.0
#include "tiers/transfer/region_sources.h"

#include <utility>

namespace kvtier {
namespace {

// Looks of one region under way. One that is never answered is its engine's loss.
constexpr uint32_t kMostLooks = 64;

}  // namespace

void RegionSources::Note(CachePool* region, std::vector<Stored> blocks) {
  if (!region->published || blocks.empty()) return;
  Region& known = regions_[region->id];
  if (known.looks >= kMostLooks) return;
  ++known.looks;
  std::vector<PublishedBlocks::Asked> asked;
  for (const Stored& stored : blocks) {
    asked.push_back({stored.block, state_[stored.entry.row].hash});
  }
  region->published->Look(std::move(asked),
                          gate_.WhileOpen([this, id = region->id, blocks = std::move(blocks)](
                                              const std::vector<uint64_t>& numbers) {
                            OnLooked(id, blocks, numbers);
                          }));
}

// While the store is under way the engine leaves the block alone. A number that is seen later might
// be that of the same hash computed with other weights.
void RegionSources::OnLooked(PoolId id, const std::vector<Stored>& blocks,
                             const std::vector<uint64_t>& numbers) {
  const auto region = regions_.find(id);
  if (region == regions_.end()) return;
  --region->second.looks;
  const CachePool& pool = *state_.blocks.FindPool(id);
  const bool is_lent = pool.IsLent();
  for (size_t i = 0; i < blocks.size(); ++i) {
    const EntryIndex index = state_.blocks.directory.Resolve(blocks[i].entry);
    const bool is_pinned =
        index != kNoEntry && state_.blocks.BlockIn(pool, state_[index]) == blocks[i].block;
    if (is_lent && is_pinned && numbers[i] != 0) Put(id, blocks[i], numbers[i]);
  }
}

// The block may have held another entry, and the entry may have had another place. A row may be
// another entry's by now.
void RegionSources::Put(PoolId id, const Stored& stored, uint64_t number) {
  const EntryIndex index = stored.entry.row;
  Drop(index);
  auto& held = regions_.at(id).held;
  if (const auto former = held.find(stored.block); former != held.end()) Drop(former->second);
  held.emplace(stored.block, index);
  places_.emplace(index, Place{id, stored.block, number, stored.entry});
}

std::optional<NeighbourSource> RegionSources::Find(const CachePool& reader,
                                                   EntryIndex index) const {
  const auto found = places_.find(index);
  if (found == places_.end()) return {};
  const Place& place = found->second;
  if (place.region == reader.id || state_.blocks.directory.Resolve(place.entry) != index) return {};
  return NeighbourSource{state_.blocks.FindPool(place.region), place.block, place.number};
}

void RegionSources::Drop(EntryIndex index) {
  const auto place = places_.extract(index);
  if (!place.empty()) regions_.at(place.mapped().region).held.erase(place.mapped().block);
}

// Looks that are under way stay counted.
void RegionSources::DropAll(PoolId id) {
  const auto region = regions_.find(id);
  if (region == regions_.end()) return;
  for (const auto& [block, entry] : region->second.held) places_.erase(entry);
  region->second.held.clear();
}

}  // namespace kvtier
