// SPDX-License-Identifier: Apache-2.0
#include "tiers/storage/superblock.h"

#include <gtest/gtest.h>

#include <array>

#include "base/units.h"

namespace kvtier {
namespace {

using Page = std::array<std::byte, kSuperblockBytes>;

Superblock FullSuperblock() {
  Superblock superblock;
  superblock.set_uuid.bytes.fill(0xab);
  superblock.drive = 2;
  superblock.slab_bytes = 64 * kMiB;
  superblock.file_bytes = kMiB + 5 * 64 * kMiB;
  superblock.epoch = 77;
  superblock.seen_s[0] = 1'748'736'000;
  superblock.seen_s[kMaxDrives - 1] = 1;
  superblock.paths[0] = 0x0123456789abcdef;
  return superblock;
}

Page Encode(const Superblock& superblock) {
  Page page;
  EncodeSuperblock(superblock, page);
  return page;
}

TEST(SuperblockTest, DecodesWhatWasEncoded) {
  const Result<Superblock> decoded = DecodeSuperblock(Encode(FullSuperblock()));
  ASSERT_TRUE(decoded) << decoded.error().ToString();
  EXPECT_EQ(*decoded, FullSuperblock());
}

TEST(SuperblockTest, RejectsEverySingleByteChange) {
  const Page good = Encode(FullSuperblock());
  for (size_t i = 0; i < good.size(); ++i) {
    Page bad = good;
    bad[i] ^= std::byte{0x04};
    ASSERT_FALSE(DecodeSuperblock(bad)) << "byte " << i;
  }
}

TEST(SuperblockTest, RejectsAnEmptyPage) {
  EXPECT_EQ(DecodeSuperblock(Page{}).error().reason, "bad_magic");
}

}  // namespace
}  // namespace kvtier
