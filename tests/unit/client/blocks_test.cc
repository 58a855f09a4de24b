// SPDX-License-Identifier: Apache-2.0
// Acquire, wait, commit, release and the rest, against a daemon that behaves.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "tests/unit/client/client_fixture.h"

namespace kvtier::client {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

class BlocksTest : public ClientFixture {
 protected:
  void SetUp() override {
    ClientFixture::SetUp();
    Attach();
  }
};

TEST_F(BlocksTest, AcquireIsOneRoundTrip) {
  Fill(Hashes(1, 3));
  ASSERT_TRUE(connection_->Flush());
  const int before = daemon_->requests();
  const auto acquired = pool_->Acquire(Hashes(1, 5), {}, 2);
  ASSERT_TRUE(acquired) << acquired.error().ToString();
  EXPECT_EQ(daemon_->requests(), before + 1);
  EXPECT_EQ(acquired->hits.size(), 3u);
  EXPECT_EQ(acquired->new_blocks.size(), 2u);
  EXPECT_EQ(acquired->load.id, 0u);
  EXPECT_EQ(acquired->miss, KVT_MISS_UNKNOWN);
}

TEST_F(BlocksTest, HitsHoldTheirBytesInPlace) {
  Fill(Hashes(1, 3));
  const auto acquired = pool_->Acquire(Hashes(1, 3));
  ASSERT_TRUE(acquired);
  for (size_t i = 0; i < 3; ++i) {
    const auto bytes = pool_->Bytes(acquired->hits[i]);
    ASSERT_TRUE(bytes);
    EXPECT_EQ(bytes->size(), pool_->Info().block_bytes);
    EXPECT_THAT(*bytes, Each(std::byte(i + 1)));
    EXPECT_EQ(acquired->sources[i].tier, KVT_TIER_POOL);
    EXPECT_EQ(acquired->sources[i].tokens, kBlockTokens);
  }
}

TEST_F(BlocksTest, TheLongestTailThatIsCachedIsTold) {
  Fill(Hashes(1, 2));
  Fill({Hash(22)});
  const auto acquired =
      pool_->Acquire(Hashes(1, 2), std::vector<kvt_hash>{Hash(21), Hash(22), Hash(23)});
  ASSERT_TRUE(acquired);
  EXPECT_EQ(acquired->hits.size(), 3u);
  EXPECT_EQ(acquired->partial_block, 1u);
}

TEST_F(BlocksTest, NoTailIsTriedBehindAMiss) {
  Fill({Hash(22)});
  const auto acquired = pool_->Acquire(Hashes(1, 2), std::vector<kvt_hash>{Hash(22)});
  ASSERT_TRUE(acquired);
  EXPECT_TRUE(acquired->hits.empty());
  EXPECT_EQ(acquired->partial_block, KVT_NO_PARTIAL_BLOCK);
}

TEST_F(BlocksTest, AskingForNothingNeedsNoRoundTrip) {
  const int before = daemon_->requests();
  EXPECT_TRUE(pool_->Acquire({}));
  EXPECT_TRUE(pool_->Release({}));
  EXPECT_TRUE(pool_->Commit({}));
  EXPECT_TRUE(pool_->Lookup({}));
  EXPECT_EQ(daemon_->requests(), before);
}

TEST_F(BlocksTest, EverythingIsReleasedWhenTheSpansGo) {
  Fill(Hashes(1, 3));
  {
    const auto acquired = pool_->Acquire(Hashes(1, 3), {}, 5);
    ASSERT_TRUE(acquired);
    EXPECT_EQ(References(), 8u);
  }
  EXPECT_EQ(References(), 0u);
  EXPECT_TRUE(connection_->TakeErrors().empty());
}

TEST_F(BlocksTest, AFullPoolIsAnErrorAndHoldsNothing) {
  const auto acquired = pool_->Acquire(Hashes(1, 3), {}, 65);
  ASSERT_FALSE(acquired);
  EXPECT_EQ(acquired.error().code, KVT_RESOURCE_EXHAUSTED);
  EXPECT_EQ(acquired.error().reason, "pool_full");
  EXPECT_EQ(References(), 0u);
}

TEST_F(BlocksTest, MoreHashesThanTheDaemonAllowsAreRefusedBeforeSending) {
  const int before = daemon_->requests();
  const auto acquired = pool_->Acquire(std::vector<kvt_hash>(wire::kMaxHashesPerCall + 1));
  ASSERT_FALSE(acquired);
  EXPECT_EQ(acquired.error().code, KVT_LIMIT_EXCEEDED);
  EXPECT_EQ(acquired.error().reason, "too_many_hashes");
  EXPECT_EQ(daemon_->requests(), before);
}

TEST_F(BlocksTest, WhatNoMessageCanSayIsRefusedBeforeSending) {
  const int before = daemon_->requests();
  const auto many_new = pool_->Acquire({}, {}, wire::kMaxBlocksPerCall + 1);
  ASSERT_FALSE(many_new);
  EXPECT_EQ(many_new.error().code, KVT_LIMIT_EXCEEDED);
  EXPECT_EQ(many_new.error().reason, "too_many_blocks");
  const auto many_partial =
      pool_->Acquire({}, std::vector<kvt_hash>(wire::kMaxPartialBlocksPerCall + 1));
  ASSERT_FALSE(many_partial);
  EXPECT_EQ(many_partial.error().reason, "too_many_partial_blocks");
  EXPECT_EQ(daemon_->requests(), before);
  EXPECT_TRUE(pool_->Acquire({}, {}, 1));
}

TEST_F(BlocksTest, TheLargestAcquireGoesThrough) {
  const auto acquired = pool_->Acquire(std::vector<kvt_hash>(wire::kMaxHashesPerCall));
  ASSERT_TRUE(acquired) << acquired.error().ToString();
  EXPECT_TRUE(acquired->hits.empty());
}

TEST_F(BlocksTest, CommitsThatAreWaitedForTellOfDuplicatesAndFailures) {
  Fill({Hash(1)});
  const auto acquired = pool_->Acquire({}, {}, 2);
  ASSERT_TRUE(acquired);
  std::vector<kvt_commit_entry> entries(3);
  for (kvt_commit_entry& entry : entries) entry.tokens = kBlockTokens;
  entries[0].block = acquired->new_blocks[0];
  entries[0].hash = Hash(1);
  entries[1].block = acquired->new_blocks[1];
  entries[1].hash = Hash(2);
  entries[2].block = acquired->new_blocks[1];
  entries[2].hash = Hash(3);
  const auto results = pool_->CommitAndWait(entries);
  ASSERT_TRUE(results) << results.error().ToString();
  EXPECT_THAT(*results, ElementsAre(KVT_ALREADY_EXISTS, KVT_OK, KVT_STALE_HANDLE));
}

TEST_F(BlocksTest, ErrorsOfFireAndForgetCallsNameTheirBlocks) {
  auto acquired = pool_->Acquire({}, {}, 2);
  ASSERT_TRUE(acquired);
  std::vector<kvt_block> blocks = acquired->new_blocks.Take();
  ASSERT_TRUE(pool_->Release(blocks));
  ASSERT_TRUE(pool_->Release(std::span(blocks).subspan(1)));
  ASSERT_TRUE(connection_->Flush());
  const std::vector<kvt_async_error> errors = connection_->TakeErrors();
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_EQ(errors[0].code, KVT_STALE_HANDLE);
  EXPECT_STREQ(errors[0].reason, "stale_handle");
  EXPECT_EQ(errors[0].block.index, blocks[1].index);
  EXPECT_EQ(errors[0].block.attachment, blocks[1].attachment);
  EXPECT_TRUE(connection_->TakeErrors().empty());
}

TEST_F(BlocksTest, DuplicateCommitsThatNobodyWaitsForAreNoErrors) {
  Fill({Hash(1)});
  Fill({Hash(1)});
  ASSERT_TRUE(connection_->Flush());
  EXPECT_TRUE(connection_->TakeErrors().empty());
}

TEST_F(BlocksTest, AWholeCommitThatIsRefusedIsReportedOnce) {
  daemon_->Intercept([](const wire::Frame& frame) -> std::optional<FakeDaemon::Bytes> {
    if (frame.type != static_cast<uint16_t>(wire::MessageType::kCommit)) return std::nullopt;
    return FrameOf(wire::ErrorReply{{ErrorCode::kNotFound, "pool_not_attached", ""}},
                   frame.request_id);
  });
  Fill(Hashes(1, 2));
  ASSERT_TRUE(connection_->Flush());
  const std::vector<kvt_async_error> errors = connection_->TakeErrors();
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_STREQ(errors[0].reason, "pool_not_attached");
  EXPECT_EQ(errors[0].block.attachment, 0u);
}

TEST_F(BlocksTest, LargeReleasesAreCutIntoCallsTheDaemonTakes) {
  auto acquired = pool_->Acquire({}, {}, 40);
  ASSERT_TRUE(acquired);
  std::vector<kvt_block> blocks = acquired->new_blocks.Take();
  std::vector<kvt_status> results(blocks.size(), KVT_INTERNAL);
  ASSERT_EQ(kvt_release(pool_->get(), blocks.data(), blocks.size(), results.data()), KVT_OK);
  EXPECT_THAT(results, Each(KVT_OK));
  EXPECT_EQ(References(), 0u);
}

TEST_F(BlocksTest, LookupPrefetchPinAndStatsReachTheDaemon) {
  Fill(Hashes(1, 1));
  const auto presence = pool_->Lookup(Hashes(1, 2));
  ASSERT_TRUE(presence);
  EXPECT_THAT(*presence, ElementsAre(KVT_PRESENT_POOL, 0));
  EXPECT_EQ(*pool_->Prefetch(Hashes(1, 2)), 2u);
  EXPECT_EQ(*pool_->Pin(Hashes(1, 2), 1000), 2u);
  EXPECT_EQ(pool_->Pin(Hashes(1, 2), -1).error().reason, "bad_ttl");
  EXPECT_EQ(connection_->Stats()->blocks_asked, 10u);
  EXPECT_EQ(connection_->Stats()->session_references, 3u);
}

TEST_F(BlocksTest, HintsReachTheDaemonAndWrongOnesDoNot) {
  EXPECT_EQ(*pool_->Hint(Hashes(1, 3), KVT_HINT_CLOSED), 3u);
  EXPECT_EQ(*pool_->Hint(Hashes(1, 2), KVT_HINT_RETURNS, 5000), 2u);
  EXPECT_EQ(pool_->Hint(Hashes(1, 2), kvt_hint{9}).error().reason, "bad_enum");
  EXPECT_EQ(pool_->Hint(Hashes(1, 2), KVT_HINT_ONCE, 5000).error().reason, "bad_returns_in");
  EXPECT_EQ(pool_->Hint(Hashes(1, 2), KVT_HINT_RETURNS, -1).error().reason, "bad_returns_in");
}

TEST_F(BlocksTest, AnAcquireOfNoGroupIsRefused) {
  EXPECT_EQ(kvt::AcquireGroups({}).error().reason, "bad_group_count");
}

class LoadsTest : public BlocksTest {
 protected:
  void SetUp() override {
    BlocksTest::SetUp();
    Fill({Hash(1)});
    daemon_->WithCache([](FakeCache* cache) {
      cache->PutBelow(WireHash(2), Tier::kHost, kBlockTokens, std::byte{2});
      cache->PutBelow(WireHash(3), Tier::kDisk, kBlockTokens, std::byte{3});
      cache->PutBelow(WireHash(4), Tier::kDisk, kBlockTokens, std::byte{4});
    });
  }
};

TEST_F(LoadsTest, BlocksBelowThePoolBecomeUsableInPrefixOrder) {
  auto acquired = pool_->Acquire(Hashes(1, 4));
  ASSERT_TRUE(acquired);
  ASSERT_EQ(acquired->hits.size(), 4u);
  EXPECT_EQ(acquired->sources[0].tier, KVT_TIER_POOL);
  EXPECT_EQ(acquired->sources[1].tier, KVT_TIER_HOST);
  EXPECT_EQ(acquired->sources[2].tier, KVT_TIER_DISK);
  ASSERT_NE(acquired->load.id, 0u);

  daemon_->Progress(LoadId{acquired->load.id}, 2, false);
  auto progress = pool_->Wait(&*acquired, 2);
  ASSERT_TRUE(progress) << progress.error().ToString();
  EXPECT_EQ(progress->ready, 2u);
  EXPECT_FALSE(progress->finished);
  EXPECT_THAT(*pool_->Bytes(acquired->hits[1]), Each(std::byte{2}));

  daemon_->Progress(LoadId{acquired->load.id}, 4, true);
  progress = pool_->Wait(&*acquired, 4);
  ASSERT_TRUE(progress);
  EXPECT_EQ(progress->ready, 4u);
  EXPECT_TRUE(progress->finished);
  EXPECT_THAT(*pool_->Bytes(acquired->hits[3]), Each(std::byte{4}));
}

TEST_F(LoadsTest, WaitingNoTimeTellsHowFarTheLoadIs) {
  auto acquired = pool_->Acquire(Hashes(1, 4));
  ASSERT_TRUE(acquired);
  daemon_->Progress(LoadId{acquired->load.id}, 3, false);
  kvt_load_progress progress{};
  progress.size = sizeof(progress);
  EXPECT_EQ(kvt_wait(pool_->get(), acquired->load, 4, 0, &progress), KVT_TIMEOUT);
  EXPECT_EQ(progress.ready, 3u);
  EXPECT_EQ(progress.finished, 0);
}

TEST_F(LoadsTest, AnAcquireThatLoadsNothingNeedsNoWaiting) {
  for (const auto wait : {kvt_wait, kvt_wait_layers}) {
    kvt_load_progress progress{};
    progress.size = sizeof(progress);
    EXPECT_EQ(wait(pool_->get(), kvt_load{}, 4, 0, &progress), KVT_OK);
    EXPECT_EQ(progress.ready, UINT32_MAX);
    EXPECT_EQ(progress.finished, 1);
    EXPECT_EQ(progress.layers, KVT_ALL_LAYERS);
  }
}

TEST_F(LoadsTest, WhatCouldNotBeLoadedIsTakenOutAndReleased) {
  auto acquired = pool_->Acquire(Hashes(1, 3), Hashes(4, 1));
  ASSERT_TRUE(acquired);
  EXPECT_EQ(acquired->partial_block, 0u);
  daemon_->Progress(LoadId{acquired->load.id}, 2, true, KVT_MISS_CHECKSUM_MISMATCH);
  const auto progress = pool_->Wait(&*acquired, 4);
  ASSERT_TRUE(progress);
  EXPECT_EQ(progress->ready, 2u);
  EXPECT_TRUE(progress->finished);
  EXPECT_EQ(progress->miss, KVT_MISS_CHECKSUM_MISMATCH);
  EXPECT_EQ(acquired->hits.size(), 2u);
  EXPECT_EQ(acquired->sources.size(), 2u);
  EXPECT_EQ(acquired->partial_block, KVT_NO_PARTIAL_BLOCK);
  EXPECT_EQ(acquired->miss, KVT_MISS_CHECKSUM_MISMATCH);
  EXPECT_EQ(References(), 2u);
}

TEST_F(LoadsTest, AFinishedLoadCanBeAskedForAgain) {
  auto acquired = pool_->Acquire(Hashes(1, 4));
  ASSERT_TRUE(acquired);
  daemon_->Progress(LoadId{acquired->load.id}, 4, true);
  EXPECT_TRUE(pool_->Wait(&*acquired, 4));
  EXPECT_EQ(pool_->Wait(&*acquired, 4)->ready, 4u);
}

TEST_F(LoadsTest, AnUnknownLoadIsNotFound) {
  auto acquired = pool_->Acquire(Hashes(1, 4));
  ASSERT_TRUE(acquired);
  acquired->load.id += 1000;
  const auto progress = pool_->Wait(&*acquired, 4, 0);
  ASSERT_FALSE(progress);
  EXPECT_EQ(progress.error().code, KVT_NOT_FOUND);
}

TEST_F(LoadsTest, ThreadsThatWaitReadForEachOther) {
  auto first = pool_->Acquire(Hashes(1, 2));
  auto second = pool_->Acquire(std::vector<kvt_hash>{Hash(3)});
  ASSERT_TRUE(first && second);
  std::atomic<int> done{0};
  std::thread waits_first([&] {
    const auto progress = pool_->Wait(&*first, 2);
    if (progress && progress->ready == 2) ++done;
  });
  std::thread waits_second([&] {
    const auto progress = pool_->Wait(&*second, 1);
    if (progress && progress->ready == 1) ++done;
  });
  daemon_->Progress(LoadId{second->load.id}, 1, true);
  waits_second.join();
  daemon_->Progress(LoadId{first->load.id}, 2, true);
  waits_first.join();
  EXPECT_EQ(done, 2);
}

TEST_F(BlocksTest, ManyThreadsShareOneConnection) {
  Fill(Hashes(1, 3));
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 6; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 100; ++i) {
        const auto acquired = pool_->Acquire(Hashes(1, 4), {}, 1);
        if (!acquired || acquired->hits.size() != 3 || acquired->new_blocks.size() != 1) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(References(), 0u);
}

}  // namespace
}  // namespace kvtier::client
