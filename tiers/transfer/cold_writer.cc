// SPDX-License-Identifier: Apache-2.0
#include "tiers/transfer/cold_writer.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <utility>

#include "tiers/cold/cold_object.h"
#include "tiers/state/cold_copies.h"

namespace kvtier {
namespace {

// Nothing waits for a write, but a store that needs longer is not keeping up.
constexpr int64_t kWriteTimeoutMs = 5'000;
// How far before its eviction from disk a block is written: the blocks that the store may be given
// in this time, but no more than this share of the disk, so that evictions find blocks that are not
// being read.
constexpr int64_t kAheadS = 2;
constexpr uint64_t kAheadShare = 16;
// Copies in a sample: a store without any of them has lost all.
constexpr uint64_t kSampledCopies = 64;
// A sample leaves out so many new copies at most; others make an emptied store seem to have some.
constexpr size_t kMostWritten = 1 << 16;
// A store that fails now and then is not to be asked with each tick.
constexpr int64_t kSamplePauseMs = 10'000;

}  // namespace

void ColdWriter::Tick() {
  const bool away = !state_.env.cold->TakesWrites();
  choice_.Tick(away);
  deletions_.Tick();
  if (away) {
    was_away_ = true;
    return;
  }
  const uint64_t lost_calls = state_.env.cold->lost_calls();
  was_away_ |= std::exchange(lost_calls_, lost_calls) != lost_calls;
  if (!was_away_ && !sample_) written_.clear();
  const int64_t now_ms = state_.clock.NowMs();
  if (was_away_ && !sample_ && now_ms >= next_sample_ms_) {
    was_away_ = false;
    next_sample_ms_ = now_ms + kSamplePauseMs;
    sample_ = {.part_rows = state_.blocks.directory.end() / kSampledCopies + 1};
  }
  GatherSample();
  ForgetSomeCopies();
  WriteLeaving();
  WriteIdle();
  BringDown();
}

// The first row of each part, then the second: copies from all over, and of few all.
void ColdWriter::GatherSample() {
  if (!sample_ || sample_->is_asked_for) return;
  const Directory& directory = state_.blocks.directory;
  const uint64_t end = kSampledCopies * sample_->part_rows;
  uint64_t& next = sample_->next;
  for (uint64_t left = state_.options.drain_part_rows; next < end; ++next, --left) {
    if (sample_->keys.size() == kSampledCopies) break;
    if (left == 0) return;
    const uint64_t row = next % kSampledCopies * sample_->part_rows + next / kSampledCopies;
    if (row >= directory.end()) continue;
    const EntryIndex index(static_cast<uint32_t>(row));
    if (!directory.Live(index) || !ColdCopyLasts(state_, index)) continue;
    const BlockKey key{directory[index].namespace_id, directory[index].hash};
    if (!written_.contains(key)) sample_->keys.push_back(key);
  }
  AskForSample();
}

// Objects of one tenant and model in each question, as in all. A store that evicts has some. One
// that was emptied may have new ones.
void ColdWriter::AskForSample() {
  std::map<NamespaceId, std::vector<std::string>> names;
  for (const BlockKey& key : sample_->keys) {
    if (written_.contains(key)) continue;
    names[key.namespace_id].push_back(
        ColdName(state_.blocks.namespaces[key.namespace_id.value].identity, key.hash));
  }
  struct Answers {
    size_t left;
    bool failed = false;
    bool has_some = false;
  };
  const auto all = std::make_shared<Answers>(names.size());
  const auto on_answer = [this, all](const Result<std::vector<bool>>& answer) {
    all->failed |= !answer;
    all->has_some |= answer && std::ranges::find(*answer, true) != answer->end();
    if (--all->left > 0) return;
    const Sample sample = *std::exchange(sample_, std::nullopt);
    if (!all->has_some && !all->failed) next_forgotten_row_ = 0;
    if (all->has_some || !all->failed) return;
    was_away_ = true;
    written_.insert(sample.written.begin(), sample.written.end());
  };
  if (names.empty()) return sample_.reset();
  sample_->is_asked_for = true;
  sample_->written.swap(written_);
  for (auto& [whose, list] : names) {
    state_.env.cold->Exists(std::move(list), ColdAsk::kEach, kWriteTimeoutMs,
                            gate_.WhileOpen(on_answer));
  }
}

void ColdWriter::ForgetSomeCopies() {
  const Directory& directory = state_.blocks.directory;
  uint64_t left = state_.options.drain_part_rows;
  for (; next_forgotten_row_ < directory.end() && left > 0; ++next_forgotten_row_, --left) {
    const EntryIndex index(static_cast<uint32_t>(next_forgotten_row_));
    if (directory.Live(index) && directory[index].cold_copy()) ForgetColdCopy(&state_, index);
  }
  if (left > 0) next_forgotten_row_ = UINT64_MAX;
}

void ColdWriter::WriteLeaving() {
  if (!choice_.MayStart()) return;
  const uint64_t disk_bytes = disk_.allocator().slabs() * disk_.allocator().slab_bytes();
  const uint64_t ahead_bytes =
      std::min(state_.options.cold_write_bytes_per_s * kAheadS, disk_bytes / kAheadShare);
  disk_.ForEachLeavingSoon(ahead_bytes, [this](EntryIndex index) {
    if (choice_.MayStart() && choice_.ChoiceFor(index, true) == Choice::kWrite) Start(index);
  });
}

void ColdWriter::WriteIdle() {
  uint64_t left =
      std::min<uint64_t>(state_.orders.cold_line.size(), state_.options.close_part_blocks);
  EntryIndex next = state_.orders.cold_line.coldest();
  for (; left > 0 && next != kNoEntry && choice_.MayStart(); --left) {
    const EntryIndex index = std::exchange(next, state_.orders.cold_line.Hotter(next));
    const Choice choice = choice_.ChoiceFor(index, false);
    // BringDown counts them where they stand.
    if (choice == Choice::kComeDown || IsComing(index)) continue;
    state_.orders.cold_line.Remove(index);
    switch (choice) {
      case Choice::kWrite:
        Start(index);
        break;
      case Choice::kNotYet:
        state_.orders.cold_line.PushHot(index);
        break;
      default:
        break;
    }
  }
}

bool ColdWriter::IsComing(EntryIndex index) const {
  return !state_.has_disk() && state_[index].expected_in_host();
}

// No more than a second's worth waits in host or for it, which has better uses for its slots.
void ColdWriter::BringDown() {
  if (state_.has_disk()) return;
  const EntryList& line = state_.orders.cold_line;
  uint64_t bytes = 0;
  EntryIndex index = line.coldest();
  for (size_t left = state_.options.close_part_blocks;
       left > 0 && index != kNoEntry && bytes < state_.options.cold_write_bytes_per_s; --left) {
    const Choice choice = choice_.ChoiceFor(index, false);
    if (choice == Choice::kComeDown) to_host_.Want(index);
    if (choice == Choice::kComeDown || choice == Choice::kWrite || IsComing(index)) {
      bytes += ColdObjectBytes(state_.blocks.NamespaceOf(state_[index]).identity.block_bytes);
    }
    index = line.Hotter(index);
  }
}

// An object that another host has written of a young block is about as young. An older block's may
// end soon, and this host would not hear of it.
void ColdWriter::Start(EntryIndex index) {
  const BlockEntry& entry = state_[index];
  const uint64_t bytes = ColdObjectBytes(state_.blocks.NamespaceOf(entry).identity.block_bytes);
  const auto write = writes_.insert(writes_.end(), Write{});
  write->entry = state_.blocks.directory.RefOf(index);
  write->key = {entry.namespace_id, entry.hash};
  choice_.Begin(write->key, bytes);
  write->placement = {.created_s = state_.clock.ToWallS(entry.created_s),
                      .last_use_s = state_.clock.ToWallS(entry.last_use_s)};
  const int64_t now_ms = state_.clock.AgeMs();
  const int64_t age_ms = now_ms - int64_t{entry.created_s} * 1000;
  write->until_ms = state_.ExpiryMs(entry);
  write->how = {.ttl_s = (write->until_ms - now_ms) / 1000,
                .replaces = entry.cold_copy() || age_ms > MostColdLagMs(state_, entry)};
  write->object = std::make_shared<ColdObject>(bytes);
  entry.in_host() ? ReadFromHost(write) : ReadFromDisk(write);
}

// The header is copied here, because a write to disk may change it meanwhile; the payload stays as
// it is while the pin holds.
void ColdWriter::ReadFromHost(Writes::iterator write) {
  const BlockEntry& entry = state_[write->entry.row];
  write->pin = HostPin(&state_, write->entry.row);
  const std::span<const std::byte> slot =
      state_.tables.HostBytes(entry).first(write->object->size());
  const std::span<std::byte> object = *write->object;
  std::ranges::copy(slot.first<kSlotHeaderBytes>(), object.begin());
  PlaceSlotHeader(write->placement, object.first<kSlotHeaderBytes>());
  state_.env.executor->Run(
      [slot, object = write->object] {
        std::ranges::copy(slot.subspan(kSlotHeaderBytes), object->begin() + kSlotHeaderBytes);
      },
      gate_.WhileOpen([this, write] {
        write->pin.Release();
        state_.SchedulePump();
        Put(write);
      }));
}

// As a verification reads it: beside the normal traffic, and without taking space in host.
void ColdWriter::ReadFromDisk(Writes::iterator write) {
  const BlockEntry& entry = state_[write->entry.row];
  write->expected = state_.tables.ExpectationOf(entry);
  state_.Apply(write->entry.row, BlockEvent::kBeginVerify);
  ++disk_reads_;
  const auto check = [write] {
    const std::span<std::byte> slot = write->buffer.span();
    write->verdict = CheckDiskSlot(write->expected, slot);
    if (write->verdict != SlotVerdict::kGood) return;
    PlaceSlotHeader(write->placement, slot.first<kSlotHeaderBytes>());
    std::ranges::copy(slot.first(write->object->size()), write->object->begin());
  };
  state_.env.executor->Run(
      [write, bytes = state_.blocks.NamespaceOf(entry).slot_bytes] {
        write->buffer = AlignedBuffer(bytes);
      },
      [this, write, check] {
        disk_.ReadAndCheck(write->expected.location, write->buffer.span(), check,
                           [this, write](const Status& status) { OnDiskRead(write, status); });
      });
}

void ColdWriter::OnDiskRead(Writes::iterator write, const Status& status) {
  --disk_reads_;
  state_.SchedulePump();
  const EntryIndex index = write->entry.row;
  const bool same_slot = state_[index].disk == write->expected.location;
  state_.Apply(index, BlockEvent::kEndVerify);
  write->buffer = {};
  if (status && write->verdict == SlotVerdict::kGood) {
    if (same_slot) disk_.MarkVerified(index);
    return Put(write);
  }
  state_.incidents.ReportRead(write->expected.location, index, status, write->verdict);
  if (status) {
    DropUseless(&state_, &disk_, index, write->expected.location, DropReason::kCorrupt,
                IndexCommitter::Slot::kKeep);
  } else {
    ++state_.stats.disk_read_errors;
    state_.ForgetIfGone(index);
  }
  End(write, {});
}

void ColdWriter::Put(Writes::iterator write) {
  const NamespaceIdentity& identity =
      state_.blocks.namespaces[write->key.namespace_id.value].identity;
  state_.env.cold->Put(
      ColdName(identity, write->key.hash), write->object, write->how, kWriteTimeoutMs,
      gate_.WhileOpen([this, write](const Status& status) { OnPut(write, status); }));
}

bool ColdWriter::IsWriting(std::string_view tenant) const {
  return std::ranges::any_of(writes_, [&](const Write& write) {
    return state_.blocks.namespaces[write.key.namespace_id.value].identity.tenant == tenant;
  });
}

void ColdWriter::End(Writes::iterator write, const Status& status) {
  const BlockKey key = write->key;
  choice_.End(key, write->object->size());
  writes_.erase(write);
  deletions_.NoteWritten(key, status);
}

// The object is the block's by its key, whether this host still has the block or has it anew. Host
// has better uses for the slot of one that a pool has.
void ColdWriter::OnPut(Writes::iterator write, const Status& status) {
  ColdStats& stats = state_.stats.cold;
  const uint64_t bytes = write->object->size();
  const BlockKey key = write->key;
  const int64_t until_ms = write->until_ms;
  const EntryIndex index = state_.blocks.Find(key);
  const bool is_forgotten = state_.erasing.objects.contains(key);
  choice_.NoteTaken(key, status.has_value());
  const bool was_lost = was_away_ || sample_ || state_.env.cold->lost_calls() != lost_calls_;
  if (status && was_lost && written_.size() < kMostWritten) written_.insert(key);
  End(write, status);
  if (status) {
    ++stats.write_blocks;
    stats.write_bytes += bytes;
    if (index == kNoEntry) return;
    if (!is_forgotten) NoteColdCopy(&state_, index, until_ms);
    const BlockEntry& entry = state_[index];
    if (state_.blocks.ReadyPool(entry) != nullptr)
      state_.orders.GiveUpFirst(state_.blocks.TenantOf(entry), index, entry);
    return;
  }
  ++stats.write_errors;
  state_.incidents.ReportCold(state_.blocks.namespaces[key.namespace_id.value].identity,
                              status.error());
  if (index == kNoEntry) return stats.CountLoss(ColdLoss::kFailed);
  state_.orders.EnterColdLine(index, state_[index]);
}

}  // namespace kvtier
