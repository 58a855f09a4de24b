// SPDX-License-Identifier: Apache-2.0
#include "tiers/directory/block_history.h"

namespace kvtier {
namespace {

template <typename Array, typename Event>
void Note(Array* rows, size_t count, const BlockKey& key, const Event& event) {
  auto& row = rows->At(std::hash<BlockKey>()(key) % count);
  row.key = key;
  row.event = event;
}

template <typename Array>
auto Recall(const Array& rows, size_t count, const BlockKey& key) {
  const auto* row = rows.Find(std::hash<BlockKey>()(key) % count);
  using Event = std::remove_cvref_t<decltype(row->event)>;
  return row != nullptr && row->key == key ? row->event : Event();
}

}  // namespace

void BlockHistory::NoteDrop(const BlockKey& key, const BlockDrop& drop) {
  Note(&drops_, kDropsRemembered, key, drop);
}

void BlockHistory::ExpectDrop(const BlockKey& key) const {
  const auto* row = drops_.Find(std::hash<BlockKey>()(key) % kDropsRemembered);
  if (row == nullptr) return;
  __builtin_prefetch(&row->key, 1);
  __builtin_prefetch(&row->event, 1);
}

void BlockHistory::NoteMiss(const BlockKey& key, const BlockMiss& miss) {
  Note(&misses_, kMissesRemembered, key, miss);
}

BlockPast BlockHistory::Of(const BlockKey& key) const {
  return {Recall(drops_, kDropsRemembered, key), Recall(misses_, kMissesRemembered, key)};
}

}  // namespace kvtier
