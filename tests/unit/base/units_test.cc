// SPDX-License-Identifier: Apache-2.0
#include "base/units.h"

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

TEST(Duration, EveryUnitIsUnderstood) {
  EXPECT_EQ(ParseDuration("500ms").value(), 500);
  EXPECT_EQ(ParseDuration("30s").value(), 30'000);
  EXPECT_EQ(ParseDuration("10min").value(), 600'000);
  EXPECT_EQ(ParseDuration("24h").value(), 86'400'000);
  EXPECT_EQ(ParseDuration("7 d").value(), 604'800'000);
  EXPECT_EQ(ParseDuration("0s").value(), 0);
}

TEST(Duration, AnythingElseIsRefused) {
  for (const char* text : {"", "5", "s", "-5s", "1.5h", "5 parsecs", "5sec", "5m", "5s ", " 5s",
                           "99999999999999999999s", "9223372036854775807d"}) {
    const Result<int64_t> parsed = ParseDuration(text);
    ASSERT_FALSE(parsed) << text;
    EXPECT_EQ(parsed.error().reason, "bad_duration") << text;
  }
}

TEST(Duration, FormattingIsTheInverseOfParsing) {
  for (const int64_t milliseconds :
       {int64_t{0}, int64_t{1}, int64_t{1500}, 90 * kSecondMs, 36 * kHourMs, 366 * kDayMs}) {
    EXPECT_EQ(ParseDuration(FormatDuration(milliseconds)).value(), milliseconds);
  }
  EXPECT_EQ(FormatDuration(24 * kHourMs), "1d");
  EXPECT_EQ(FormatDuration(90 * kMinuteMs), "90min");
}

}  // namespace
}  // namespace kvtier
