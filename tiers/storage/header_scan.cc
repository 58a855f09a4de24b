// SPDX-License-Identifier: Apache-2.0
#include "tiers/storage/header_scan.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "base/bytes.h"
#include "tiers/storage/slot_header.h"

namespace kvtier {
namespace {

static_assert(kSlabHeaderBytes == kSlotHeaderBytes);

// Read together: enough to keep any disk busy, 8 MiB of memory.
constexpr size_t kBatchHeaders = 2048;

// Without the magic number nothing was ever written at the place (or it was voided); all other
// errors mean that a header was there and is damaged.
HeaderState StateOf(const Error& error) {
  return error.reason == "bad_magic" ? HeaderState::kEmpty : HeaderState::kDamaged;
}

// Reads the headers of slabs, and then of the slots that these say they are cut into. A slab whose
// header cannot be trusted is passed over as a whole: without its slot size it is not known where
// slots begin, and payload bytes, which clients choose, must never be taken for headers.
class Scan {
 public:
  Scan(const DiskGeometry& geometry, const DiskReadFunction& read, HeaderVisitor* visitor)
      : geometry_(geometry), read_(read), visitor_(visitor) {
    reads_.reserve(kBatchHeaders);
  }

  // Up to one batch of slabs from the turn `first` on, then their slots.
  ScanProgress Step(uint64_t first) {
    const uint64_t end = std::min(geometry_.turns(), first + kBatchHeaders);
    std::vector<uint64_t> numbers;
    numbers.reserve(end - first);
    for (uint64_t turn = first; turn < end; ++turn) {
      const std::optional<uint64_t> slab = geometry_.SlabInTurn(turn);
      if (!slab) continue;
      numbers.push_back(*slab);
      Add(geometry_.SlabStart(*slab));
    }
    read_(reads_);
    std::vector<ScannedSlab> slabs;
    slabs.reserve(numbers.size());
    for (size_t i = 0; i < numbers.size(); ++i) {
      slabs.push_back(DecodeSlab(numbers[i], reads_[i]));
      visitor_->OnSlab(slabs.back());
    }
    slabs_done_ += slabs.size();
    reads_.clear();
    for (const ScannedSlab& slab : slabs) {
      if (slab.state == HeaderState::kValid) ScanSlots(slab);
    }
    FinishSlots();
    return {.slabs_done = slabs_done_, .slabs = geometry_.slabs(), .slots_done = slots_done_};
  }

 private:
  void Add(DiskLocation location) {
    const size_t position = reads_.size() * kSlotHeaderBytes;
    reads_.push_back({.file = geometry_.FileOf(location),
                      .offset = geometry_.OffsetInFile(location),
                      .into = buffer_.span().subspan(position, kSlotHeaderBytes)});
  }

  [[nodiscard]] ScannedSlab DecodeSlab(uint64_t slab, const DiskRead& read) const {
    ScannedSlab scanned{.slab = slab};
    if (!read.status) {
      scanned.state = HeaderState::kUnreadable;
      return scanned;
    }
    Result<SlabHeader> header = DecodeSlabHeader(read.into.first<kSlabHeaderBytes>());
    if (!header) {
      scanned.state = StateOf(header.error());
      return scanned;
    }
    scanned.header = *std::move(header);
    scanned.state = HeaderState::kValid;
    if (scanned.header.slab != slab) scanned.state = HeaderState::kMisplaced;
    // Not one slot of that size fits, which no writer of this set would have written.
    if (scanned.header.slot_bytes > geometry_.slab_bytes - kSlabHeaderBytes) {
      scanned.state = HeaderState::kMisfit;
    }
    return scanned;
  }

  void ScanSlots(const ScannedSlab& slab) {
    const uint64_t slot_bytes = slab.header.slot_bytes;
    const uint64_t slots = geometry_.SlotsPerSlab(slot_bytes);
    for (uint64_t slot = 0; slot < slots; ++slot) {
      if (reads_.size() == kBatchHeaders) FinishSlots();
      const DiskLocation location = geometry_.SlotStart(slab.slab, slot, slot_bytes);
      Add(location);
      slots_.push_back({.location = location, .slot_bytes = slot_bytes});
    }
  }

  void FinishSlots() {
    read_(reads_);
    for (size_t i = 0; i < slots_.size(); ++i) {
      DecodeSlot(reads_[i], &slots_[i]);
      visitor_->OnSlot(slots_[i]);
    }
    slots_done_ += slots_.size();
    slots_.clear();
    reads_.clear();
  }

  static void DecodeSlot(const DiskRead& read, ScannedSlot* slot) {
    if (!read.status) {
      slot->state = HeaderState::kUnreadable;
      return;
    }
    const auto page = read.into.first<kSlotHeaderBytes>();
    const bool encrypted = ClaimsEncryptedSlot(page);
    Result<SlotHeader> header =
        encrypted ? DecodeEncryptedSlotHeader(page) : DecodeSlotHeader(page);
    if (!header) {
      slot->state = StateOf(header.error());
      return;
    }
    slot->header = *std::move(header);
    const uint64_t bytes = slot->header.payload_bytes;
    slot->state = encrypted ? HeaderState::kEncrypted : HeaderState::kValid;
    // A header that names another place is a copy of a slot from elsewhere, or a write that the
    // drive has put in the wrong place: the payload beside it cannot be trusted.
    if (slot->header.address != slot->location) {
      slot->state = HeaderState::kMisplaced;
    } else if (SlotBytes(bytes) != slot->slot_bytes) {
      slot->state = HeaderState::kMisfit;
    }
  }

  const DiskGeometry& geometry_;
  const DiskReadFunction& read_;
  HeaderVisitor* const visitor_;
  AlignedBuffer buffer_{kBatchHeaders * kSlotHeaderBytes};
  std::vector<DiskRead> reads_;
  std::vector<ScannedSlot> slots_;  // one for each of reads_
  uint64_t slabs_done_ = 0;
  uint64_t slots_done_ = 0;
};

}  // namespace

void ScanHeaders(const DiskGeometry& geometry, const DiskReadFunction& read, HeaderVisitor* visitor,
                 const std::function<void(const ScanProgress&)>& on_progress) {
  Scan scan(geometry, read, visitor);
  for (uint64_t turn = 0; turn < geometry.turns(); turn += kBatchHeaders) {
    const ScanProgress progress = scan.Step(turn);
    if (on_progress) on_progress(progress);
  }
}

}  // namespace kvtier
