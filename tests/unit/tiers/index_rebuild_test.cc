// SPDX-License-Identifier: Apache-2.0
// An index made anew from the headers on disk.
#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "tests/unit/tiers/disk_fixture.h"
#include "tiers/index/index_start.h"

namespace kvtier {
namespace {

class IndexRebuildTest : public DiskTest {
 protected:
  RebuiltIndex Rebuild() { return Rebuild(Options()); }

  RebuiltIndex Rebuild(const RebuildOptions& options) {
    auto reader = ParallelReader::Open(directories_, 4);
    EXPECT_TRUE(reader) << reader.error().ToString();
    return RebuildIndex(
        geometry_,
        [&](std::span<DiskRead> reads) {
          reader->Read(reads);
          for (DiskRead& read : reads) {
            if (unreadable_ && read.file == geometry_.FileOf(*unreadable_) &&
                read.offset == geometry_.OffsetInFile(*unreadable_)) {
              read.status = MakeError(ErrorCode::kIoError, "EIO");
            }
          }
        },
        options, [this](const ScanProgress& progress) { progress_ = progress; });
  }

  static uint64_t Rejected(const RebuiltIndex& rebuilt, RebuildReject reject) {
    return rebuilt.rejected[static_cast<size_t>(reject)];
  }

  // The sum over all reasons.
  static uint64_t Rejected(const RebuiltIndex& rebuilt) {
    uint64_t all = 0;
    for (const uint64_t count : rebuilt.rejected) all += count;
    return all;
  }

