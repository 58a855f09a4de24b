// SPDX-License-Identifier: Apache-2.0
#include "tiers/transfer/load_planner.h"

#include <algorithm>
#include <vector>

#include "tiers/transfer/loader.h"
#include "tiers/transfer/prefix_finder.h"

namespace kvtier {

BlockSource LoadPlanner::SourceOf(const CachePool& pool, EntryIndex index) const {
  const BlockEntry& entry = state_[index];
  const BlockIndex block = state_.blocks.BlockIn(pool, entry);
  if (block != kNoBlock && !pool.blocks[block].loading()) return BlockSource::kHere;
  if (state_.blocks.SourceOf(entry) == Tier::kHost) return BlockSource::kHost;
  return entry.on_disk() ? BlockSource::kDisk : BlockSource::kCold;
}

bool LoadPlanner::Apply(const CachePool& pool, const AcquireRequest& request, FoundPrefix* found) {
  const LoadWish& wish = request.wish;
  std::vector<BlockSource> sources;
  sources.reserve(found->hits.size());
  for (const EntryIndex hit : found->hits) sources.push_back(SourceOf(pool, hit));
  const uint64_t block_tokens = request.block_tokens;
  LoadQuestion question{
      .plan = wish.plan,
      .deadline_us = wish.deadline_ms * 1000.0,
      .tokens = std::max<uint64_t>(wish.tokens, request.hashes.size() * block_tokens),
      .cost = wish.cost,
      .blocks = sources,
      .block_bytes = pool.block_bytes,
      .block_tokens = block_tokens,
      .covered_tokens = found->hits.size() * block_tokens,
      .prices = loader_.PricesNow(pool.device)};
  if (found->partial_block) {
    question.covered_tokens -= block_tokens - state_[found->hits.back()].tokens;
  }
  const LoadAnswer answer = PlanLoad(question);
  found->forecast = {.load_us = ForecastUs(answer.load_us),
                     .ready_us = ForecastUs(answer.ready_us)};
  if (answer.declined_for == MissReason::kNone) return false;
  LeaveOut(pool, answer, found);
  return true;
}

void LoadPlanner::LeaveOut(const CachePool& pool, const LoadAnswer& answer, FoundPrefix* found) {
  std::vector<EntryIndex>& hits = found->hits;
  const auto left_out = hits.begin() + static_cast<ptrdiff_t>(answer.end);
  const bool partial = found->partial_block && answer.end < hits.size();
  TouchDeclined({left_out, hits.end()});
  found->declined = static_cast<uint32_t>(hits.size() - answer.end - partial);
  found->declined_for = answer.declined_for;
  found->ends_declined = answer.end < hits.size();
  if (partial) found->partial_block.reset();
  hits.erase(left_out, hits.end());
  found->to_load = found->to_arrive = 0;
  for (const EntryIndex hit : hits) {
    const BlockIndex block = state_.blocks.BlockIn(pool, state_[hit]);
    if (block == kNoBlock) ++found->to_load;
    if (block == kNoBlock || pool.blocks[block].loading()) ++found->to_arrive;
  }
}

// The deepest first, so that the start of the sequence stays youngest.
void LoadPlanner::TouchDeclined(std::span<const EntryIndex> entries) {
  for (size_t i = entries.size(); i > 0; --i) {
    state_.Touch(entries[i - 1]);
    loader_.TouchHost(entries[i - 1]);
  }
}

}  // namespace kvtier
