// SPDX-License-Identifier: Apache-2.0
#include "tiers/directory/pool_blocks.h"

#include "base/result.h"

namespace kvtier {

const PoolBlock BlockRecords::kUntaken;

void BlockRecords::MakePage(std::unique_ptr<Page>* page) {
  *page = std::make_unique<Page>();
  for (PoolBlock& record : **page) record.generation = 1;
}

// A handle of an earlier use names nothing: each record that is made has a generation of its own.
PoolBlock& BlockRecords::TakenAt(BlockIndex block) {
  const auto [record, made] = taken_.try_emplace(block);
  if (made) record->second.generation = ++last_generation_;
  return record->second;
}

PoolBlocks::PoolBlocks(uint32_t blocks, BlockRecords::Stay stay)
    : blocks_(blocks, stay), in_line_(stay == BlockRecords::Stay::kForEver) {
  counts_[static_cast<size_t>(PoolBlockState::kFree)] = blocks;
}

BlockIndex PoolBlocks::TakePrivate(SessionId owner, std::optional<uint32_t> holder,
                                   PoolBlockList* list) {
  const BlockIndex block = TakeFree();
  Apply(block, PoolEvent::kTakePrivate);
  blocks_.At(block).owner = owner;
  Link(block, list);
  if (table_ != nullptr && holder) table_->SetHolder(block, *holder);
  return block;
}

void PoolBlocks::Resume(BlockIndex block, SessionId owner, std::optional<uint32_t> holder,
                        PoolBlockList* from, PoolBlockList* to) {
  PoolBlock& record = blocks_.At(block);
  Apply(block, PoolEvent::kResume);
  Unlink(block, from);
  record.owner = owner;
  Link(block, to);
  if (table_ == nullptr) return;
  if (holder) return table_->SetHolder(block, *holder);
  table_->Hold(block, record.generation);
}

BlockIndex PoolBlocks::TakeCommitted(EntryIndex entry) {
  const BlockIndex block = free_.size > 0 ? free_.first : BlockIndex(untaken_);
  TakeCommitted(block, entry);
  return block;
}

void PoolBlocks::TakeCommitted(BlockIndex block, EntryIndex entry) {
  KVT_CHECK(block.value < blocks_.size() && blocks_[block].state() == PoolBlockState::kFree);
  TakeFromLine(block);
  Apply(block, PoolEvent::kTakeCommitted);
  blocks_.At(block).entry = entry;
}

void PoolBlocks::Commit(BlockIndex block, EntryIndex entry, PoolBlockList* list) {
  PoolBlock& record = blocks_.At(block);
  Apply(block, PoolEvent::kCommit);
  Unlink(block, list);
  record.entry = entry;
  record.owner = SessionId{};
}

// No state changes, so that the table need not be told but of the first and the last.
bool PoolBlocks::Reference(BlockIndex block, uint32_t times) {
  PoolBlock& record = blocks_.At(block);
  const bool first = record.references() == 0;
  record.Apply(PoolEvent::kReference, times);
  if (first) RecordReferences(block);
  return first;
}

bool PoolBlocks::Unreference(BlockIndex block, uint32_t times) {
  PoolBlock& record = blocks_.At(block);
  record.Apply(PoolEvent::kUnreference, times);
  if (record.references() > 0) return false;
  RecordReferences(block);
  return true;
}

uint32_t PoolBlocks::Quarantine(PoolBlockList* from, PoolBlockList* to, uint32_t most) {
  uint32_t moved = 0;
  for (; moved < most && from->size > 0; ++moved) {
    const BlockIndex block = from->first;
    Apply(block, PoolEvent::kQuarantine);
    Unlink(block, from);
    Link(block, to);
  }
  return moved;
}

void PoolBlocks::Withhold(BlockIndex block, SessionId owner, PoolBlockList* list) {
  KVT_CHECK(blocks_[block].state() == PoolBlockState::kFree);
  TakeFromLine(block);
  Apply(block, PoolEvent::kTakePrivate);
  Apply(block, PoolEvent::kQuarantine);
  blocks_.At(block).owner = owner;
  Link(block, list);
}

// The generation grows with each return to the free list, so that old handles name nothing.
void PoolBlocks::Free(BlockIndex block, PoolBlockList* list) {
  PoolBlock& record = blocks_.At(block);
  const PoolBlockState before = record.state();
  const bool listed = before == PoolBlockState::kPrivate || before == PoolBlockState::kQuarantined;
  KVT_CHECK(listed == (list != nullptr));
  if (listed) Unlink(block, list);
  const uint32_t generation = record.generation + 1;
  Apply(block, PoolEvent::kFree);
  if (blocks_.Drop(block)) return;
  record = PoolBlock{};
  record.generation = generation;
  Link(block, &free_);
}

// The block belongs to no entry any more; references alone keep it until the last one is dropped.
void PoolBlocks::Orphan(BlockIndex block) {
  PoolBlock& record = blocks_.At(block);
  KVT_CHECK(record.elsewhere == kNoPlace);
  Apply(block, PoolEvent::kOrphan);
  record.entry = kNoEntry;
}

// The only place at which the state changes, so that the counts hold.
void PoolBlocks::Apply(BlockIndex block, PoolEvent event) {
  PoolBlock& record = blocks_.At(block);
  --counts_[static_cast<size_t>(record.state())];
  loading_ -= record.loading();
  record.Apply(event);
  ++counts_[static_cast<size_t>(record.state())];
  loading_ += record.loading();
  if (table_ != nullptr) Tell(block);
}

// A block that is committed and not loading may be whole, which Record alone can say. Until that
// has said so it stays its holder's, who commits it again if this process dies in between. One that
// is private stays its holder's in quarantine, too: the session may yet be resumed.
void PoolBlocks::Tell(BlockIndex block) {
  const PoolBlock& record = blocks_[block];
  const bool own =
      record.state() == PoolBlockState::kPrivate || record.state() == PoolBlockState::kQuarantined;
  const bool committed = record.state() == PoolBlockState::kCommitted && !record.loading();
  if ((own || committed) && table_->StateOf(block) == PoolEntryState::kPrivate) return;
  if (record.state() == PoolBlockState::kFree) {
    table_->SetFree(block);
  } else if (!committed || !table_->Whole(block)) {
    table_->Hold(block, record.generation);
  }
}

void PoolBlocks::Record(BlockIndex block, const PoolEntryFacts& facts) {
  const PoolBlock& record = blocks_[block];
  KVT_CHECK(record.state() == PoolBlockState::kCommitted && !record.loading());
  if (table_ != nullptr) table_->Complete(block, facts, record.references() > 0);
}

void PoolBlocks::RecordReferences(BlockIndex block) {
  if (table_ == nullptr || !table_->Whole(block)) return;
  table_->SetReferenced(block, blocks_[block].references() > 0);
}

void PoolBlocks::RecordUse(BlockIndex block, const PoolEntryFacts& facts) {
  if (table_ != nullptr && table_->Whole(block)) table_->Update(block, facts);
}

BlockIndex PoolBlocks::TakeFree() {
  KVT_CHECK(in_line_ && free() > 0);
  const BlockIndex block = free_.size > 0 ? free_.first : BlockIndex(untaken_);
  TakeFromLine(block);
  return block;
}

// Blocks that are passed over come into the line in reverse, so that low numbers are taken first.
void PoolBlocks::TakeFromLine(BlockIndex block) {
  if (!in_line_) return;
  if (block.value < untaken_) return Unlink(block, &free_);
  for (uint32_t i = block.value; i > untaken_; --i) Link(BlockIndex(i - 1), &free_);
  untaken_ = block.value + 1;
}

void PoolBlocks::Link(BlockIndex block, PoolBlockList* list) {
  PoolBlock& record = blocks_.At(block);
  record.previous = kNoBlock;
  record.next = list->first;
  if (list->first != kNoBlock) blocks_.At(list->first).previous = block;
  list->first = block;
  ++list->size;
}

void PoolBlocks::Unlink(BlockIndex block, PoolBlockList* list) {
  PoolBlock& record = blocks_.At(block);
  if (record.previous != kNoBlock) {
    blocks_.At(record.previous).next = record.next;
  } else {
    KVT_CHECK(list->first == block);
    list->first = record.next;
  }
  if (record.next != kNoBlock) blocks_.At(record.next).previous = record.previous;
  record.previous = record.next = kNoBlock;
  --list->size;
}

}  // namespace kvtier
