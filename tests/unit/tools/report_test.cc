// SPDX-License-Identifier: Apache-2.0
#include "tools/replay/report.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>

namespace kvtier {
namespace {

ReplayReport SomeReport() {
  ReplayReport report;
  report.requests = 3;
  report.blocks = {10, {1, 2, 3}, 4};
  report.tokens = {100, {10, 20, 30}, 40};
  report.acquire_us = {5, 1, 3};
  report.onload[1] = {2'000'000'000, 0.5};
  report.onload[2] = {1'000'000'000, 2};
  report.seconds = 1.5;
  report.requests_without_room = 7;
  report.blocks_committed_twice = 9;
  return report;
}

TEST(ReportTest, JsonHasTheDocumentedFields) {
  const boost::json::value json = boost::json::parse(SomeReport().ToJson());
  const boost::json::value expected = boost::json::parse(R"({
    "schema": "kvtier.replay/1", "requests": 3,
    "blocks": {"asked": 10, "pool": 1, "host": 2, "disk": 3, "miss": 4},
    "tokens": {"asked": 100, "pool": 10, "host": 20, "disk": 30, "miss": 40},
    "wrong_blocks": 0, "acquire_us": {"p50": 3.0, "p99": 5.0},
    "onload_gbps": {"host": 4.0, "disk": 0.5}, "seconds": 1.5})");
  EXPECT_EQ(json, expected);
}

TEST(ReportTest, AddingSumsCountsAndKeepsTheLongerTime) {
  ReplayReport sum = SomeReport();
  ReplayReport other = SomeReport();
  other.seconds = 4;
  sum.Add(other);
  EXPECT_EQ(sum.requests, 6u);
  EXPECT_EQ(sum.blocks, (HitCounts{20, {2, 4, 6}, 8}));
  EXPECT_EQ(sum.acquire_us.size(), 6u);
  EXPECT_DOUBLE_EQ(sum.onload[1].GigabytesPerSecond(), 4.0);
  EXPECT_DOUBLE_EQ(sum.seconds, 4);
  EXPECT_EQ(sum.requests_without_room, 14u);
}

TEST(ReportTest, MissingPromisesMakeAReportIncomplete) {
  ReplayReport report;
  EXPECT_TRUE(report.Complete());
  report.blocks_committed_twice = 1;
  EXPECT_TRUE(report.Complete());
  report.blocks_lost_loading = 1;
  EXPECT_FALSE(report.Complete());
}

TEST(ReportTest, PercentilesAreNearestRanks) {
  std::vector<double> samples;
  EXPECT_EQ(Percentile(samples, 0.5), 0);
  for (int i = 100; i >= 1; --i) samples.push_back(i);
  EXPECT_EQ(Percentile(samples, 0.50), 50);
  EXPECT_EQ(Percentile(samples, 0.99), 99);
  EXPECT_EQ(Percentile(samples, 1.0), 100);
  EXPECT_EQ(Percentile(samples, 0.0), 1);
}

}  // namespace
}  // namespace kvtier
