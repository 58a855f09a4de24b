// SPDX-License-Identifier: Apache-2.0
#include "tiers/transfer/offloader.h"

#include "base/digest.h"
#include "base/result.h"
#include "tiers/storage/slot_header.h"

namespace kvtier {

// Urgent copies come first, but both kinds share one limit, so that a burst of loads between
// devices cannot take more of the link than the offloads are allowed.
bool Offloader::Pump() {
  const auto starting = [this](CopyPriority priority, EventPart* part) {
    return [this, priority, part](CopyLine line, PriorityQueue<EntryRef>* blocks) {
      const InFlight& in_flight = of_lines_[line];
      const bool may_start = in_flight.bytes < state_.options.max_offload_bytes &&
                             in_flight.items < kCopyPiecesInFlight;
      return may_start &&
             state_.parts.TakeStep(part, [&] { return StartBatch(blocks->next(), priority); });
    };
  };
  const bool urgent = queue_.urgent().TakeTurns(starting(CopyPriority::kDemand, &urgent_part_));
  const bool queued = queue_.queued().TakeTurns(starting(CopyPriority::kBackground, &queued_part_));
  queue_.NoteBusy();
  return urgent || queued;
}

// A block in a line may have been forgotten, or copied, since it was queued. A block that has a
// host slot by now is on its way from disk or is there already, so that a second copy would only
// waste a slot.
CachePool* Offloader::SourceOf(EntryRef block) {
  const EntryIndex index = state_.blocks.directory.Resolve(block);
  if (index == kNoEntry) return nullptr;
  const BlockEntry& entry = state_[index];
  if (!entry.offload_queued()) return nullptr;
  if (!entry.has_host_slot()) {
    if (CachePool* const source = state_.blocks.ReadyPool(entry)) return source;
  }
  queue_.End(index);
  return nullptr;
}

uint64_t Offloader::StartBatch(std::deque<EntryRef>* line, CopyPriority priority) {
  Batch batch{CopyBatch(&state_, CopyDirection::kPoolToHost, priority)};
  const uint64_t taken = TakeBlocks(line, &batch);
  if (batch.entries.empty()) return taken;
  batch.pool = batch.copies.pool();
  const uint64_t blocks = batch.entries.size();
  const uint64_t bytes = blocks * batch.pool->block_bytes;
  InFlight& of_line = of_lines_[batch.pool->copy_line];
  const uint64_t pieces = batch.copies.pieces();
  const auto started =
      batches_.insert(batches_.end(), {.copies = std::move(batch.copies),
                                       .pool = batch.pool,
                                       .entries = std::move(batch.entries),
                                       .pins = std::move(batch.pins),
                                       .payloads = std::move(batch.payloads),
                                       .in_flight = {&queue_.in_flight(), bytes, blocks},
                                       .of_line = {&of_line, bytes, pieces}});
  copies_.Start(std::move(started->copies),
                [this, started](const Status& status) { OnCopied(started, status); });
  return taken;
}

// When the first block of a line must wait for a host slot, the whole line waits: the blocks behind
// it belong to the same tenant and would take the slot that the first one needs.
uint64_t Offloader::TakeBlocks(std::deque<EntryRef>* line, Batch* batch) {
  uint64_t taken = 0;
  for (; !line->empty() && taken < kCopyBatchPieces; ++taken) {
    const EntryIndex index = line->front().row;
    CachePool* const pool = SourceOf(line->front());
    if (pool == nullptr) {
      line->pop_front();
      continue;
    }
    if (!batch->copies.Admits(*pool)) break;
    const HostSlots::Outcome outcome = host_.Allocate(index);
    if (outcome == HostSlots::Outcome::kWait) break;
    line->pop_front();
    if (outcome != HostSlots::Outcome::kAllocated) {
      FailOffload(index, outcome == HostSlots::Outcome::kOverCap ? DropReason::kTenantCap
                                                                 : DropReason::kHostFull);
      continue;
    }
    state_.Apply(index, BlockEvent::kBeginOffload);
    state_.trace.Begin(TraceKind::kOffload, index);
    batch->entries.push_back(index);
    // The pin keeps the source from being evicted and used again while the copy engine reads it.
    batch->pins.emplace_back(&pool->blocks, state_.blocks.BlockIn(*pool, state_[index]));
    batch->payloads.push_back(batch->copies.AddBlock(pool, index));
  }
  return taken;
}

void Offloader::FailOffload(EntryIndex index, DropReason reason) {
  queue_.End(index, MissReason::kHostFull);
  state_.Apply(index, BlockEvent::kFailOffload);
  state_.drops.Count(index, Tier::kHost, reason);
  state_.SchedulePump();
}

// Checksums are made on a thread of the executor. It touches only the payloads, which the pins keep
// in place, and the list of checksums, which the event loop does not read before Finish.
void Offloader::OnCopied(Batches::iterator batch, const Status& status) {
  TraceCopied(*batch, !status);
  if (!status) return Finish(batch);
  state_.env.executor->Run(
      [batch] {
        for (const auto payload : batch->payloads) {
          batch->checksums.push_back(ChecksumPayload(payload));
        }
      },
      [this, batch] { Finish(batch); });
}

void Offloader::TraceCopied(const Batch& batch, bool failed) {
  for (const EntryIndex index : batch.entries) {
    state_.trace.End(TraceKind::kOffload, index, failed);
    if (!failed) state_.trace.Begin(TraceKind::kSeal, index);
  }
}

void Offloader::Finish(Batches::iterator finished) {
  state_.SchedulePump();
  Batches ended;
  // Taken out of the list first: the batch lives to the end of this function, but Idle no longer
  // counts it.
  ended.splice(ended.end(), batches_, finished);
  Batch& batch = ended.front();
  batch.in_flight = {};
  batch.of_line = {};
  queue_.NoteBusy();
  const bool copied = batch.checksums.size() == batch.entries.size();
  for (size_t i = 0; i < batch.entries.size(); ++i) {
    const EntryIndex index = batch.entries[i];
    if (copied) state_.trace.End(TraceKind::kSeal, index, false);
    // Released first, because a block whose bytes are in use can be neither dropped nor freed.
    batch.pins[i].Release();
    if (copied && MatchesCommit(*batch.pool, index, batch.checksums[i])) {
      Seal(index, batch.checksums[i]);
      queue_.End(index);
      ++state_.stats.offload_blocks;
      state_.stats.offload_bytes += batch.pool->block_bytes;
      continue;
    }
    host_.RollBack(index);
    queue_.End(index, copied ? MissReason::kChecksumMismatch : MissReason::kCopyFailed);
    if (copied) {
      // The client has written to the block after it committed it: the bytes in the pool are not
      // those of the hash, so that no other session may be given them. A copy that failed says
      // nothing of the kind, and the block stays in its pool.
      state_.drops.Count(index, Tier::kPool, DropReason::kClientWroteCommitted);
      state_.incidents.Report(IncidentKind::kOverwritten, batch.pool->namespace_id,
                              "client_wrote_committed");
      state_.LosePoolBlock(batch.pool, index);
      state_.ForgetIfGone(index);
    } else {
      state_.drops.Count(index, Tier::kHost, DropReason::kCopyFailed);
      state_.Apply(index, BlockEvent::kFailOffload);
    }
  }
}

bool Offloader::MatchesCommit(const CachePool& pool, EntryIndex index,
                              const PayloadChecksum& checksum) {
  const PayloadChecksum* const given = state_.blocks.CommitChecksum(pool, index);
  return given == nullptr || *given == checksum;
}

// The header has no disk address yet; the persister fills it in when the block gets a slot on disk.
// Times are those of the wall clock, because the header outlives this process.
void Offloader::Seal(EntryIndex index, const PayloadChecksum& checksum) {
  const BlockEntry& entry = state_[index];
  const Namespace& name_space = state_.blocks.NamespaceOf(entry);
  SlotHeader header;
  header.tenant = name_space.identity.tenant;
  header.model = name_space.identity.model;
  header.hash = entry.hash;
  header.parent = state_.blocks.ParentHashOf(index);
  header.payload_bytes = name_space.identity.block_bytes;
  header.payload_checksum = checksum;
  header.tokens = entry.tokens;
  header.depth = entry.depth;
  header.retention = entry.retention;
  header.created_s = state_.clock.ToWallS(entry.created_s);
  header.last_use_s = state_.clock.ToWallS(entry.last_use_s);
  EncodeSlotHeader(header, state_.tables.HostBytes(entry).first<kSlotHeaderBytes>());
  host_.Ready(index);
}

}  // namespace kvtier
