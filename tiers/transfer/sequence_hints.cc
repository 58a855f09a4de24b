// SPDX-License-Identifier: Apache-2.0
#include "tiers/transfer/sequence_hints.h"

namespace kvtier {

// The deepest first: so blocks stand in every order, and so a block is looked at when those that
// follow it have their hints.
uint32_t SequenceHints::Give(NamespaceId namespace_id, std::span<const BlockHash> hashes,
                             SequenceHint hint, int64_t returns_in_ms) {
  const auto until_s = static_cast<uint32_t>((state_.clock.AgeMs() + returns_in_ms + 999) / 1000);
  uint32_t taken = 0;
  for (size_t i = hashes.size(); i > 0; --i) {
    const EntryIndex index = state_.blocks.Find({namespace_id, hashes[i - 1]});
    if (index == kNoEntry) continue;
    if (hint == SequenceHint::kReturns) {
      Expect(index, until_s);
      ++taken;
    } else {
      taken += EndUse(index, hint) ? 1 : 0;
    }
  }
  return taken;
}

bool SequenceHints::FollowedByOthers(EntryIndex index) const {
  const EntryIndex child = state_.blocks.lineage.FirstChildOf(index);
  if (child == kNoEntry) return false;
  return !state_[child].hinted() || state_.blocks.lineage.NextSiblingOf(child) != kNoEntry;
}

// A write that waits for its turn finds later that it is wanted no more.
bool SequenceHints::EndUse(EntryIndex index, SequenceHint hint) {
  if (FollowedByOthers(index)) return false;
  const bool once = hint == SequenceHint::kOnce;
  state_.Apply(index, once ? BlockEvent::kHintOnce : BlockEvent::kHintClosed);
  state_.orders.ForgetReturn(index);
  const BlockEntry& entry = state_[index];
  if (entry.LeavesFirst() && entry.persist_wanted() && !entry.write_queued() && !entry.writing()) {
    state_.Apply(index, BlockEvent::kUnwantPersist);
  }
  return true;
}

void SequenceHints::Expect(EntryIndex index, uint32_t until_s) {
  state_.ForgetHint(index);
  state_.orders.returns_s.At(index.value) = until_s;
  const BlockEntry& entry = state_[index];
  const std::optional<BlockFacts> facts = state_.FactsIfAwaited(index);
  if (!facts) return;
  state_.blocks.ForEachPlace(entry, [&](CachePool& pool, BlockIndex) {
    if (!pool.victims.Contains(index)) return;
    pool.victims.Touch(index, *facts);
    state_.NoteChange(&pool);
  });
  if (entry.in_host() && !state_.blocks.IsShared(state_.blocks.TenantOf(entry))) host_.Touch(index);
}

}  // namespace kvtier
