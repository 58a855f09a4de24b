// SPDX-License-Identifier: Apache-2.0
#include "tiers/storage/disk_geometry.h"

#include <gtest/gtest.h>

#include <map>

namespace kvtier {
namespace {

constexpr DiskGeometry kGeometry{.slab_bytes = 64 * 1024, .files = 3, .slabs = 8};

TEST(DiskGeometryTest, SlabsGoRoundTheFilesWithoutOverlapAndFillThem) {
  std::map<uint32_t, uint64_t> next_offset;
  for (uint64_t slab = 0; slab < kGeometry.slabs; ++slab) {
    const DiskLocation start = kGeometry.SlabStart(slab);
    const uint32_t file = kGeometry.FileOf(start);
    EXPECT_EQ(file, slab % 3);
    const auto [it, first] = next_offset.try_emplace(file, kFirstSlabOffset);
    EXPECT_EQ(kGeometry.OffsetInFile(start), it->second);
    it->second += kGeometry.slab_bytes;
  }
  for (uint32_t file = 0; file < kGeometry.files; ++file) {
    EXPECT_EQ(next_offset[file], kGeometry.FileBytes(file));
  }
}

TEST(DiskGeometryTest, SlotsFollowTheSlabHeader) {
  const uint64_t slot_bytes = 12 * 1024;
  ASSERT_EQ(kGeometry.SlotsPerSlab(slot_bytes), 5u);
  const DiskLocation slot = kGeometry.SlotStart(7, 4, slot_bytes);
  EXPECT_EQ(kGeometry.SlabOf(slot), 7u);
  EXPECT_EQ(kGeometry.OffsetInFile(slot), kFirstSlabOffset + 2 * 64 * 1024 + 4096 + 4 * slot_bytes);
}

TEST(DiskGeometryTest, KnowsWhereASlotCanBegin) {
  const uint64_t slot_bytes = 12 * 1024;
  uint64_t starts = 0;
  for (uint64_t offset = 0; offset < kGeometry.bytes() + 64 * 1024; offset += 4096) {
    starts += kGeometry.IsSlotStart(DiskLocation{offset}, slot_bytes) ? 1 : 0;
  }
  EXPECT_EQ(starts, kGeometry.slabs * 5);
  EXPECT_FALSE(kGeometry.IsSlotStart(DiskLocation{}, slot_bytes));
  EXPECT_FALSE(kGeometry.IsSlotStart(kGeometry.SlabStart(1), slot_bytes));
}

}  // namespace
}  // namespace kvtier
