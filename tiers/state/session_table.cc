// SPDX-License-Identifier: Apache-2.0
#include "tiers/state/session_table.h"

#include <algorithm>
#include <utility>

#include "base/result.h"

namespace kvtier {

void SessionTable::Open(SessionId session) {
  const bool inserted = sessions_.try_emplace(session).second;
  KVT_CHECK(inserted);
}

// References are given back in parts: a client may have held millions, and its death must not hold
// up the others. The node itself moves to the other table: HeldReferences point into it.
void SessionTable::Close(SessionId session) {
  auto node = sessions_.extract(session);
  if (node.empty()) return;
  for (const Use& use : node.mapped().used) EndUse(use.pool);
  closed_.insert(std::move(node));
  if (!keeps_holdings_) BeginToGiveBack(session);
}

void SessionTable::EndUse(PoolId pool_id) {
  CachePool* const pool = state_.blocks.FindPool(pool_id);
  ++pool->ended_sessions;
  if (--pool->sessions == 0) pool->unused_since_ms = state_.clock.NowMs();
}

void SessionTable::BeginToGiveBack(SessionId closed) {
  closing_.push_back(closed);
  if (closing_.size() == 1) CloseSome();
}

// As if a session of its own, which has used this pool alone, were closed and its process had
// ended. The blocks that are still private to that one keep their owner; so the session's next ones
// get another, and a late COMMIT or RELEASE finds none of the former.
void SessionTable::LeavePool(SessionId session, CachePool* pool) {
  Session& leaver = sessions_.at(session);
  const auto use = std::ranges::find(leaver.used, pool->id, &Use::pool);
  KVT_CHECK(use != leaver.used.end());
  const SessionId number = NewNumber();
  Session& left = closed_[number];
  left.process_gone = true;
  left.used.push_back(std::move(*use));
  leaver.used.erase(use);
  if (auto holdings = leaver.pools.extract(pool->id)) left.pools.insert(std::move(holdings));
  leaver.owners[pool->id] = NewNumber();
  EndUse(pool->id);
  BeginToGiveBack(number);
}

// Sessions that hold nothing count as a block: a client may attach and leave a pool again and
// again.
void SessionTable::CloseSome() {
  uint32_t most = state_.options.close_part_blocks;
  while (most > 0 && !closing_.empty()) {
    const auto closed = closed_.find(closing_.front());
    // The acquirer drops what cancelled operations hold in the same parts (Acquirer::CancelSome).
    if (!GiveBack(&closed->second, &most) || closed->second.held > 0) break;
    closing_.pop_front();
    most -= std::min(most, 1u);
    // Without private blocks there is nothing to wait for.
    if (closed->second.process_gone || closed->second.quarantined.empty()) Forget(closed);
  }
  if (!closing_.empty()) state_.SchedulePart();
}

void SessionTable::UsePool(SessionId session, CachePool* pool, const SessionIdentity& identity) {
  std::vector<Use>& used = sessions_.at(session).used;
  if (std::ranges::find(used, pool->id, &Use::pool) != used.end()) return;
  Use& use = used.emplace_back(Use{pool->id, {}});
  if (PoolTable* const table = pool->blocks.table()) {
    if (const auto number = table->AddSession(identity)) use.numbers.push_back(*number);
  }
  ++pool->sessions;
  pool->unused_since_ms.reset();
}

void SessionTable::AddAbsent(SessionId session, CachePool* pool, AbsentHoldings holdings) {
  const auto [absent, inserted] = closed_.try_emplace(session);
  KVT_CHECK(inserted);
  ++pool->ended_sessions;
  Session& held = absent->second;
  held.used.push_back({pool->id, std::move(holdings.sessions)});
  ReferenceCounts& references = held.pools[pool->id].references;
  for (const BlockIndex block : holdings.referenced) {
    state_.Reference(pool, block);
    references.Add(block);
  }
  PoolBlockList& withheld = held.quarantined[pool->id];
  for (const BlockIndex block : holdings.withheld) {
    pool->blocks.Withhold(block, session, &withheld);
  }
}

// A block that is private belongs to one session alone. One that is whole may have been acquired by
// others since, or be in the order of eviction: what counts is that it is the same block still.
ResumeOutcome SessionTable::Resume(SessionId absent, SessionId session, CachePool* pool,
                                   const ResumeClaim& claim) {
  if (!pool->blocks.Current(claim.block)) return ResumeOutcome::kLost;
  const BlockIndex block = claim.block.index;
  const PoolBlock& record = pool->blocks[block];
  Holdings& holdings = Of(session, *pool);
  if (record.state() == PoolBlockState::kQuarantined && record.owner == absent) {
    const auto closed = closed_.find(absent);
    if (closed == closed_.end() || closed->second.process_gone) return ResumeOutcome::kLost;
    pool->blocks.Resume(block, OwnerIn(session, *pool), NumberOf(session, *pool),
                        &closed->second.quarantined.at(pool->id), &holdings.private_blocks);
    return ResumeOutcome::kPrivate;
  }
  const bool whole = record.state() == PoolBlockState::kCommitted && !record.loading();
  const uint64_t allowed = state_.options.max_references_per_session;
  if (!whole || claim.references == 0 || references(session) + claim.references > allowed) {
    return ResumeOutcome::kLost;
  }
  // Its session has been using it all the time.
  state_.Touch(record.entry);
  state_.Reference(pool, block, claim.references);
  for (uint32_t i = 0; i < claim.references; ++i) holdings.references.Add(block);
  return ResumeOutcome::kReferenced;
}

std::optional<uint32_t> SessionTable::NumberOf(SessionId session, const CachePool& pool) const {
  for (const Use& use : sessions_.at(session).used) {
    if (use.pool == pool.id && !use.numbers.empty()) return use.numbers.front();
  }
  return std::nullopt;
}

void SessionTable::Forget(Sessions::iterator closed) {
  for (const Use& use : closed->second.used) {
    CachePool* const pool = state_.blocks.FindPool(use.pool);
    --pool->ended_sessions;
    for (const uint32_t number : use.numbers) pool->blocks.table()->RemoveSession(number);
  }
  closed_.erase(closed);
}

// Pool by pool, references before private blocks; the rest stands where it was when the next part
// begins.
bool SessionTable::GiveBack(Session* closed, uint32_t* most) {
  for (auto& [pool_id, holdings] : closed->pools) {
    CachePool* pool = state_.blocks.FindPool(pool_id);
    {
      ReleasedBlocks released(&state_, pool);
      *most -= holdings.references.TakeOut(
          *most, [&](BlockIndex block, uint32_t count) { released.Unreference(block, count); });
    }
    *most -=
        pool->blocks.Quarantine(&holdings.private_blocks, &closed->quarantined[pool_id], *most);
    if (holdings.references.total() > 0 || holdings.private_blocks.size > 0) return false;
  }
  closed->pools.clear();
  std::erase_if(closed->quarantined, [](const auto& list) { return list.second.size == 0; });
  if (!closed->process_gone) return true;
  for (auto& [pool_id, list] : closed->quarantined) {
    CachePool* pool = state_.blocks.FindPool(pool_id);
    for (; *most > 0 && list.size > 0; --*most) pool->blocks.Free(list.first, &list);
    if (list.size > 0) return false;
  }
  return true;
}

// Kernels of a dead client may still write to its private blocks. Until the driver says that they
// have ended, such a block given to another session would be overwritten unseen.
void SessionTable::ReleaseQuarantine(SessionId session) {
  const auto closed = closed_.find(session);
  if (closed == closed_.end()) return;
  if (keeps_holdings_) return;
  closed->second.process_gone = true;
  if (std::ranges::find(closing_, session) == closing_.end()) BeginToGiveBack(session);
}

SessionId SessionTable::OwnerIn(SessionId session, const CachePool& pool) const {
  const Session& holder = sessions_.at(session);
  const auto other = holder.owners.find(pool.id);
  return other == holder.owners.end() ? session : other->second;
}

bool SessionTable::OwnsPrivate(SessionId session, const CachePool& pool, BlockIndex block) const {
  const PoolBlock& record = pool.blocks[block];
  return record.state() == PoolBlockState::kPrivate && record.owner == OwnerIn(session, pool);
}

BlockHandle SessionTable::AllocatePrivate(SessionId session, CachePool* pool) {
  const BlockIndex block = pool->blocks.TakePrivate(
      OwnerIn(session, *pool), NumberOf(session, *pool), &Of(session, *pool).private_blocks);
  state_.NoteChange(pool);
  return pool->blocks.HandleOf(block);
}

void SessionTable::DropReference(SessionId session, CachePool* pool, BlockIndex block,
                                 ReleasedBlocks* released) {
  ReferenceCounts& references = Of(session, *pool).references;
  KVT_CHECK(references.Get(block) > 0);
  references.Drop(block);
  released->Unreference(block);
}

// A block that is still loading becomes evictable when it arrives.
void ReleasedBlocks::Unreference(BlockIndex block, uint32_t times) {
  if (!pool_->blocks.Unreference(block, times)) return;
  const PoolBlock& record = pool_->blocks[block];
  if (record.state() == PoolBlockState::kOrphaned) {
    pool_->blocks.Free(block, nullptr);
  } else if (!record.loading()) {
    cached_.push_back(record.entry);
  }
}

ReleasedBlocks::~ReleasedBlocks() {
  const auto deeper = [this](EntryIndex a, EntryIndex b) {
    return state_[a].depth > state_[b].depth;
  };
  // Sequences are mostly released in their order.
  std::reverse(cached_.begin(), cached_.end());
  if (!std::is_sorted(cached_.begin(), cached_.end(), deeper)) {
    std::stable_sort(cached_.begin(), cached_.end(), deeper);
  }
  for (const EntryIndex entry : cached_) {
    // The session that held the block was using it until now.
    state_.Touch(entry);
    state_.EnterEvictionOrder(pool_, entry);
  }
}

void SessionTable::FreePrivate(SessionId session, CachePool* pool, BlockIndex block) {
  pool->blocks.Free(block, &Of(session, *pool).private_blocks);
}

void SessionTable::Publish(SessionId session, CachePool* pool, BlockIndex block, EntryIndex entry) {
  Holdings& holdings = Of(session, *pool);
  pool->blocks.Commit(block, entry, &holdings.private_blocks);
  holdings.references.Add(block);
}

// References of an acquire that is under way do not count: the client has not been told of them.
bool SessionTable::Holds(SessionId session, const CachePool& pool, BlockIndex block) const {
  const Session& holder = sessions_.at(session);
  const auto found = holder.pools.find(pool.id);
  return found != holder.pools.end() && found->second.references.Get(block) > 0;
}

uint64_t SessionTable::ReferencesOf(const Session& session) {
  uint64_t total = session.held;
  for (const auto& [pool, holdings] : session.pools) total += holdings.references.total();
  return total;
}

uint64_t SessionTable::references(SessionId session) const {
  return ReferencesOf(sessions_.at(session));
}

uint64_t SessionTable::references() const {
  uint64_t total = 0;
  for (const auto& [id, session] : sessions_) total += ReferencesOf(session);
  for (const auto& [id, session] : closed_) total += ReferencesOf(session);
  return total;
}

HeldReferences::HeldReferences(SessionTable* table, SessionId session, CachePool* pool)
    : table_(table), pool_(pool), session_(&table->sessions_.at(session)) {
  ++pool->operations;
}

HeldReferences::HeldReferences(HeldReferences&& other) noexcept
    : table_(std::exchange(other.table_, nullptr)),
      pool_(other.pool_),
      session_(other.session_),
      blocks_(std::exchange(other.blocks_, {})),
      count_(std::exchange(other.count_, 0)) {}

HeldReferences& HeldReferences::operator=(HeldReferences&& other) noexcept {
  // The blocks that this held go with `other`.
  std::swap(table_, other.table_);
  std::swap(pool_, other.pool_);
  std::swap(session_, other.session_);
  blocks_.swap(other.blocks_);
  std::swap(count_, other.count_);
  return *this;
}

HeldReferences::~HeldReferences() {
  if (count_ > 0) DropAll(blocks_);
  if (table_ != nullptr) --pool_->operations;
}

void HeldReferences::Assign(std::vector<BlockIndex> blocks) {
  // The new ones first, so that a block held before and after never becomes evictable between.
  const std::vector<BlockIndex> before = std::exchange(blocks_, std::move(blocks));
  for (const BlockIndex block : blocks_) {
    if (block != kNoBlock) Reference(block);
  }
  DropAll(before);
}

void HeldReferences::Add(size_t position, BlockIndex block) {
  KVT_CHECK(blocks_[position] == kNoBlock);
  blocks_[position] = block;
  Reference(block);
}

void HeldReferences::Reference(BlockIndex block) {
  table_->state_.Reference(pool_, block);
  ++count_;
  ++session_->held;
}

void HeldReferences::Drop(size_t position) {
  const BlockIndex block = std::exchange(blocks_[position], kNoBlock);
  KVT_CHECK(block != kNoBlock);
  DropAll(std::span(&block, 1));
}

void HeldReferences::Truncate(size_t size) {
  DropAll(std::span(blocks_).subspan(size));
  blocks_.resize(size);
}

void HeldReferences::DropAll(std::span<const BlockIndex> blocks) {
  ReleasedBlocks released(&table_->state_, pool_);
  for (const BlockIndex block : blocks) {
    if (block == kNoBlock) continue;
    --count_;
    --session_->held;
    released.Unreference(block);
  }
}

// The blocks' own counts stay: only whose the references are changes.
void HeldReferences::HandOver() {
  ReferenceCounts& references = session_->pools[pool_->id].references;
  for (const BlockIndex block : blocks_) {
    if (block != kNoBlock) references.Add(block);
  }
  session_->held -= std::exchange(count_, 0);
  blocks_.clear();
}

}  // namespace kvtier
