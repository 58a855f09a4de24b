// SPDX-License-Identifier: Apache-2.0
#include "tiers/transfer/layer_loader.h"

#include <algorithm>
#include <utility>

#include "base/result.h"

namespace kvtier {
namespace {

// The first request is smaller, so that copying begins while the other blocks are looked at.
constexpr uint64_t kFirstBatchBytes = 1 * kMiB;
// Blocks that end in one event, beside those of the copies that landed in it.
constexpr size_t kEndsPerEvent = 1024;

}  // namespace

void LayerLoader::Add(std::shared_ptr<LayerCount> count, CachePool* pool,
                      std::vector<PinnedEntry> blocks, uint32_t layers) {
  KVT_CHECK(!blocks.empty() && layers > 0 && pool->block_bytes % layers == 0);
  const auto group = std::make_shared<Group>();
  group->count = std::move(count);
  group->pool = pool;
  group->layers = layers;
  group->layer_bytes = pool->block_bytes / layers;
  group->device = pool->device;
  group->pieces_left.assign(layers, 0);
  group->members.reserve(blocks.size());
  for (PinnedEntry& block : blocks) {
    group->members.push_back({.entry = block.entry, .pin = std::move(block.pin)});
  }
  queued_blocks_ += group->members.size();
  queued_bytes_[LoadRates::SlotOf(group->device)] += pool->block_bytes * group->members.size();
  groups_.Push(pool->copy_line, group);
}

bool LayerLoader::StartOne(const std::function<bool(CopyLine)>& may_start) {
  return groups_.TakeTurn([&](CopyLine line, PriorityQueue<std::shared_ptr<Group>>* groups) {
    if (!may_start(line)) return false;
    StartNext(groups->now());
    return true;
  });
}

void LayerLoader::StartNext(std::deque<std::shared_ptr<Group>>* line) {
  const std::shared_ptr<Group> group = line->front();
  const bool first = group->layer == 0 && group->member == 0;
  const uint64_t waiting_bytes =
      (group->layers - group->layer) * group->layer_bytes * group->members.size();
  CopyBatch batch(&state_, CopyDirection::kHostToPool, CopyPriority::kDemand,
                  first ? kFirstBatchBytes : CopyBatchBytesOf(waiting_bytes));
  std::vector<Piece> pieces = Fill(group.get(), &batch);
  if (group->AllStarted()) {
    queued_blocks_ -= group->members.size();
    line->pop_front();
  }
  if (!pieces.empty()) {
    if (group->count && !group->broken) batch.Count(group->count->Queued(group->layer));
    copies_.Start(std::move(batch),
                  [this, group, pieces = std::move(pieces)](const Status& status) {
                    OnCopied(group.get(), pieces, status);
                  });
  }
  // Members that failed, and members whose pieces were all in earlier requests, end here: no
  // completion of this request would do it.
  if (!group->AllStarted()) return;
  if (group->members.size() > kEndsPerEvent) {
    ending_.push_back({group});
    return state_.SchedulePart();
  }
  for (Member& member : group->members) EndIfDone(*group, &member);
}

void LayerLoader::GoOn() {
  for (size_t left = kEndsPerEvent; left > 0 && !ending_.empty(); --left) {
    const std::shared_ptr<Group> group = ending_.front().group;
    const size_t member = ending_.front().next++;
    if (ending_.front().next == group->members.size()) ending_.pop_front();
    EndIfDone(*group, &group->members[member]);
  }
  if (!ending_.empty()) state_.SchedulePart();
}

std::vector<LayerLoader::Piece> LayerLoader::Fill(Group* group, CopyBatch* batch) {
  std::vector<Piece> pieces;
  const uint64_t layer_bytes = group->layer_bytes;
  // Blocks that fall out count as pieces, too: looking at them takes time.
  for (size_t looked_at = 0; looked_at < kCopyBatchPieces; ++looked_at) {
    if (group->AllStarted() || batch->full()) break;
    if (group->layer == 0 && group->member + kHeadersAhead < group->members.size()) {
      FetchHostHeader(state_, state_[group->members[group->member + kHeadersAhead].entry]);
    }
    Member& member = group->members[group->member];
    if (Valid(*group, &member)) {
      (void)batch->Add(group->pool, member.entry, group->layer * layer_bytes,
                       LayersAtOnce(*group) * layer_bytes);
      pieces.push_back({group->member, group->layer});
      if (!std::exchange(member.begun, true)) {
        state_.trace.Begin(TraceKind::kCopyUp, member.entry);
      }
      ++member.pieces_in_flight;
      ++group->pieces_left[group->layer];
    } else {
      group->broken = true;
      EndIfDone(*group, &member);
    }
    if (++group->member < group->members.size()) continue;
    group->member = 0;
    const bool first = group->layer == 0;
    const uint32_t layers = LayersAtOnce(*group);
    queued_bytes_[LoadRates::SlotOf(group->device)] -= layers * layer_bytes * group->members.size();
    group->layer += layers;
    // The client waits for the first layer: it goes alone, the others as they fit.
    if (first) break;
  }
  return pieces;
}

uint32_t LayerLoader::LayersAtOnce(const Group& group) const {
  if (group.layer == 0) return 1;
  const uint64_t wanted =
      (state_.options.layer_piece_bytes + group.layer_bytes - 1) / group.layer_bytes;
  return static_cast<uint32_t>(std::min<uint64_t>(wanted, group.layers - group.layer));
}

// A block that no session references any more need not be copied: the client has released it or is
// dead. The header is compared with the first layer only; the pin keeps the slot this block's until
// the last one.
bool LayerLoader::Valid(const Group& group, Member* member) {
  if (member->failure != MissReason::kNone) return false;
  const BlockEntry& entry = state_[member->entry];
  if (group.pool->blocks[state_.blocks.BlockIn(*group.pool, entry)].references() == 0) {
    member->failure = MissReason::kCancelled;
  } else if (group.layer == 0 && !HostSlotIsOf(state_, entry)) {
    member->failure = MissReason::kIdentityMismatch;
  }
  return member->failure == MissReason::kNone;
}

// Requests may end in another order than they were started in: a layer is here only when all pieces
// of it, and of those before it, are. A broken group reports no further layer.
void LayerLoader::OnCopied(Group* group, const std::vector<Piece>& pieces, const Status& status) {
  for (const Piece& piece : pieces) {
    Member& member = group->members[piece.member];
    --member.pieces_in_flight;
    --group->pieces_left[piece.layer];
    if (!status) member.failure = MissReason::kCopyFailed;
  }
  if (!status) group->broken = true;
  const uint32_t before = group->layers_here;
  while (group->layers_here < group->layer && group->pieces_left[group->layers_here] == 0) {
    ++group->layers_here;
  }
  if (group->count && !group->broken && group->layers_here > before) {
    group->count->Arrived(group->layers_here);
  }
  for (const Piece& piece : pieces) EndIfDone(*group, &group->members[piece.member]);
}

void LayerLoader::EndIfDone(const Group& group, Member* member) {
  if (member->ended || member->pieces_in_flight > 0) return;
  const bool failed = member->failure != MissReason::kNone;
  if (!failed && !group.AllStarted()) return;
  member->ended = true;
  if (member->begun) state_.trace.End(TraceKind::kCopyUp, member->entry, failed);
  member->pin.Release();
  const BlockEnd end{.move = BlockMove::kInLayers,
                     .block = state_.blocks.directory.RefOf(member->entry),
                     .pool = group.pool,
                     .reason = member->failure};
  listener_.OnEnded(std::span(&end, 1));
}

}  // namespace kvtier