  std::optional<DiskLocation> unreadable_;
  ScanProgress progress_;
};

TEST_F(IndexRebuildTest, ANewDiskHoldsNothing) {
  const RebuiltIndex rebuilt = Rebuild();
  EXPECT_TRUE(rebuilt.snapshot.records.empty());
  EXPECT_EQ(rebuilt.slabs, kSlabs);
  EXPECT_EQ(progress_.slots_done, 0u);
}

TEST_F(IndexRebuildTest, EqualsTheOriginal) {
  const std::vector<DiskBlock> blocks = Fill(50);
  const RebuiltIndex rebuilt = Rebuild();
  ExpectSameContents(rebuilt.snapshot, SnapshotOf(blocks));
  EXPECT_EQ(Rejected(rebuilt), 0u);
  EXPECT_EQ(progress_.slabs_done, kSlabs);
  EXPECT_EQ(progress_.slots_done, kSlabs * kSlotsPerSlab);
}

TEST_F(IndexRebuildTest, PayloadsFoundByTheirHeaderAloneAreNotCalledVerified) {
  Fill(3);
  for (const IndexRecord& record : Rebuild().snapshot.records) EXPECT_FALSE(record.verified);
}

TEST_F(IndexRebuildTest, TenantsAndModelsGetSpacesOfTheirOwn) {
  Fill(2);
  SlotHeader other_tenant = Header(0, 2, 0);
  other_tenant.tenant = "uid:1";
  WriteBlockAt(other_tenant.address, other_tenant);
  SlotHeader other_model = Header(0, 3, 0);
  other_model.model = TestHash(101, 0);
  WriteBlockAt(other_model.address, other_model);
  const RebuiltIndex rebuilt = Rebuild();
  EXPECT_EQ(rebuilt.snapshot.namespaces.size(), 3u);
  EXPECT_EQ(rebuilt.snapshot.records.size(), 4u);
  EXPECT_EQ(Rejected(rebuilt), 0u);
}

TEST_F(IndexRebuildTest, AFlippedHeaderIsSkippedAndCounted) {
  std::vector<DiskBlock> blocks = Fill(10);
  Flip(blocks[4].header.address, 300);
  blocks.erase(blocks.begin() + 4);
  const RebuiltIndex rebuilt = Rebuild();
  ExpectSameContents(rebuilt.snapshot, SnapshotOf(blocks));
  EXPECT_EQ(Rejected(rebuilt, RebuildReject::kDamaged), 1u);
  EXPECT_EQ(Rejected(rebuilt), 1u);
}

TEST_F(IndexRebuildTest, AnUnreadableHeaderIsSkippedAndCounted) {
  std::vector<DiskBlock> blocks = Fill(10);
  unreadable_ = blocks[7].header.address;
  blocks.erase(blocks.begin() + 7);
  const RebuiltIndex rebuilt = Rebuild();
  ExpectSameContents(rebuilt.snapshot, SnapshotOf(blocks));
  EXPECT_EQ(Rejected(rebuilt, RebuildReject::kUnreadable), 1u);
}

TEST_F(IndexRebuildTest, AHeaderOfAnotherPlaceIsSkippedAndCounted) {
  const std::vector<DiskBlock> blocks = Fill(10);
  WriteBlockAt(Slot(3, 3), Header(5, 5, 77));
  const RebuiltIndex rebuilt = Rebuild();
  ExpectSameContents(rebuilt.snapshot, SnapshotOf(blocks));
  EXPECT_EQ(Rejected(rebuilt, RebuildReject::kMisplaced), 1u);
}

TEST_F(IndexRebuildTest, AHeaderThatNeverGotAnAddressIsSkippedAndCounted) {
  Fill(0);
  SlotHeader header = Header(3, 3, 77);
  header.address = DiskLocation{};
  WriteBlockAt(Slot(3, 3), header);
  EXPECT_EQ(Rejected(Rebuild(), RebuildReject::kMisplaced), 1u);
}

TEST_F(IndexRebuildTest, APayloadOfAnotherSizeThanTheSlotIsSkippedAndCounted) {
  Fill(0);
  SlotHeader header = Header(0, 0, 1);
  header.payload_bytes = kPayloadBytes + 1;
  WriteBlockAt(header.address, header);
  header = Header(0, 1, 2);
  header.payload_bytes = kPayloadBytes - 4096;
  WriteBlockAt(header.address, header);
  header = Header(0, 2, 3);
  header.payload_bytes = kPayloadBytes - 4095;
  WriteBlockAt(header.address, header);
  const RebuiltIndex rebuilt = Rebuild();
  EXPECT_EQ(Rejected(rebuilt, RebuildReject::kMisfit), 2u);
  EXPECT_EQ(rebuilt.snapshot.records.size(), 1u);
}

TEST_F(IndexRebuildTest, OfSeveralSlotsWithOneBlockTheLastWriteWins) {
  Fill(0);
  for (const uint64_t slot : {0, 1, 2}) {
    SlotHeader header = Header(slot, slot, 1);
    header.generation = slot == 1 ? 9 : 5;
    WriteBlockAt(header.address, header);
  }
  const RebuiltIndex rebuilt = Rebuild();
  ASSERT_EQ(rebuilt.snapshot.records.size(), 1u);
  EXPECT_EQ(rebuilt.snapshot.records[0].location, Slot(1, 1));
  EXPECT_EQ(rebuilt.snapshot.records[0].generation, 9u);
  EXPECT_EQ(Rejected(rebuilt, RebuildReject::kDuplicate), 2u);
}

// Generations begin anew when an index was lost; headers of the time before lie around.
TEST_F(IndexRebuildTest, ALaterWriteWinsOverAHigherGeneration) {
  Fill(0);
  for (const uint64_t slot : {0, 1}) {
    SlotHeader header = Header(slot, slot, 1);
    header.generation = slot == 1 ? 1 : 15;
    header.last_use_s = slot == 1 ? kNowS : kNowS - 100;
    WriteBlockAt(header.address, header);
  }
  const RebuiltIndex rebuilt = Rebuild();
  ASSERT_EQ(rebuilt.snapshot.records.size(), 1u);
  EXPECT_EQ(rebuilt.snapshot.records[0].location, Slot(1, 1));
}

TEST_F(IndexRebuildTest, ExpiredBlocksAreForgotten) {
  Fill(0);
  RebuildOptions options = Options();
  options.extended_ttl_ms = 60'000;
  options.max_age_ms = 120'000;
  const auto write = [&](uint64_t slot, uint32_t created_ago_s, uint32_t used_ago_s) {
    SlotHeader header = Header(0, slot, slot);
    header.created_s = kNowS - created_ago_s;
    header.last_use_s = kNowS - used_ago_s;
    WriteBlockAt(header.address, header);
  };
  write(0, 120, 60);
  write(1, 61, 61);
  write(2, 121, 0);
  EXPECT_EQ(Rebuild(options).snapshot.records.size(), 1u);
  EXPECT_EQ(Rejected(Rebuild(options), RebuildReject::kExpired), 2u);
  options.max_age_ms = 0;
  EXPECT_EQ(Rebuild(options).snapshot.records.size(), 2u);
}

TEST_F(IndexRebuildTest, AUseInTheFutureIsBroughtBackToNow) {
  Fill(0);
  SlotHeader header = Header(0, 0, 0);
  header.created_s = header.last_use_s = UINT32_MAX;
  WriteBlockAt(header.address, header);
  const RebuiltIndex rebuilt = Rebuild();
  ASSERT_EQ(rebuilt.snapshot.records.size(), 1u);
  EXPECT_EQ(rebuilt.snapshot.records[0].created_s, UINT32_MAX) << "its key is of that hour";
  EXPECT_EQ(rebuilt.snapshot.records[0].last_use_s, kNowS);
}

TEST_F(IndexRebuildTest, BlocksThatMustNotBeOnDiskAreNotServed) {
  Fill(0);
  SlotHeader header = Header(0, 0, 0);
  header.retention = RetentionClass::kMemory;
  WriteBlockAt(header.address, header);
  EXPECT_EQ(Rejected(Rebuild(), RebuildReject::kMemoryClass), 1u);
}

TEST_F(IndexRebuildTest, ASlabWithABadHeaderIsForgottenAlone) {
  const std::vector<DiskBlock> all = Fill(kSlabs * kSlotsPerSlab);
  Flip(SlabStart(0), 40);
  WriteSlabHeader(1, {.slab = Number(2)});
  WriteSlabHeader(2, {.slab = Number(2), .slot_bytes = kSlabBytes});
  unreadable_ = SlabStart(3);
  const RebuiltIndex rebuilt = Rebuild();
  const std::vector<DiskBlock> left(all.begin() + 4 * kSlotsPerSlab, all.end());
  ExpectSameContents(rebuilt.snapshot, SnapshotOf(left));
  EXPECT_EQ(rebuilt.slabs_bad, 4u);
}

TEST_F(IndexRebuildTest, ASlabCutAnewYieldsOnlyWhatFitsItsNewSlots) {
  Fill(kSlotsPerSlab);
  WriteSlabHeader(0, {.slab = 0, .slot_bytes = 2 * kSlotBytes});
  const RebuiltIndex rebuilt = Rebuild();
  EXPECT_TRUE(rebuilt.snapshot.records.empty());
  EXPECT_EQ(Rejected(rebuilt, RebuildReject::kMisfit), kSlotsPerSlab / 2);
}

TEST_F(IndexRebuildTest, GarbageEverywhereIsSurvived) {
  Fill(20);
  std::vector<std::byte> garbage(kSlabBytes);
  FillFromHash(TestHash(5, 5), garbage);
  WriteBytes(SlabStart(1), garbage);
  WriteBytes(Slot(0, 2), std::span(garbage).first(kSlotBytes));
  const RebuiltIndex rebuilt = Rebuild();
  // Eight of the 20, in slab 1, and one in slab 0 are gone.
  EXPECT_EQ(rebuilt.snapshot.records.size(), 11u);
}

}  // namespace
}  // namespace kvtier
