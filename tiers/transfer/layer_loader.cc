// SPDX-License-Identifier: Apache-2.0
#include "tiers/transfer/layer_loader.h"

#include <utility>

#include "base/result.h"
#include "tiers/transfer/copy_batch.h"
#include "tiers/transfer/host_source.h"

namespace kvtier {
namespace {

// The first request is smaller, so that copying begins while the other blocks are looked at.
constexpr uint64_t kFirstBatchBytes = 1 * kMiB;

}  // namespace

LayerLoader::LayerLoader(CacheState* state, LoadTable* loads, OnArrived on_arrived,
                         OnFailed on_failed)
    : state_(*state),
      loads_(*loads),
      on_arrived_(std::move(on_arrived)),
      on_failed_(std::move(on_failed)) {}

void LayerLoader::Add(LoadId load, CachePool* pool, const std::vector<EntryIndex>& entries,
                      uint32_t layers) {
  KVT_CHECK(!entries.empty() && layers > 0 && pool->block_bytes % layers == 0);
  const auto group = std::make_shared<Group>();
  group->load = load;
  group->pool = pool;
  group->layers = layers;
  group->pieces_left.assign(layers, 0);
  for (const EntryIndex entry : entries) group->members.push_back({.entry = entry});
  groups_.push_back(group);
}

uint64_t LayerLoader::queued() const {
  uint64_t blocks = 0;
  for (const auto& group : groups_) blocks += group->members.size();
  return blocks;
}

bool LayerLoader::StartOne() {
  if (groups_.empty()) return false;
  const auto batch = std::make_shared<Batch>();
  batch->group = groups_.front();
  Group& group = *batch->group;
  CopyRequest request;
  request.pool = group.pool->memory.get();
  request.direction = CopyDirection::kHostToPool;
  request.priority = CopyPriority::kDemand;
  Fill(batch, &request);
  if (group.AllStarted()) groups_.pop_front();
  if (!batch->pieces.empty()) {
    if (!group.broken) request.counted = loads_.LayersQueued(group.load, group.layer);
    bytes_in_flight_ += batch->bytes;
    pieces_in_flight_ += batch->pieces.size();
    state_.stats.Lane(CopyLane::kHostToPool).Begin(state_.NowMs());
    request.done = [this, batch](const Status& status) { OnCopied(*batch, status); };
    state_.DeviceOf(*group.pool).Copy(std::move(request));
  }
  // Those that fell out, and those that had all their pieces in earlier requests.
  if (group.AllStarted()) {
    for (Member& member : group.members) EndIfDone(group, &member);
  }
  return true;
}

void LayerLoader::Fill(const std::shared_ptr<Batch>& batch, CopyRequest* request) {
  Group& group = *batch->group;
  const uint64_t slice_bytes = group.slice_bytes();
  const bool first = group.layer == 0 && group.member == 0;
  const uint64_t most_bytes = first ? kFirstBatchBytes : kCopyBatchBytes;
  // Blocks that fall out count as pieces, too: looking at them takes time.
  for (size_t looked_at = 0; looked_at < kCopyBatchPieces; ++looked_at) {
    if (group.AllStarted() || batch->bytes >= most_bytes) return;
    if (group.layer == 0 && group.member + kHeadersAhead < group.members.size()) {
      FetchHostHeader(state_, state_[group.members[group.member + kHeadersAhead].entry]);
    }
    Member& member = group.members[group.member];
    if (Sound(group, &member)) {
      const BlockEntry& entry = state_[member.entry];
      const uint64_t offset = group.layer * slice_bytes;
      request->copies.push_back({group.pool->OffsetOf(state_.BlockIn(*group.pool, entry)) + offset,
                                 state_.HostBytes(entry).data() + kSlotHeaderBytes + offset,
                                 slice_bytes});
      batch->pieces.push_back({group.member, group.layer});
      batch->bytes += slice_bytes;
      if (!std::exchange(member.begun, true)) {
        state_.trace.Begin(TraceKind::kCopyUp, member.entry);
      }
      ++member.pieces_in_flight;
      ++group.pieces_left[group.layer];
    } else {
      group.broken = true;
      EndIfDone(group, &member);
    }
    if (++group.member < group.members.size()) continue;
    group.member = 0;
    ++group.layer;
    // The first layer is what somebody waits for: it goes alone, the others as they fit.
    if (group.layer == 1) return;
  }
}

bool LayerLoader::Sound(const Group& group, Member* member) {
  if (member->failure != MissReason::kNone) return false;
  const BlockEntry& entry = state_[member->entry];
  if (group.pool->blocks[state_.BlockIn(*group.pool, entry)].references == 0) {
    member->failure = MissReason::kCancelled;
  } else if (group.layer == 0 && !HostSlotIsOf(state_, entry)) {
    member->failure = MissReason::kIdentityMismatch;
  }
  return member->failure == MissReason::kNone;
}

void LayerLoader::OnCopied(const Batch& batch, const Status& status) {
  Group& group = *batch.group;
  state_.SchedulePump();
  bytes_in_flight_ -= batch.bytes;
  pieces_in_flight_ -= batch.pieces.size();
  state_.stats.Lane(CopyLane::kHostToPool).End(state_.NowMs());
  for (const Piece& piece : batch.pieces) {
    Member& member = group.members[piece.member];
    --member.pieces_in_flight;
    --group.pieces_left[piece.layer];
    if (!status) member.failure = MissReason::kCopyFailed;
  }
  if (!status) group.broken = true;
  const uint32_t before = group.layers_here;
  while (group.layers_here < group.layer && group.pieces_left[group.layers_here] == 0) {
    ++group.layers_here;
  }
  if (!group.broken && group.layers_here > before) {
    loads_.LayersArrived(group.load, group.layers_here);
  }
  for (const Piece& piece : batch.pieces) EndIfDone(group, &group.members[piece.member]);
}

void LayerLoader::EndIfDone(const Group& group, Member* member) {
  if (member->ended || member->pieces_in_flight > 0) return;
  const bool failed = member->failure != MissReason::kNone;
  if (!failed && !group.AllStarted()) return;
  member->ended = true;
  if (member->begun) state_.trace.End(TraceKind::kCopyUp, member->entry, failed);
  state_.Apply(member->entry, BlockEvent::kUnpinHost);
  if (failed) {
    on_failed_(group.pool, member->entry, member->failure);
  } else {
    on_arrived_(group.pool, member->entry);
  }
}

}  // namespace kvtier
