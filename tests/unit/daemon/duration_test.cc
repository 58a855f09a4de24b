// SPDX-License-Identifier: Apache-2.0
#include "daemon/config/duration.h"

#include <gtest/gtest.h>

namespace kvtier {
namespace {

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
