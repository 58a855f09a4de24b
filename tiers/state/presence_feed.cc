// SPDX-License-Identifier: Apache-2.0
#include "tiers/state/presence_feed.h"

#include <algorithm>

#include "base/result.h"
#include "tiers/state/cache_state.h"

namespace kvtier {
namespace {

// More are told in an event of their own: at a start all blocks on disk come at once.
constexpr size_t kMaxTold = 4096;

// Token ids that one step of a replay tells, a block's more at most: about a millisecond of
// encoding. Blocks of 16 tokens come in steps of as many rows as were asked for.
constexpr size_t kMaxReplayedIds = 65'536;

constexpr uint8_t BitOf(Tier tier) { return static_cast<uint8_t>(1 << static_cast<int>(tier)); }

}  // namespace

uint8_t PresenceFeed::TiersOf(EntryIndex index) const {
  const BlockEntry& entry = state_.blocks.directory[index];
  if (entry.is_copy) return 0;
  uint8_t tiers = 0;
  state_.blocks.ForEachPlace(entry, [&](const CachePool& pool, BlockIndex block) {
    if (!pool.is_region && !pool.blocks[block].loading()) tiers |= BitOf(Tier::kPool);
  });
  if (entry.in_host()) tiers |= BitOf(Tier::kHost);
  if (entry.persisted() || entry.unverified_on_disk()) tiers |= BitOf(Tier::kDisk);
  return tiers;
}

void PresenceFeed::Note(EntryIndex entry) {
  uint8_t& told = told_.At(entry.value);
  told_end_ = std::max(told_end_, entry.value + 1);
  if ((told & kMarked) != 0) return;
  told |= kMarked;
  marked_.push_back(entry);
  Schedule();
}

void PresenceFeed::Schedule() {
  if (scheduled_) return;
  scheduled_ = true;
  auto tell = gate_.WhileOpen([this] {
    scheduled_ = false;
    TellMarked();
  });
  if (goes_on_) {
    state_.env.loop->Post(std::move(tell));
  } else {
    state_.env.loop->RunAfterEvent(std::move(tell));
  }
}

void PresenceFeed::TellMarked() {
  for (size_t told = 0; told < kMaxTold && !marked_.empty(); ++told) {
    const EntryIndex entry = marked_.front();
    marked_.pop_front();
    told_[entry.value] &= static_cast<uint8_t>(~kMarked);
    // A row that is free now was told empty when it was erased.
    if (state_.blocks.directory.Live(entry)) Tell(entry);
  }
  goes_on_ = !marked_.empty();
  if (goes_on_) Schedule();
}

void PresenceFeed::Tell(EntryIndex index) {
  const uint8_t tiers = TiersOf(index);
  const uint8_t changed = (told_[index.value] ^ tiers) & static_cast<uint8_t>(~kMarked);
  if (changed == 0) return;
  told_[index.value] ^= changed;
  const BlockEntry& entry = state_.blocks.directory[index];
  const BlockKey key{entry.namespace_id, entry.hash};
  for (const Tier tier : {Tier::kPool, Tier::kHost, Tier::kDisk}) {
    if ((changed & BitOf(tier)) == 0) continue;
    if ((tiers & BitOf(tier)) != 0) {
      state_.env.events->BlockStored(Describe(index, tier));
    } else {
      state_.env.events->BlockRemoved(key, tier);
    }
  }
}

// A router would misuse ids whose place in the sequence it does not know.
StoredBlock PresenceFeed::Describe(EntryIndex index, Tier tier) const {
  const BlockEntry& entry = state_.blocks.directory[index];
  StoredBlock block{.key = {entry.namespace_id, entry.hash},
                    .parent = state_.blocks.ParentHashOf(index),
                    .tokens = entry.tokens,
                    .tier = tier};
  if (block.parent || entry.depth == 0) block.token_ids = state_.token_ids.Of(index);
  return block;
}

void PresenceFeed::TellAgain(EntryIndex index) {
  const uint8_t told = ToldOf(index);
  for (const Tier tier : {Tier::kPool, Tier::kHost, Tier::kDisk}) {
    if ((told & BitOf(tier)) == 0) continue;
    state_.env.events->BlockStored(Describe(index, tier));
  }
}

void PresenceFeed::Forget(EntryIndex entry) {
  if (entry.value >= told_end_) return;
  KVT_CHECK(TiersOf(entry) == 0);
  Tell(entry);
}

uint64_t PresenceFeed::Replay(uint64_t cursor, uint32_t rows, BlockEventSink* sink) const {
  const uint64_t end = std::min<uint64_t>(cursor + rows, told_end_);
  size_t token_ids = 0;
  for (; cursor < end && token_ids < kMaxReplayedIds; ++cursor) {
    const EntryIndex index(static_cast<uint32_t>(cursor));
    if ((told_[cursor] & ~kMarked) == 0) continue;
    for (const Tier tier : {Tier::kPool, Tier::kHost, Tier::kDisk}) {
      if ((told_[cursor] & BitOf(tier)) == 0) continue;
      const StoredBlock block = Describe(index, tier);
      token_ids += block.token_ids.size();
      sink->BlockStored(block);
    }
  }
  return cursor < told_end_ ? cursor : kEnd;
}

// A step ends early only after as many ids as these; each is told for each tier.
uint64_t PresenceFeed::ReplaySteps(uint32_t rows) const {
  const uint64_t token_ids = state_.token_ids.bytes() / sizeof(uint32_t) * kTierCount;
  return (told_end_ + rows - 1) / rows + token_ids / kMaxReplayedIds;
}

bool PresenceFeed::Agrees(EntryIndex entry) const {
  if (state_.env.events == nullptr) return true;
  const uint8_t told = ToldOf(entry);
  return (told & kMarked) != 0 || told == TiersOf(entry);
}

}  // namespace kvtier
