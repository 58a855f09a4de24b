// SPDX-License-Identifier: Apache-2.0
#include "tools/support/table.h"

#include <gtest/gtest.h>

namespace kvtier {
namespace {

TEST(TableTest, ColumnsAreAsWideAsTheirWidestCell) {
  Table table({{"tier", Table::Align::kLeft}, {"blocks"}});
  table.AddRow({"host", "1,234,567"});
  table.AddRow({"pool", "9"});
  EXPECT_EQ(table.Render(),
            "tier     blocks\n"
            "host  1,234,567\n"
            "pool          9\n");
}

TEST(TableTest, LinesHaveNoTrailingSpaces) {
  Table table({{"a"}, {"b", Table::Align::kLeft}});
  table.AddRow({"1", ""});
  table.AddRow({"2", "long"});
  EXPECT_EQ(table.Render(), "a  b\n1\n2  long\n");
}

TEST(TableTest, WidthsCountCharactersNotBytes) {
  Table table({{"µs"}, {"x"}});
  table.AddRow({"12", "1"});
  EXPECT_EQ(table.Render(), "µs  x\n12  1\n");
}

TEST(FormatTest, CountsAreGroupedByThousands) {
  EXPECT_EQ(FormatCount(0), "0");
  EXPECT_EQ(FormatCount(999), "999");
  EXPECT_EQ(FormatCount(1000), "1,000");
  EXPECT_EQ(FormatCount(12345678), "12,345,678");
}

TEST(FormatTest, CompactCountsAreAtMostSevenCharacters) {
  EXPECT_EQ(FormatCompactCount(999'999), "999,999");
  EXPECT_EQ(FormatCompactCount(1'000'000), "1.00M");
  EXPECT_EQ(FormatCompactCount(12'345'678), "12.3M");
  EXPECT_EQ(FormatCompactCount(999'499'999), "999M");
  EXPECT_EQ(FormatCompactCount(999'500'000), "1.00G");
  EXPECT_EQ(FormatCompactCount(UINT64_MAX), "18.4E");
}

TEST(FormatTest, ElapsedTimeIsShownInItsTwoLargestUnits) {
  EXPECT_EQ(FormatElapsed(1500), "1.5 s");
  EXPECT_EQ(FormatElapsed(61'000), "1 min 1 s");
  EXPECT_EQ(FormatElapsed(7'440'000), "2 h 4 min");
  EXPECT_EQ(FormatElapsed(90'000'000), "1 d 1 h");
}

}  // namespace
}  // namespace kvtier
