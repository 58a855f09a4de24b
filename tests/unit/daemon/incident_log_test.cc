// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "daemon/app/cache_owner.h"

namespace kvtier {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class IncidentLogTest : public testing::Test {
 protected:
  IncidentLogTest() { testing::internal::CaptureStderr(); }
  void WaitForSummary(IncidentLog* incidents) {
    // Another kind begins no period of its own; the loop runs until the first has ended.
    Timer later(&loop_);
    bool over = false;
    later.Start(kPeriodMs + 1, [&] { over = true; });
    loop_.RunUntil([&] { return over; });
    incidents->Write({.kind = IncidentKind::kWritesResumed});
  }
  [[nodiscard]] std::string Written() {
    log_.Flush();
    return testing::internal::GetCapturedStderr();
  }
  static constexpr int64_t kPeriodMs = 20;

  EventLoop loop_;
  Log log_{LogConfig{}};
  IncidentLog incidents_{&loop_, &log_, kPeriodMs};
};

TEST_F(IncidentLogTest, NamesFilePlaceReasonTenantAndModel) {
  incidents_.NameFiles({"/mnt/a/blocks.kvt", "/mnt/b/blocks.kvt"});
  NamespaceIdentity whose{.tenant = "acme"};
  whose.model.bytes[0] = 0xab;
  incidents_.Write({.kind = IncidentKind::kDamaged,
                    .reason = "checksum_mismatch",
                    .place = SlotPlace{1, 9437184},
                    .whose = whose});
  EXPECT_THAT(Written(),
              HasSubstr("W disk.damaged: /mnt/b/blocks.kvt at 9437184: checksum_mismatch (tenant "
                        "acme, model ab00"));
}

TEST_F(IncidentLogTest, EachKindHasALineWithAnIdOfItsOwn) {
  for (int kind = 0; kind < kIncidentKindCount; ++kind) {
    incidents_.Write({.kind = static_cast<IncidentKind>(kind), .reason = "because"});
  }
  const std::string text = Written();
  for (const char* id :
       {"disk.damaged", "disk.read_failed", "disk.write_failed", "disk.index_failed",
        "disk.header_kept", "disk.writes_paused", "disk.writes_resumed", "disk.budget_spent",
        "cold.damaged", "cold.failed", "pool.exhausted", "pool.overwritten", "device.copy_failed",
        "restart.damaged", "canary.differs", "canary.distrusted", "disk.drive_failed",
        "disk.not_encrypted"}) {
    EXPECT_THAT(text, HasSubstr(std::string(" ") + id + ": ")) << id;
  }
}

TEST_F(IncidentLogTest, ManyOfAKindCostAFewLinesAndOneThatCountsTheRest) {
  for (int i = 0; i < 1000; ++i) {
    incidents_.Write({.kind = IncidentKind::kReadFailed, .reason = "read " + std::to_string(i)});
  }
  WaitForSummary(&incidents_);
  const std::string text = Written();
  EXPECT_THAT(text, HasSubstr("disk.read_failed: read 9;"));
  EXPECT_THAT(text, Not(HasSubstr("read 10;")));
  EXPECT_THAT(text, HasSubstr("disk.read_failed: 990 more within"));
}

TEST_F(IncidentLogTest, ALaterPeriodHasLinesAgain) {
  for (int i = 0; i < 100; ++i) incidents_.Write({.kind = IncidentKind::kIndexFailed});
  WaitForSummary(&incidents_);
  incidents_.Write({.kind = IncidentKind::kIndexFailed, .reason = "later"});
  EXPECT_THAT(Written(), HasSubstr("disk.index_failed: later"));
}

}  // namespace
}  // namespace kvtier
