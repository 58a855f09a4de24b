// SPDX-License-Identifier: Apache-2.0
// The blocks of all attachments to one pool are claimed from the next daemon together.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "tests/unit/client/resume_fixture.h"

namespace kvtier::client {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// A pool that the connection has attached more than once.
class SharedPoolTest : public ResumeTest {
 protected:
  [[nodiscard]] kvt::Pool AttachAgain() {
    const auto model = connection_->RegisterModel(Record());
    auto pool = connection_->Attach(model->model, 0, 0);
    EXPECT_TRUE(pool) << pool.error().ToString();
    return *std::move(pool);
  }
  // Counts the resumes that let the daemon give back blocks that were not claimed.
  [[nodiscard]] ptrdiff_t Lasts() const {
    return std::ranges::count(resumes_, false, &wire::Resume::more);
  }
};

TEST_F(SharedPoolTest, AllAttachmentsBlocksAreClaimedBeforeTheDaemonGivesAnyBack) {
  kvt::Pool second = AttachAgain();
  const std::vector<kvt_block> of_first = AcquireNew(1);
  const std::vector<kvt_block> of_second = AcquireNewIn(second, 2);
  daemon_->DieAndAdopt();
  EXPECT_TRUE(pool_->Check(of_first));
  EXPECT_EQ(Lasts(), 1);
  EXPECT_FALSE(resumes_.back().more);
  EXPECT_THAT(Claimed(), ElementsAre(of_first[0].index, of_second[0].index, of_second[1].index));
  EXPECT_TRUE(second.Check(of_second));
  EXPECT_TRUE(second.Acquire({}, {}, 1));
  EXPECT_EQ(Lasts(), 1);
  // Each is attached for itself, so that one can be closed without the other.
  EXPECT_EQ(daemon_->Requests(wire::MessageType::kAttach), 4);
}

TEST_F(SharedPoolTest, AttachmentsOverSessionsOfDifferentDaemonsAreClaimedTogether) {
  const std::vector<kvt_block> of_first = AcquireNew(1);
  daemon_->DieAndAdopt();
  while (!connection_->Ping()) {
  }
  kvt::Pool second = AttachAgain();
  const std::vector<kvt_block> of_second = AcquireNewIn(second, 1);
  EXPECT_THAT(resumes_, IsEmpty()) << "the first has not been asked for";
  daemon_->DieAndAdopt();
  EXPECT_TRUE(second.Check(of_second));
  EXPECT_EQ(Lasts(), 2) << "of each session";
  EXPECT_THAT(Claimed(), ElementsAre(of_first[0].index, of_second[0].index));
  EXPECT_TRUE(pool_->Check(of_first));
}

TEST_F(SharedPoolTest, BlocksOfAnAttachmentThatGaveUpAreNeitherClaimedNorGivenBack) {
  kvt::Pool second = AttachAgain();
  const std::vector<kvt_block> of_first = AcquireNew(1);
  const std::vector<kvt_block> of_second = AcquireNewIn(second, 1);
  Refuse(wire::MessageType::kAttach);
  daemon_->DieAndAdopt();
  EXPECT_FALSE(pool_->Check(of_first));
  Refuse({});
  EXPECT_TRUE(second.Check(of_second));
  EXPECT_THAT(Claimed(), ElementsAre(of_second[0].index));
  EXPECT_EQ(Lasts(), 0);
}

TEST_F(SharedPoolTest, BlocksOfAnAttachmentThatWasClosedAreGivenBack) {
  std::optional<kvt::Pool> second = AttachAgain();
  (void)AcquireNewIn(*second, 1);
  const std::vector<kvt_block> of_first = AcquireNew(1);
  second.reset();
  daemon_->DieAndAdopt();
  EXPECT_TRUE(pool_->Check(of_first));
  EXPECT_THAT(Claimed(), ElementsAre(of_first[0].index));
  EXPECT_EQ(Lasts(), 1);
}

}  // namespace
}  // namespace kvtier::client
