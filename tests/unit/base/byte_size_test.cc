// SPDX-License-Identifier: Apache-2.0
#include "base/byte_size.h"

#include <gtest/gtest.h>

namespace kvtier {
namespace {

TEST(ParseByteSize, ReadsEveryUnit) {
  EXPECT_EQ(*ParseByteSize("0B"), 0u);
  EXPECT_EQ(*ParseByteSize("17B"), 17u);
  EXPECT_EQ(*ParseByteSize("256MiB"), 256 * kMiB);
  EXPECT_EQ(*ParseByteSize("3KiB"), 3 * kKiB);
  EXPECT_EQ(*ParseByteSize("2GiB"), 2 * kGiB);
  EXPECT_EQ(*ParseByteSize("4TiB"), 4096 * kGiB);
  EXPECT_EQ(*ParseByteSize("5kB"), 5000u);
  EXPECT_EQ(*ParseByteSize("6MB"), 6000000u);
  EXPECT_EQ(*ParseByteSize("4GB"), 4000000000u);
  EXPECT_EQ(*ParseByteSize("1TB"), 1000000000000u);
}

TEST(ParseByteSize, ReadsFractionsAndASpace) {
  EXPECT_EQ(*ParseByteSize("1.5 TiB"), 1536 * kGiB);
  EXPECT_EQ(*ParseByteSize("0.5 KiB"), 512u);
}

TEST(ParseByteSize, RefusesWhatItWouldHaveToGuess) {
  for (const char* text : {"", "12", "MiB", "-1MiB", "1 mib", "1MiB ", "1 MiB x", "1e3MiB", "0x10B",
                           "nanB", "infB", "1,5GiB", "9999999TiB", "1K", " 1B"}) {
    const auto bytes = ParseByteSize(text);
    ASSERT_FALSE(bytes.has_value()) << text << " gave " << *bytes;
    EXPECT_EQ(bytes.error().reason, "bad_byte_size");
    EXPECT_NE(bytes.error().context.find(text), std::string::npos);
  }
}

TEST(FormatByteSize, TakesTheLargestFittingUnit) {
  EXPECT_EQ(FormatByteSize(0), "0 B");
  EXPECT_EQ(FormatByteSize(1023), "1023 B");
  EXPECT_EQ(FormatByteSize(1024), "1.0 KiB");
  EXPECT_EQ(FormatByteSize(64 * kKiB), "64.0 KiB");
  EXPECT_EQ(FormatByteSize(kGiB + kGiB / 5), "1.2 GiB");
  EXPECT_EQ(FormatByteSize(5000 * kGiB), "4.9 TiB");
  EXPECT_EQ(FormatByteSize(UINT64_MAX), "16777216.0 TiB");
}

}  // namespace
}  // namespace kvtier
