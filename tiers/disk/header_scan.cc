#include "tiers/disk/header_scan.h"

#include <algorithm>
#include <vector>

#include "base/aligned_buffer.h"

namespace kvtier {
namespace {

static_assert(kChunkHeaderBytes == kSlotHeaderBytes);

// Read together: enough to keep any disk busy, 8 MiB of memory.
constexpr size_t kBatchHeaders = 2048;

// What a failed decoding says of the place.
HeaderState StateOf(const Error& error) {
  return error.reason == "bad_magic" ? HeaderState::kEmpty : HeaderState::kDamaged;
}

class Scan {
 public:
  Scan(const DiskGeometry& geometry, const DiskReadFunction& read, HeaderVisitor* visitor)
      : geometry_(geometry), read_(read), visitor_(visitor) {
    reads_.reserve(kBatchHeaders);
  }

  // Up to one batch of chunks from `first` on, then their slots.
  ScanProgress Step(uint64_t first) {
    const uint64_t end = std::min(geometry_.chunks, first + kBatchHeaders);
    for (uint64_t chunk = first; chunk < end; ++chunk) Add(geometry_.ChunkStart(chunk));
    read_(reads_);
    std::vector<ScannedChunk> chunks;
    chunks.reserve(end - first);
    for (uint64_t chunk = first; chunk < end; ++chunk) {
      chunks.push_back(DecodeChunk(chunk, reads_[chunk - first]));
      visitor_->OnChunk(chunks.back());
    }
    reads_.clear();
    for (const ScannedChunk& chunk : chunks) {
      if (chunk.state == HeaderState::kValid) ScanSlots(chunk);
    }
    FinishSlots();
    return {.chunks_done = end, .chunks = geometry_.chunks, .slots_done = slots_done_};
  }

 private:
  void Add(DiskLocation location) {
    const size_t position = reads_.size() * kSlotHeaderBytes;
    reads_.push_back({.file = geometry_.FileOf(location),
                      .offset = geometry_.OffsetInFile(location),
                      .into = buffer_.span().subspan(position, kSlotHeaderBytes)});
  }

  [[nodiscard]] ScannedChunk DecodeChunk(uint64_t chunk, const DiskRead& read) const {
    ScannedChunk scanned{.chunk = chunk};
    if (!read.status) {
      scanned.state = HeaderState::kUnreadable;
      return scanned;
    }
    Result<ChunkHeader> header = DecodeChunkHeader(read.into.first<kChunkHeaderBytes>());
    if (!header) {
      scanned.state = StateOf(header.error());
      return scanned;
    }
    scanned.header = *std::move(header);
    scanned.state = HeaderState::kValid;
    if (scanned.header.chunk != chunk) scanned.state = HeaderState::kMisplaced;
    if (scanned.header.slot_bytes > geometry_.chunk_bytes - kChunkHeaderBytes) {
      scanned.state = HeaderState::kMisfit;
    }
    return scanned;
  }

  void ScanSlots(const ScannedChunk& chunk) {
    const uint64_t slot_bytes = chunk.header.slot_bytes;
    const uint64_t slots = geometry_.SlotsPerChunk(slot_bytes);
    for (uint64_t slot = 0; slot < slots; ++slot) {
      if (reads_.size() == kBatchHeaders) FinishSlots();
      const DiskLocation location = geometry_.SlotStart(chunk.chunk, slot, slot_bytes);
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
    Result<SlotHeader> header = DecodeSlotHeader(read.into.first<kSlotHeaderBytes>());
    if (!header) {
      slot->state = StateOf(header.error());
      return;
    }
    slot->header = *std::move(header);
    const uint64_t bytes = slot->header.payload_bytes;
    slot->state = HeaderState::kValid;
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
  uint64_t slots_done_ = 0;
};

}  // namespace

std::string_view HeaderStateName(HeaderState state) {
  switch (state) {
    case HeaderState::kValid:
      return "valid";
    case HeaderState::kEmpty:
      return "empty";
    case HeaderState::kUnreadable:
      return "unreadable";
    case HeaderState::kDamaged:
      return "damaged";
    case HeaderState::kMisplaced:
      return "misplaced";
    case HeaderState::kMisfit:
      return "misfit";
  }
  return "unknown";
}

void ScanHeaders(const DiskGeometry& geometry, const DiskReadFunction& read, HeaderVisitor* visitor,
                 const std::function<void(const ScanProgress&)>& on_progress) {
  Scan scan(geometry, read, visitor);
  for (uint64_t chunk = 0; chunk < geometry.chunks; chunk += kBatchHeaders) {
    const ScanProgress progress = scan.Step(chunk);
    if (on_progress) on_progress(progress);
  }
}

}  // namespace kvtier
