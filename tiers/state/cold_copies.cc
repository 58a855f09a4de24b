// SPDX-License-Identifier: Apache-2.0
#include "tiers/state/cold_copies.h"

#include "tiers/state/cache_state.h"

namespace kvtier {
namespace {

// The object of a block in steady use is written this often per time to live.
constexpr int64_t kColdWrites = 4;

}  // namespace

EntryIndex OfferFromStore(CacheState* state, const BlockKey& key, uint16_t tokens, uint32_t depth) {
  if (state->blocks.Find(key) != kNoEntry || state->erasing.objects.contains(key)) return kNoEntry;
  const EntryIndex index = state->AddEntry(key, tokens, depth, RetentionClass::kExtended);
  state->Apply(index, BlockEvent::kOffer);
  return index;
}

void NoteColdCopy(CacheState* state, EntryIndex index, int64_t until_ms) {
  state->orders.cold_until_s.At(index.value) = static_cast<uint32_t>(until_ms / 1000);
  state->Apply(index, BlockEvent::kNoteColdCopy);
}

void ForgetColdCopy(CacheState* state, EntryIndex index) {
  state->Apply(index, BlockEvent::kForgetColdCopy);
  state->orders.EnterColdLine(index, (*state)[index]);
}

bool ColdCopyLasts(const CacheState& state, EntryIndex index) {
  const BlockEntry& entry = state.blocks.directory[index];
  if (!entry.cold_copy()) return false;
  const int64_t until_ms = int64_t{state.orders.cold_until_s[index.value]} * 1000;
  return state.clock.AgeMs() < until_ms &&
         state.ExpiryMs(entry) - until_ms <= MostColdLagMs(state, entry);
}

int64_t MostColdLagMs(const CacheState& state, const BlockEntry& entry) {
  return state.tenants.TtlMs(state.blocks.TenantOf(entry), RetentionClass::kExtended) / kColdWrites;
}

}  // namespace kvtier
