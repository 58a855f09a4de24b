// SPDX-License-Identifier: Apache-2.0
#include "protocol/cbor_writer.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/unit/protocol/hex.h"

namespace kvtier {
namespace {

std::string Hex(const CborWriter& writer) { return HexOf(writer.data()); }

std::string HexOfInteger(int64_t value) {
  CborWriter writer;
  writer.WriteInteger(value);
  return Hex(writer);
}

// The examples of RFC 8949, appendix A.
TEST(CborWriter, IntegersHaveTheShortestForm) {
  EXPECT_EQ(HexOfInteger(0), "00");
  EXPECT_EQ(HexOfInteger(23), "17");
  EXPECT_EQ(HexOfInteger(24), "1818");
  EXPECT_EQ(HexOfInteger(100), "1864");
  EXPECT_EQ(HexOfInteger(1000), "1903e8");
  EXPECT_EQ(HexOfInteger(1000000), "1a000f4240");
  EXPECT_EQ(HexOfInteger(1000000000000), "1b000000e8d4a51000");
  EXPECT_EQ(HexOfInteger(-1), "20");
  EXPECT_EQ(HexOfInteger(-100), "3863");
  EXPECT_EQ(HexOfInteger(-1000), "3903e7");
  EXPECT_EQ(HexOfInteger(INT64_MIN), "3b7fffffffffffffff");
}

TEST(CborWriter, UnsignedReachesTheWidestValue) {
  CborWriter writer;
  writer.WriteUnsigned(UINT64_MAX);
  EXPECT_EQ(Hex(writer), "1bffffffffffffffff");
}

TEST(CborWriter, TextsBytesArraysAndNull) {
  CborWriter writer;
  writer.WriteArray(4);
  writer.WriteText("IETF");
  const std::byte bytes[] = {std::byte{1}, std::byte{2}};
  writer.WriteBytes(bytes);
  writer.WriteArray(0);
  writer.WriteNull();
  EXPECT_EQ(Hex(writer),
            "8464494554464201"
            "0280f6");
}

TEST(CborWriter, EmptyTextAndBytes) {
  CborWriter writer;
  writer.WriteText("");
  writer.WriteBytes({});
  EXPECT_EQ(Hex(writer), "6040");
}

TEST(CborWriter, ContentSurvivesTheMoveOutOfTheInlineBuffer) {
  CborWriter writer;
  std::string expected;
  for (int i = 0; i < 100000; ++i) {
    writer.WriteUnsigned(i % 24);
    expected.push_back(static_cast<char>(i % 24));
  }
  const auto data = writer.data();
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(data.data()), data.size()), expected);
}

TEST(CborWriter, OneTextLargerThanTheInlineBuffer) {
  CborWriter writer;
  writer.WriteArray(1);
  writer.WriteText(std::string(5000, 'x'));
  ASSERT_EQ(writer.data().size(), 1u + 3 + 5000);
  EXPECT_EQ(writer.data()[0], std::byte{0x81});
  EXPECT_EQ(writer.data()[5003], std::byte{'x'});
}

}  // namespace
}  // namespace kvtier
