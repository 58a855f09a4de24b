// SPDX-License-Identifier: Apache-2.0
// The header of a slab: its fields, and the damage that a reader sees.
#include <gtest/gtest.h>

#include <array>

#include "tiers/storage/disk_geometry.h"

namespace kvtier {
namespace {

using Page = std::array<std::byte, kSlabHeaderBytes>;

SlabHeader FullHeader() {
  SlabHeader header;
  header.slab = 0x0102030405060708;
  header.slot_bytes = 2 * 1024 * 1024 + 4096;
  header.generation = 0xffffffff;
  header.tenant = "research";
  header.model.bytes.fill(0x5a);
  return header;
}

Page Encode(const SlabHeader& header) {
  Page page;
  EncodeSlabHeader(header, page);
  return page;
}

TEST(SlabHeaderTest, DecodesWhatWasEncoded) {
  const Result<SlabHeader> decoded = DecodeSlabHeader(Encode(FullHeader()));
  ASSERT_TRUE(decoded) << decoded.error().ToString();
  EXPECT_EQ(*decoded, FullHeader());
}

TEST(SlabHeaderTest, RejectsEverySingleByteChange) {
  const Page good = Encode(FullHeader());
  for (size_t i = 0; i < good.size(); ++i) {
    Page bad = good;
    bad[i] ^= std::byte{0x10};
    ASSERT_FALSE(DecodeSlabHeader(bad)) << "byte " << i;
  }
}

TEST(SlabHeaderTest, ASlabNeverCutHasNoMagic) {
  const Result<SlabHeader> decoded = DecodeSlabHeader(Page{});
  ASSERT_FALSE(decoded);
  EXPECT_EQ(decoded.error().code, ErrorCode::kCorrupt);
  EXPECT_EQ(decoded.error().reason, "bad_magic");
}

}  // namespace
}  // namespace kvtier
