// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tools/kvtierctl/command.h"
#include "tools/support/terminal.h"

namespace kvtier {
namespace {

TEST(ProgressTest, ShowsShareRateAndTimeLeft) {
  EXPECT_EQ(FormatProgress("verified", {.done = 250'000,
                                        .total = 1'000'000,
                                        .bytes_per_second = uint64_t{1} << 30,
                                        .elapsed_s = 30}),
            "verified [#####...............] 250,000 of 1.00M, 1.0 GiB/s, 1 min 30 s left");
}

TEST(ProgressTest, NeitherStartNorEndPromisesATime) {
  EXPECT_EQ(FormatProgress("written", {.done = 0, .total = 8, .elapsed_s = 1}),
            "written [....................] 0 of 8");
  EXPECT_EQ(FormatProgress("written", {.done = 9, .total = 8, .elapsed_s = 1}),
            "written [####################] 9 of 9");
  EXPECT_EQ(FormatProgress("written", {}), "written nothing yet");
}

TEST(ProgressTest, LargestFiguresStayWithinALine) {
  EXPECT_LE(FormatProgress("verified", {.done = 123'456'789'012,
                                        .total = 1'234'567'890'123,
                                        .bytes_per_second = uint64_t{1} << 45,
                                        .elapsed_s = 1e7})
                .size(),
            80u);
}

TEST(FitRows, AScreenShowsTheFirstLinesAndAllOfTheLastOnes) {
  const std::string body = "1\n2\n3\n4\n5\n";
  EXPECT_EQ(FitRows(body, "a\nb\n", 0), body + "a\nb\n");
  EXPECT_EQ(FitRows(body, "a\nb\n", 8), body + "a\nb\n");
  EXPECT_EQ(FitRows(body, "a\nb\n", 7), "1\n2\n3\n... 2 more lines: kvtierctl status\na\nb\n");
  EXPECT_EQ(FitRows(body, "a\nb\n", 2), "... 5 more lines: kvtierctl status\na\nb\n");
}

}  // namespace
}  // namespace kvtier
