#include "tiers/disk/chunk_header.h"

#include <gtest/gtest.h>

#include <array>

namespace kvtier {
namespace {

using Page = std::array<std::byte, kChunkHeaderBytes>;

ChunkHeader FullHeader() {
  ChunkHeader header;
  header.chunk = 0x0102030405060708;
  header.slot_bytes = 2 * 1024 * 1024 + 4096;
  header.generation = 0xffffffff;
  header.tenant = "research";
  header.model.bytes.fill(0x5a);
  return header;
}

Page Encode(const ChunkHeader& header) {
  Page page;
  EncodeChunkHeader(header, page);
  return page;
}

TEST(ChunkHeaderTest, DecodesWhatWasEncoded) {
  const Result<ChunkHeader> decoded = DecodeChunkHeader(Encode(FullHeader()));
  ASSERT_TRUE(decoded) << decoded.error().ToString();
  EXPECT_EQ(*decoded, FullHeader());
}

TEST(ChunkHeaderTest, RejectsEverySingleByteChange) {
  const Page good = Encode(FullHeader());
  for (size_t i = 0; i < good.size(); ++i) {
    Page bad = good;
    bad[i] ^= std::byte{0x10};
    ASSERT_FALSE(DecodeChunkHeader(bad)) << "byte " << i;
  }
}

TEST(ChunkHeaderTest, AChunkNeverCutHasNoMagic) {
  const Result<ChunkHeader> decoded = DecodeChunkHeader(Page{});
  ASSERT_FALSE(decoded);
  EXPECT_EQ(decoded.error().code, ErrorCode::kCorrupt);
  EXPECT_EQ(decoded.error().reason, "bad_magic");
}

}  // namespace
}  // namespace kvtier
