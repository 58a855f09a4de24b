// SPDX-License-Identifier: Apache-2.0
// Reports on single blocks for administrators, and which of the blocks a session may have read on
// its behalf.
#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "tiers/cache_impl.h"

namespace kvtier {
namespace {

// A block that is on its way to a tier is not there yet, and one that is being stored from a region
// is the engine's.
BlockPresence PresenceOf(const CacheState& state, const BlockEntry& entry) {
  bool in_pool = false;
  state.blocks.ForEachPlace(entry, [&](const CachePool& pool, BlockIndex block) {
    in_pool |= !pool.is_region && !pool.blocks[block].loading();
  });
  return {in_pool, entry.in_host(), entry.persisted(), entry.unverified_on_disk(),
          entry.cold_copy()};
}

bool Admits(const CacheState& state, const BlockFilter& filter, const BlockEntry& entry) {
  if (filter.tier && !PresenceOf(state, entry).in(*filter.tier)) return false;
  if (filter.cold && !entry.cold_copy()) return false;
  if (filter.hashes && !filter.hashes->Contains(entry.hash)) return false;
  return !filter.namespaces || std::ranges::binary_search(*filter.namespaces, entry.namespace_id);
}

// Bytes that have not arrived are another block's, perhaps another tenant's: they are not shown.
Status CheckReadable(const SessionTable& sessions, SessionId session, const CachePool& pool,
                     BlockHandle handle) {
  if (!pool.blocks.Current(handle)) {
    return MakeError(ErrorCode::kStaleHandle, "stale_generation",
                     fmt::format("block {} generation {}", handle.index.value, handle.generation));
  }
  const PoolBlock& block = pool.blocks[handle.index];
  if (sessions.OwnsPrivate(session, pool, handle.index)) return {};
  const bool shared =
      block.state() == PoolBlockState::kCommitted || block.state() == PoolBlockState::kOrphaned;
  if (!shared || !sessions.Holds(session, pool, handle.index)) {
    return MakeError(ErrorCode::kNotOwner, "not_held",
                     fmt::format("the session does not hold block {}", handle.index.value));
  }
  if (block.state() == PoolBlockState::kOrphaned || block.loading()) {
    return MakeError(ErrorCode::kWrongState, "block_not_loaded",
                     fmt::format("block {} has not received its bytes", handle.index.value));
  }
  return {};
}

}  // namespace

std::optional<HashRange> HashRange::BeginningWith(std::string_view digits) {
  constexpr size_t kDigits = 2 * sizeof(BlockHash::bytes);
  if (digits.empty() || digits.size() > kDigits) return std::nullopt;
  const std::string text(digits);
  const auto first = BlockHash::FromHex(text + std::string(kDigits - digits.size(), '0'));
  const auto last = BlockHash::FromHex(text + std::string(kDigits - digits.size(), 'f'));
  if (!first || !last) return std::nullopt;
  return HashRange{*first, *last};
}

// The cache's times are those of the age clock; administrators compare with the wall clock.
BlockRecord Cache::Impl::Describe(EntryIndex index) const {
  const BlockEntry& entry = state.blocks.directory[index];
  BlockRecord record{.key = {entry.namespace_id, entry.hash},
                     .presence = PresenceOf(state, entry),
                     .tokens = entry.tokens,
                     .depth = entry.depth,
                     .retention = entry.retention,
                     .created_s = state.clock.ToWallS(entry.created_s),
                     .last_use_s = state.clock.ToWallS(entry.last_use_s),
                     .uses = entry.uses,
                     .moving = entry.busy(),
                     .persist_failed = entry.persist_failed()};
  record.references = state.blocks.References(entry);
  if (entry.pinned())
    record.pinned_until_ms = state.orders.pins.UntilMs(index) + state.clock.WallStepMs();
  record.expires_ms = state.ExpiryMs(entry) + state.clock.WallStepMs();
  if (entry.on_disk()) record.disk_offset = entry.disk.offset;
  return record;
}

std::vector<BlockPresence> Cache::Lookup(PoolId pool_id, std::span<const BlockHash> hashes) const {
  const CachePool* pool = impl_->state.blocks.FindPool(pool_id);
  if (pool == nullptr) return std::vector<BlockPresence>(hashes.size());
  std::vector<BlockPresence> presence = Lookup(pool->namespace_id, hashes);
  if (pool->is_region) return presence;
  // `pool` was true if any pool has the bytes; the caller asks about this one.
  for (size_t i = 0; i < hashes.size(); ++i) {
    if (!presence[i].pool) continue;
    const EntryIndex index = impl_->state.blocks.directory.Find({pool->namespace_id, hashes[i]});
    const BlockIndex block = impl_->state.blocks.BlockIn(*pool, impl_->state[index]);
    presence[i].pool = block != kNoBlock && !pool->blocks[block].loading();
  }
  return presence;
}

void Cache::KeepForRegion(PoolId region, const BlockHash& last) {
  const CachePool* const pool = impl_->state.blocks.FindPool(region);
  if (pool == nullptr || !pool->is_region) return;
  impl_->touches.TouchPrefix(impl_->state.blocks.Find({pool->namespace_id, last}));
}

void Cache::AskColdStore(PoolId pool_id, const std::vector<BlockHash>& hashes, ColdAsk ask,
                         std::function<void(std::vector<bool>)> done) {
  const CachePool* const pool = impl_->state.blocks.FindPool(pool_id);
  if (pool == nullptr || !impl_->up.cold_lookup) return done({});
  impl_->up.cold_lookup->Ask(pool->namespace_id, hashes, ask, std::move(done));
}

std::vector<BlockPresence> Cache::Lookup(NamespaceId namespace_id,
                                         std::span<const BlockHash> hashes) const {
  std::vector<BlockPresence> presence(hashes.size());
  for (size_t i = 0; i < hashes.size(); ++i) {
    const EntryIndex index = impl_->state.blocks.Find({namespace_id, hashes[i]});
    if (index == kNoEntry || impl_->state.Expired(impl_->state[index])) continue;
    if (impl_->state.blocks.Distrusts(namespace_id, index)) continue;
    presence[i] = PresenceOf(impl_->state, impl_->state[index]);
  }
  return presence;
}

bool Cache::AdoptionEnded() const { return impl_->upkeep.adoption.Ended(); }

std::optional<NamespaceId> Cache::FindNamespace(const NamespaceIdentity& identity) const {
  return impl_->state.blocks.FindNamespace(identity);
}

uint32_t Cache::NamespaceCount() const {
  return static_cast<uint32_t>(impl_->state.blocks.namespaces.size());
}

const NamespaceIdentity& Cache::IdentityOf(NamespaceId id) const {
  return impl_->state.blocks.namespaces[id.value].identity;
}

BlockWalk Cache::Walk(uint64_t cursor, uint32_t max_rows, uint32_t max_blocks,
                      const BlockFilter& filter) const {
  const Directory& directory = impl_->state.blocks.directory;
  BlockWalk walk;
  const uint64_t end = std::min<uint64_t>(directory.end(), cursor + max_rows);
  for (; cursor < end && walk.blocks.size() < max_blocks; ++cursor) {
    const EntryIndex index(static_cast<uint32_t>(cursor));
    if (!directory.Live(index) || impl_->state.blocks.lost.Contains(index)) continue;
    const BlockEntry& entry = directory[index];
    if (Admits(impl_->state, filter, entry) && !impl_->state.Expired(entry)) {
      walk.blocks.push_back(impl_->Describe(index));
    }
  }
  walk.next_cursor = cursor;
  walk.finished = cursor >= directory.end();
  return walk;
}

uint64_t Cache::ReplayEvents(uint64_t cursor, uint32_t max_rows, BlockEventSink* sink) const {
  static_assert(kReplayEnd == PresenceFeed::kEnd);
  return impl_->state.presence.Replay(cursor, max_rows, sink);
}

Cache::ReplaySize Cache::SizeOfReplay(uint32_t max_rows) const {
  const PresenceFeed& presence = impl_->state.presence;
  return {.rows = presence.rows(),
          .steps = presence.ReplaySteps(max_rows),
          .namespaces = impl_->state.blocks.namespaces.count()};
}

std::optional<BlockRecord> Cache::Inspect(const BlockKey& key) const {
  const EntryIndex index = impl_->state.blocks.Find(key);
  if (index == kNoEntry || impl_->state.Expired(impl_->state[index])) return std::nullopt;
  return impl_->Describe(index);
}

BlockPast Cache::PastOf(const BlockKey& key) const { return impl_->state.history.Of(key); }

Result<const DevicePool*> Cache::ReadableMemory(SessionId session, PoolId pool_id,
                                                std::span<const BlockHandle> blocks) const {
  const CachePool* const pool = impl_->state.blocks.FindPool(pool_id);
  if (pool == nullptr) return MakeError(ErrorCode::kNotFound, "unknown_pool");
  if (!impl_->sessions.IsOpen(session)) return MakeError(ErrorCode::kCancelled, "session_closed");
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (Status readable = CheckReadable(impl_->sessions, session, *pool, blocks[i]); !readable) {
      Error error = std::move(readable).error();
      error.context += fmt::format(", item {}", i);
      return tl::unexpected(std::move(error));
    }
  }
  return pool->memory.get();
}

}  // namespace kvtier
