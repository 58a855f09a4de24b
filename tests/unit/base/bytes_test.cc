// SPDX-License-Identifier: Apache-2.0
#include "base/bytes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "base/digest.h"

namespace kvtier {
namespace {

TEST(ByteReader, ReadsWhatAWriterWrote) {
  ByteWriter writer;
  writer.Write(uint8_t{1});
  writer.Write(uint16_t{0x0203});
  writer.Write(uint32_t{0x04050607});
  writer.Write(uint64_t{0x08090a0b0c0d0e0f});
  writer.WriteString("text");
  Digest128 digest;
  digest.bytes.fill(9);
  writer.WriteDigest(digest);
  ByteReader reader(writer.data());
  EXPECT_EQ(reader.Read<uint8_t>(), 1);
  EXPECT_EQ(reader.Read<uint16_t>(), 0x0203);
  EXPECT_EQ(reader.Read<uint32_t>(), 0x04050607u);
  EXPECT_EQ(reader.Read<uint64_t>(), 0x08090a0b0c0d0e0fu);
  EXPECT_EQ(reader.ReadString(4), "text");
  EXPECT_EQ(reader.ReadDigest<16>(), digest);
  EXPECT_TRUE(reader.AtEnd());
}

TEST(ByteWriter, IsLittleEndian) {
  ByteWriter writer;
  writer.Write(uint32_t{0x01020304});
  EXPECT_EQ(writer.data(), (std::vector{std::byte{4}, std::byte{3}, std::byte{2}, std::byte{1}}));
}

TEST(ByteReader, AReadPastTheEndFailsForGood) {
  const std::byte bytes[3] = {};
  ByteReader reader(bytes);
  EXPECT_EQ(reader.Read<uint32_t>(), 0u);
  EXPECT_FALSE(reader.ok());
  EXPECT_TRUE(reader.ReadBytes(1).empty());
  EXPECT_FALSE(reader.AtEnd());
}

TEST(ByteReader, IsNotAtEndWhileBytesRemain) {
  const std::byte bytes[2] = {};
  ByteReader reader(bytes);
  (void)reader.Read<uint8_t>();
  EXPECT_TRUE(reader.ok());
  EXPECT_FALSE(reader.AtEnd());
  EXPECT_EQ(reader.remaining(), 1u);
}

TEST(ByteReader, StringsAreBoundedByTheCallerAndByTheInput) {
  ByteWriter writer;
  writer.WriteString("12345");
  EXPECT_EQ(ByteReader(writer.data()).ReadString(5), "12345");
  ByteReader bounded(writer.data());
  EXPECT_EQ(bounded.ReadString(4), "");
  EXPECT_FALSE(bounded.ok());
  ByteReader truncated(std::span(writer.data()).first(6));
  EXPECT_EQ(truncated.ReadString(5), "");
  EXPECT_FALSE(truncated.ok());
}

TEST(Digest, HexThereAndBack) {
  Digest128 digest;
  for (size_t i = 0; i < 16; ++i) digest.bytes[i] = static_cast<uint8_t>(i * 17);
  EXPECT_EQ(digest.Hex(), "00112233445566778899aabbccddeeff");
  EXPECT_EQ(Digest128::FromHex(digest.Hex()), digest);
  EXPECT_EQ(Digest128::FromHex("00112233445566778899AABBCCDDEEFF"), digest);
}

TEST(Digest, HexOfAnotherLengthOrAlphabetIsRefused) {
  EXPECT_FALSE(Digest128::FromHex("").has_value());
  EXPECT_FALSE(Digest128::FromHex("00112233445566778899aabbccddeef").has_value());
  EXPECT_FALSE(Digest128::FromHex("00112233445566778899aabbccddeeff0").has_value());
  EXPECT_FALSE(Digest128::FromHex("00112233445566778899aabbccddeefg").has_value());
}

TEST(Digest, ComparesByBytes) {
  Digest128 low, high;
  high.bytes[15] = 1;
  EXPECT_LT(low, high);
  EXPECT_EQ(low, Digest128{});
}

TEST(AlignedBuffer, IsAlignedZeroedAndOfTheSizeAsked) {
  for (const size_t bytes : {1, 4095, 4096, 4097, 100000}) {
    AlignedBuffer buffer(bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.span().data()) % 4096, 0u);
    EXPECT_EQ(buffer.span().size(), bytes);
    EXPECT_THAT(buffer.span(), ::testing::Each(std::byte{0}));
  }
}

TEST(AlignedBuffer, MovingKeepsTheBytesInPlace) {
  AlignedBuffer first(5000);
  first.span()[4999] = std::byte{7};
  const std::byte* const data = first.span().data();
  const AlignedBuffer second = std::move(first);
  EXPECT_EQ(second.span().data(), data);
  EXPECT_EQ(second.span()[4999], std::byte{7});
}

TEST(AlignedBuffer, NoneIsEmpty) { EXPECT_TRUE(AlignedBuffer().span().empty()); }

}  // namespace
}  // namespace kvtier
