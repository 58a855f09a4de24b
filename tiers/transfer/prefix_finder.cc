// SPDX-License-Identifier: Apache-2.0
#include "tiers/transfer/prefix_finder.h"

namespace kvtier {

// An expired block is a miss at once. It is only noted here and dropped later, so that rows do not
// change while a caller walks along its sequence.
EntryIndex PrefixFinder::Servable(EntryIndex before, const BlockKey& key, MissReason* miss) {
  const EntryIndex index = state_.blocks.directory.FindAfter(before, key);
  if (state_.blocks.Distrusts(key.namespace_id, index)) {
    *miss = MissReason::kDistrusted;
    return kNoEntry;
  }
  if (index == kNoEntry) {
    *miss = WhyUnknown(key);
    return kNoEntry;
  }
  const BlockEntry& entry = state_[index];
  if (state_.Expired(entry)) {
    state_.NoteExpired(index);
    *miss = MissReason::kExpired;
    return kNoEntry;
  }
  if (entry.in_pool() || entry.in_host() || entry.on_disk() || entry.offered()) return index;
  *miss = WhyUnknown(key);
  return kNoEntry;
}

MissReason PrefixFinder::WhyUnknown(const BlockKey& key) const {
  const std::optional<BlockDrop> drop = state_.history.Of(key).drop;
  return drop && drop->reason == DropReason::kErased ? MissReason::kErased : MissReason::kUnknown;
}

FoundPrefix PrefixFinder::Find(const CachePool& pool, const AcquireRequest& request) {
  FoundPrefix found;
  found.hits.reserve(request.hashes.size() + 1);
  const auto add = [&](EntryIndex index) {
    found.hits.push_back(index);
    const BlockIndex block = state_.blocks.BlockIn(pool, state_[index]);
    if (block == kNoBlock) ++found.to_load;
    if (block == kNoBlock || pool.blocks[block].loading()) ++found.to_arrive;
  };
  EntryIndex index = kNoEntry;
  for (const BlockHash& hash : request.hashes) {
    index = Servable(index, {pool.namespace_id, hash}, &found.miss);
    if (index == kNoEntry) return found;
    add(index);
  }
  MissReason partial_miss = MissReason::kNone;
  for (uint32_t i = 0; i < request.partial_blocks.size(); ++i) {
    const EntryIndex tail =
        Servable(index, {pool.namespace_id, request.partial_blocks[i]}, &partial_miss);
    if (tail == kNoEntry) continue;
    found.partial_block = i;
    add(tail);
    return found;
  }
  found.miss = partial_miss;
  return found;
}

EntryIndex PrefixFinder::FindAgain(const CachePool& pool, const AcquireRequest& request,
                                   const FoundPrefix& found, size_t position, MissReason* miss) {
  const bool is_partial = position == request.hashes.size();
  const BlockHash& hash =
      is_partial ? request.partial_blocks[*found.partial_block] : request.hashes[position];
  // The block mostly still has the row in which it was found, so that the search begins just before
  // it.
  const uint32_t row = found.hits[position].value;
  return Servable(row == 0 ? kNoEntry : EntryIndex(row - 1), {pool.namespace_id, hash}, miss);
}

}  // namespace kvtier
