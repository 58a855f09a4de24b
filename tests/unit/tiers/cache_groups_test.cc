// SPDX-License-Identifier: Apache-2.0
// Acquires over the groups of one model, each of which has a pool of its own.

#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "tests/unit/tiers/cache_fixture.h"

namespace kvtier {
namespace {

using testing::IsEmpty;
using testing::SizeIs;

class CacheGroupsTest : public CacheTest {
 protected:
  using Answer = std::optional<Result<std::vector<GroupReply>>>;

  // Two groups of full attention, each with a pool of eight blocks that Alice uses.
  void StartGroups() {
    Start({.pool_blocks = 16});
    cache_.reset();
    machine_->Crash();
    cache_ = std::make_unique<Cache>(setup_.options, machine_->Environment(), IndexSnapshot{});
    for (const SessionId session : {kAlice, kBob}) {
      cache_->OpenSession(session, [this](const LoadProgress& p) { progress_.push_back(p); });
    }
    for (const uint8_t group : {uint8_t{0}, uint8_t{1}}) {
      pools_.push_back(cache_->AttachPool(Identity("tenant", group + 1), 8 * kBlockBytes).value());
      cache_->UsePool(kAlice, pools_.back().id);
    }
    pool_ = pools_[0];
  }
  // Blocks of the sequence in the group's pool, which no session holds any more.
  void PutInGroup(size_t group, const Hashes& hashes) {
    pool_ = pools_[group];
    Put(hashes);
    pool_ = pools_[0];
  }
  // The same, and the pool gives them up: they are in host.
  void PutBelowGroup(size_t group, const Hashes& hashes) {
    PutInGroup(group, hashes);
    pool_ = pools_[group];
    EvictFromPool();
    pool_ = pools_[0];
  }
  std::shared_ptr<Answer> BeginGroups(const Hashes& hashes, std::vector<uint32_t> new_blocks) {
    std::vector<GroupPart> parts;
    for (size_t group = 0; group < pools_.size(); ++group) {
      parts.push_back({{.session = kAlice,
                        .pool = pools_[group].id,
                        .hashes = hashes,
                        .new_blocks = new_blocks[group],
                        .block_tokens = kBlockTokens},
                       {.rule = HitRule::kAll, .block_tokens = kBlockTokens}});
    }
    const auto answer = std::make_shared<Answer>();
    cache_->AcquireGroups(std::move(parts), [this, answer](auto acquired) {
      reports_before_answer_ = progress_.size();
      *answer = std::move(acquired);
    });
    return answer;
  }
  // Blocks of the group's pool that no session keeps from being used.
  [[nodiscard]] uint32_t Obtainable(size_t group) {
    const uint32_t blocks = pools_[group].blocks;
    for (uint32_t asked = blocks; asked > 0; --asked) {
      const auto answer = std::make_shared<std::optional<Result<AcquireReply>>>();
      cache_->Acquire({.session = kBob, .pool = pools_[group].id, .new_blocks = asked},
                      [answer](Result<AcquireReply> acquired) { *answer = std::move(acquired); });
      Settle();
      if (!answer->has_value() || !(*answer)->has_value()) continue;
      (void)cache_->Release(kBob, pools_[group].id, (**answer)->new_blocks);
      return asked;
    }
    return 0;
  }
  // All blocks of the group's pool are to be copied to host: an acquire there waits for that.
  void MakeDirty(size_t group) {
    pool_ = pools_[group];
    Release(kBob, Store(kBob, Sequence(2, pools_[group].blocks)));
    pool_ = pools_[0];
  }

  std::vector<PoolInfo> pools_;
  size_t reports_before_answer_ = 0;
};

TEST_F(CacheGroupsTest, EachGroupGetsThePrefixThatAllHave) {
  StartGroups();
  const Hashes hashes = Sequence(1, 4);
  PutInGroup(0, hashes);
  PutInGroup(1, {hashes.begin(), hashes.begin() + 2});
  const auto answer = BeginGroups(hashes, {1, 1});
  Settle();
  ASSERT_TRUE(answer->has_value() && (*answer)->has_value());
  for (const GroupReply& group : ***answer) {
    EXPECT_THAT(group.reply.hits, SizeIs(2));
    EXPECT_THAT(group.reply.new_blocks, SizeIs(1));
    EXPECT_EQ(group.reply.miss, MissReason::kUnknown);
  }
}

TEST_F(CacheGroupsTest, ARefusedGroupLeavesNothingHeldInTheOthers) {
  StartGroups();
  const Hashes hashes = Sequence(1, 4);
  PutInGroup(0, hashes);
  PutInGroup(1, hashes);
  const auto answer = BeginGroups(hashes, {1, 9});
  Settle();
  ASSERT_TRUE(answer->has_value());
  EXPECT_THAT(**answer, IsErrorOf(ErrorCode::kResourceExhausted, "pool_full"));
  EXPECT_EQ(Obtainable(0), 8u);
  EXPECT_EQ(Obtainable(1), 8u);
}

TEST_F(CacheGroupsTest, NoLoadIsReportedBeforeTheAnswer) {
  StartGroups();
  const Hashes hashes = Sequence(1, 4);
  PutBelowGroup(0, hashes);
  PutBelowGroup(1, hashes);
  progress_.clear();
  const auto answer = BeginGroups(hashes, {0, 0});
  Settle();
  ASSERT_TRUE(answer->has_value() && (*answer)->has_value());
  EXPECT_EQ(reports_before_answer_, 0u);
  std::map<LoadId, uint32_t> ready;
  for (const LoadProgress& told : progress_) {
    if (told.finished) ready[told.load] = told.ready;
  }
  for (const GroupReply& group : ***answer) EXPECT_EQ(ready[group.reply.load], 4u);
}

TEST_F(CacheGroupsTest, LoadsOfARefusedAcquireAreReportedToNone) {
  StartGroups();
  const Hashes hashes = Sequence(1, 4);
  PutBelowGroup(0, hashes);
  PutInGroup(1, hashes);
  progress_.clear();
  const auto answer = BeginGroups(hashes, {0, 9});
  Settle();
  ASSERT_TRUE(answer->has_value());
  EXPECT_FALSE(**answer);
  EXPECT_THAT(progress_, IsEmpty());
}

TEST_F(CacheGroupsTest, LeavingOnePoolGivesBackWhatTheOtherGroupGot) {
  StartGroups();
  const Hashes hashes = Sequence(1, 4);
  PutInGroup(0, hashes);
  MakeDirty(1);
  const auto answer = BeginGroups(hashes, {1, 8});
  ASSERT_FALSE(answer->has_value());
  cache_->LeavePool(kAlice, pools_[1].id);
  ASSERT_TRUE(answer->has_value());
  EXPECT_THAT(**answer, IsErrorOf(ErrorCode::kCancelled, "pool_detached"));
  Settle();
  EXPECT_EQ(Obtainable(0), 8u);
  EXPECT_EQ(Obtainable(1), 8u);
}

TEST_F(CacheGroupsTest, ASessionThatClosesIsAnsweredWithinTheCall) {
  StartGroups();
  MakeDirty(1);
  const auto answer = BeginGroups(Sequence(1, 4), {1, 8});
  ASSERT_FALSE(answer->has_value());
  cache_->CloseSession(kAlice);
  ASSERT_TRUE(answer->has_value());
  EXPECT_THAT(**answer, IsErrorOf(ErrorCode::kCancelled, "session_closed"));
  cache_->ReleaseQuarantine(kAlice);
  Settle();
  EXPECT_EQ(Obtainable(0), 8u);
}

}  // namespace
}  // namespace kvtier
