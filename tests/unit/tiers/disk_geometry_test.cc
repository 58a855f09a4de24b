// SPDX-License-Identifier: Apache-2.0
#include "tiers/storage/disk_geometry.h"

#include <gtest/gtest.h>

#include <map>
#include <optional>

namespace kvtier {
namespace {

constexpr DiskGeometry kGeometry{64 * 1024, 3, 8};

// Drives 1 and 30, of different sizes; others are away.
constexpr DiskGeometry Sparse() {
  DiskGeometry geometry;
  geometry.slab_bytes = 64 * 1024;
  geometry.drive_slabs[1] = 3;
  geometry.drive_slabs[30] = 1;
  return geometry;
}

TEST(DiskGeometryTest, SlabsInTurnGoRoundTheFilesWithoutOverlapAndFillThem) {
  std::map<uint32_t, uint64_t> next_offset;
  uint64_t slabs = 0;
  for (uint64_t turn = 0; turn < kGeometry.turns(); ++turn) {
    const std::optional<uint64_t> slab = kGeometry.SlabInTurn(turn);
    if (!slab) continue;
    ++slabs;
    const DiskLocation start = kGeometry.SlabStart(*slab);
    const uint32_t file = kGeometry.FileOf(start);
    EXPECT_EQ(file, turn % 3);
    EXPECT_TRUE(kGeometry.Contains(start));
    const auto [it, first] = next_offset.try_emplace(file, kFirstSlabOffset);
    EXPECT_EQ(kGeometry.OffsetInFile(start), it->second);
    it->second += kGeometry.slab_bytes;
  }
  EXPECT_EQ(slabs, kGeometry.slabs());
  for (uint32_t file = 0; file < kGeometry.files(); ++file) {
    EXPECT_EQ(next_offset[file], kGeometry.FileBytes(file));
  }
}

TEST(DiskGeometryTest, ADrivesSlabsHaveTheirNumbersWhicheverOthersAreThere) {
  constexpr DiskGeometry kSparse = Sparse();
  const DiskLocation slab = kSparse.SlabStart(2 * kMaxDrives + 1);
  EXPECT_EQ(kGeometry.DriveOf(slab), 1u);
  EXPECT_EQ(kSparse.DriveOf(slab), 1u);
  EXPECT_EQ(kGeometry.OffsetInFile(slab), kSparse.OffsetInFile(slab));
  EXPECT_EQ(kGeometry.FileOf(slab), 1u);
  EXPECT_EQ(kSparse.FileOf(slab), 0u);
}

TEST(DiskGeometryTest, WhatLiesOnADriveThatIsAwayIsOutOfBounds) {
  constexpr DiskGeometry kSparse = Sparse();
  EXPECT_EQ(kSparse.files(), 2u);
  EXPECT_EQ(kSparse.DriveOfFile(1), 30u);
  EXPECT_TRUE(kSparse.Contains(kSparse.SlabStart(30)));
  EXPECT_FALSE(kSparse.Contains(kSparse.SlabStart(0)));
  EXPECT_FALSE(kSparse.Contains(kSparse.SlabStart(kMaxDrives + 30)));
  EXPECT_FALSE(kSparse.Contains(DiskLocation{}));
  EXPECT_EQ(kSparse.slabs(), 4u);
}

TEST(DiskGeometryTest, SlotsFollowTheSlabHeader) {
  const uint64_t slot_bytes = 12 * 1024;
  ASSERT_EQ(kGeometry.SlotsPerSlab(slot_bytes), 5u);
  const DiskLocation slot = kGeometry.SlotStart(2 * kMaxDrives + 1, 4, slot_bytes);
  EXPECT_EQ(kGeometry.SlabOf(slot), 2 * kMaxDrives + 1);
  EXPECT_EQ(kGeometry.OffsetInFile(slot), kFirstSlabOffset + 2 * 64 * 1024 + 4096 + 4 * slot_bytes);
}

TEST(DiskGeometryTest, KnowsWhereASlotCanBegin) {
  const uint64_t slot_bytes = 12 * 1024;
  uint64_t starts = 0;
  for (uint64_t offset = 0; offset < 3 * kMaxDrives * kGeometry.slab_bytes; offset += 4096) {
    starts += kGeometry.IsSlotStart(DiskLocation{offset}, slot_bytes) ? 1 : 0;
  }
  EXPECT_EQ(starts, kGeometry.slabs() * 5);
  EXPECT_FALSE(kGeometry.IsSlotStart(DiskLocation{}, slot_bytes));
  EXPECT_FALSE(kGeometry.IsSlotStart(kGeometry.SlabStart(1), slot_bytes));
}

}  // namespace
}  // namespace kvtier
