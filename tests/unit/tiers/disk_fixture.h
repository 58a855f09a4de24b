// SPDX-License-Identifier: Apache-2.0
// A small disk tier of two drives in temporary directories, written header by header as a daemon
// would, and damaged as a disk might.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/executor.h"
#include "tests/fakes/derived_bytes.h"
#include "tests/fakes/temporary_directory.h"
#include "tiers/index/index_start.h"
#include "tiers/storage/disk_files.h"
#include "tiers/storage/slot_header.h"

namespace kvtier {

// A block on disk, and the record that the index should have of it.
struct DiskBlock {
  SlotHeader header;
  IndexRecord record;
};

class DiskTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kPayloadBytes = 8 << 10;
  static constexpr uint64_t kSlotBytes = 12 << 10;
  static constexpr uint64_t kSlotsPerSlab = 8;
  static constexpr uint64_t kSlabBytes = kSlotsPerSlab * kSlotBytes + (4 << 10);
  static constexpr uint64_t kSlabs = 8;
  static constexpr uint32_t kFiles = 2;
  static constexpr uint32_t kNowS = 1'748'736'000;

  DiskTest();

  // As a daemon does at start; a later start needs the earlier one's files closed.
  DiskFiles OpenFiles();
  // The time and retention for RebuildIndex.
  [[nodiscard]] RebuildOptions Options() const { return {.now_ms = int64_t{kNowS} * 1000}; }
  [[nodiscard]] std::filesystem::path FilePath(uint32_t file) const;

  // Cuts a slab into slots of kSlotBytes.
  void WriteSlabHeader(uint64_t slab) { WriteSlabHeader(slab, {.slab = Number(slab)}); }
  // Fields that `header` leaves open are filled in.
  void WriteSlabHeader(uint64_t slab, SlabHeader header);

  // A header for block `number` of tenant "uid:0" in that slot.
  [[nodiscard]] SlotHeader Header(uint64_t slab, uint64_t slot, uint64_t number) const;
  // Writes header and payload at `location`, wherever the header says it lies.
  void WriteBlockAt(DiskLocation location, const SlotHeader& header);
  // Both, where they belong. The record is of space 0.
  DiskBlock WriteBlock(uint64_t slab, uint64_t slot, uint64_t number);
  // Cuts every slab and fills the first `blocks` slots with blocks 0, 1, ...
  std::vector<DiskBlock> Fill(uint64_t blocks);

  [[nodiscard]] DiskLocation Slot(uint64_t slab, uint64_t slot) const {
    return geometry_.SlotStart(Number(slab), slot, kSlotBytes);
  }
  // Slabs are named in turn round the drives: 0 and 1 are the first of each.
  [[nodiscard]] uint64_t Number(uint64_t slab) const { return *geometry_.SlabInTurn(slab); }
  [[nodiscard]] DiskLocation SlabStart(uint64_t slab) const {
    return geometry_.SlabStart(Number(slab));
  }
  // Flips a bit of the byte `offset` bytes after `location`.
  void Flip(DiskLocation location, uint64_t offset);
  void WriteBytes(DiskLocation location, std::span<const std::byte> bytes);

  // The place of the index, and the drives, as a start finds them.
  [[nodiscard]] IndexPlace Place() const;
  // An index of exactly these blocks for the next start.
  void WriteIndex(const std::vector<DiskBlock>& blocks);
  [[nodiscard]] static IndexSnapshot SnapshotOf(const std::vector<DiskBlock>& blocks);

  TestDirectory temporary_;
  const std::vector<std::filesystem::path> directories_ = {temporary_.path() / "disk",
                                                           temporary_.path() / "second"};
  const std::filesystem::path directory_ = directories_[0];  // the index is there
  BlockingLoop loop_;
  DiskGeometry geometry_;
  Digest128 set_uuid_;
  uint64_t epoch_ = 0;  // of the last start
};

// Equal but for the numbering of spaces, the order of records and the budget.
void ExpectSameContents(const IndexSnapshot& actual, const IndexSnapshot& expected);

}  // namespace kvtier
