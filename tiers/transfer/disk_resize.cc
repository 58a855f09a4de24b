// SPDX-License-Identifier: Apache-2.0
#include "tiers/transfer/disk_resize.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/units.h"

namespace kvtier {
namespace {

// One part: to choose it takes the loop some 100 us.
constexpr size_t kBlocksAtOnce = 256;
// Blocks on their way from host to their new slots: space in host waits for these, too.
constexpr uint64_t kMostMovingBytes = 64 * kMiB;

}  // namespace

void DiskResize::Begin(const DriveSlabs& wanted) {
  if (state_.env.drive_sizer == nullptr) return;
  for (uint32_t drive = 0; drive < kMaxDrives; ++drive) {
    if (in_files_[drive] > 0) wanted_[drive] = wanted[drive];
  }
  if (wanted_ == in_files_ && wanted_ == staying_) return;
  sized_ = false;
  GoOn();
}

// Files that are being resized are brought to their end before other sizes are taken up.
void DiskResize::Pump() {
  if (sizing_ || !std::exchange(due_, false)) return;
  ForgetFailedDrives();
  if (staying_ != wanted_) {
    staying_ = wanted_;
    sized_ = false;
    Apply();
  }
  if (const std::optional<DiskLocation> slab = disk_.LastLeaving()) return Empty(*slab);
  if (in_files_ != staying_ && !sized_) ResizeFiles();
}

void DiskResize::ForgetFailedDrives() {
  for (uint32_t drive = 0; drive < kMaxDrives; ++drive) {
    if ((disk_.health().failed() >> drive & 1) == 0) continue;
    wanted_[drive] = staying_[drive] = in_files_[drive];
  }
}

void DiskResize::Apply() {
  DriveSlabs staying = staying_;
  for (uint32_t drive = 0; drive < kMaxDrives; ++drive) {
    staying[drive] = std::min(staying[drive], in_files_[drive]);
  }
  disk_.Resize(staying, in_files_);
}

// While nothing is written, nothing is given up for it: a pause ends, and the index, which has to
// forget the blocks, may be the one that refuses.
void DiskResize::Empty(DiskLocation slab) {
  if (disk_.degraded()) return;
  std::vector<EntryIndex> owners;
  disk_.allocator().ForEachInSlab(slab.offset, [&](uint64_t, EntryIndex owner) {
    if (owner != kNoEntry && state_[owner].AtRestOnDisk()) owners.push_back(owner);
  });
  if (owners.empty()) return;
  const size_t moving = CountMoving();
  const std::optional<uint64_t> room = disk_.RoomFor(owners.front(), owners.size() + moving);
  if (!room) return GoOn();
  // Where there is not room for all, pinned blocks get it.
  std::ranges::stable_partition(owners, [&](EntryIndex owner) { return state_[owner].pinned(); });
  const uint64_t slot_bytes = state_.blocks.NamespaceOf(state_[owners.front()]).slot_bytes;
  const uint64_t most = std::max<uint64_t>(kMostMovingBytes / slot_bytes, 1);
  uint64_t left = *room - std::min<uint64_t>(*room, moving);
  size_t steps = 0;
  for (const EntryIndex index : owners) {
    if (moving_.size() >= most) return;
    const Step step = Move(index, left > 0);
    if (step == Step::kLater) return;
    if (step == Step::kMoves || step == Step::kComing) --left;
    const bool took_a_step = step == Step::kMoves || step == Step::kLeft;
    if (took_a_step && ++steps == kBlocksAtOnce) return GoOn();
  }
}

size_t DiskResize::CountMoving() {
  std::erase_if(moving_, [this](EntryRef block) {
    const EntryIndex index = state_.blocks.directory.Resolve(block);
    return index == kNoEntry || !(state_[index].write_queued() || state_[index].writing());
  });
  return moving_.size();
}

DiskResize::Step DiskResize::Move(EntryIndex index, bool room) {
  const BlockEntry& entry = state_[index];
  if (room && entry.BelongsOnDisk()) {
    if (const Step step = MoveThroughHost(index); step != Step::kLeft) return step;
  }
  if (entry.pinned()) return Step::kStays;
  const bool above = entry.in_host() || entry.in_pool();
  disk_.Drop(index, above ? DropReason::kCopyAbove : DropReason::kSlabReclaimed);
  return Step::kLeft;
}

// The block keeps its slot until its bytes are in host.
DiskResize::Step DiskResize::MoveThroughHost(EntryIndex index) {
  const BlockEntry& entry = state_[index];
  if (entry.in_host()) {
    disk_.BeginMove(index);
    to_disk_.SourceReady(index);
    moving_.push_back(state_.blocks.directory.RefOf(index));
    return Step::kMoves;
  }
  if (entry.expected_in_host() || entry.has_host_slot()) return Step::kComing;
  if (entry.in_pool()) {
    to_host_.Want(index);
    return entry.offload_queued() ? Step::kMoves : Step::kLeft;
  }
  switch (loader_.ReadToHost(index)) {
    case Loader::HostRead::kBegun:
      return Step::kMoves;
    case Loader::HostRead::kLater:
      return Step::kLater;
    default:
      return Step::kLeft;
  }
}

void DiskResize::ResizeFiles() {
  sizing_ = sized_ = true;
  state_.env.drive_sizer->Resize(staying_, gate_.WhileOpen([this](const DriveSlabs& got) {
    sizing_ = false;
    in_files_ = got;
    Apply();
    GoOn();
  }));
}

}  // namespace kvtier
