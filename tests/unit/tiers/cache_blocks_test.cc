// SPDX-License-Identifier: Apache-2.0
// States of a block: private, committed, cached; references and handles.

#include "tests/unit/tiers/cache_fixture.h"

namespace kvtier {
namespace {

using ::testing::ElementsAre;
using ::testing::Optional;

class CacheBlocksTest : public CacheTest {
 protected:
  BlockHandle AllocatePrivate(SessionId session) {
    return Acquire(session, {}, 1).new_blocks.front();
  }
};

TEST_F(CacheBlocksTest, EmptyCacheMissesEverythingAsUnknown) {
  Start();
  const AcquireReply reply = Acquire(kAlice, Sequence(1, 3));
  EXPECT_TRUE(reply.hits.empty());
  EXPECT_TRUE(reply.new_blocks.empty());
  EXPECT_EQ(reply.load, LoadId(0));
  EXPECT_EQ(reply.miss, MissReason::kUnknown);
}

TEST_F(CacheBlocksTest, PrivateBlockIsNotFindable) {
  Start();
  (void)AllocatePrivate(kAlice);
  EXPECT_FALSE(Presence(TestHash(1, 0)).anywhere());
  EXPECT_EQ(PoolGaugesNow().private_blocks, 1u);
}

TEST_F(CacheBlocksTest, CommittedBlockIsFoundByAnotherSessionInPlace) {
  Start();
  const Handles stored = Store(kAlice, Sequence(1, 2));
  const AcquireReply reply = Acquire(kBob, Sequence(1, 2));
  EXPECT_EQ(HandlesOf(reply), stored);
  EXPECT_THAT(TiersOf(reply), ElementsAre(Tier::kPool, Tier::kPool));
  EXPECT_EQ(reply.miss, MissReason::kNone);
  EXPECT_TRUE(MatchesHash(TestHash(1, 1), Bytes(reply.hits[1].handle)));
}

TEST_F(CacheBlocksTest, TokensOfAPartialBlockAreReported) {
  Start();
  const BlockHandle block = AllocatePrivate(kAlice);
  ASSERT_TRUE(TryCommit(kAlice, block, {.hash = TestHash(1, 0), .tokens = 5}));
  EXPECT_EQ(Acquire(kBob, Sequence(1, 1)).hits.at(0).tokens, 5);
}

TEST_F(CacheBlocksTest, DuplicateCommitKeepsTheFirst) {
  Start();
  const BlockHandle first = AllocatePrivate(kAlice);
  const BlockHandle second = AllocatePrivate(kBob);
  Commit(kAlice, first, TestHash(1, 0));
  const Result<CommitReply> reply = TryCommit(kBob, second, {.hash = TestHash(1, 0)});
  ASSERT_TRUE(reply);
  EXPECT_TRUE(reply->duplicate);
  EXPECT_THAT(HandlesOf(Acquire(kBob, Sequence(1, 1))), ElementsAre(first));
  EXPECT_EQ(cache_->stats().commit_duplicates, 1u);
}

TEST_F(CacheBlocksTest, BlockOfADuplicateCommitStaysPrivate) {
  Start();
  Put(Sequence(1, 1));
  const BlockHandle block = AllocatePrivate(kBob);
  ASSERT_TRUE(TryCommit(kBob, block, {.hash = TestHash(1, 0)}));
  Commit(kBob, block, TestHash(2, 0));
  EXPECT_TRUE(Presence(TestHash(2, 0)).pool);
}

TEST_F(CacheBlocksTest, DoubleCommitOfOneBlockIsRefused) {
  Start();
  const BlockHandle block = AllocatePrivate(kAlice);
  Commit(kAlice, block, TestHash(1, 0));
  EXPECT_THAT(TryCommit(kAlice, block, {.hash = TestHash(2, 0)}),
              IsErrorOf(ErrorCode::kWrongState, "not_private"));
  EXPECT_FALSE(Presence(TestHash(2, 0)).anywhere());
}

TEST_F(CacheBlocksTest, CommitOfAnotherSessionsBlockIsRefused) {
  Start();
  const BlockHandle block = AllocatePrivate(kAlice);
  const auto reply =
      cache_->Commit(kBob, pool_.id, {.block = block, .hash = TestHash(1, 0), .tokens = 16});
  ASSERT_FALSE(reply);
  EXPECT_EQ(reply.error().code, ErrorCode::kNotOwner);
  Commit(kAlice, block, TestHash(1, 0));
}

TEST_F(CacheBlocksTest, CommitOfAnIndexOutsideThePoolIsRefused) {
  Start();
  const BlockHandle nowhere{BlockIndex(pool_.blocks), 0};
  const auto reply =
      cache_->Commit(kAlice, pool_.id, {.block = nowhere, .hash = TestHash(1, 0), .tokens = 16});
  ASSERT_FALSE(reply);
  EXPECT_EQ(reply.error().code, ErrorCode::kStaleHandle);
}

TEST_F(CacheBlocksTest, CommitInAnUnknownPoolIsRefused) {
  Start();
  const BlockHandle block = AllocatePrivate(kAlice);
  EXPECT_FALSE(
      cache_->Commit(kAlice, PoolId(77), {.block = block, .hash = TestHash(1, 0), .tokens = 16}));
}

TEST_F(CacheBlocksTest, HandleIsStaleOnceTheBlockWasReleased) {
  Start();
  const BlockHandle block = AllocatePrivate(kAlice);
  Release(kAlice, {block});
  const auto committed =
      cache_->Commit(kAlice, pool_.id, {.block = block, .hash = TestHash(1, 0), .tokens = 16});
  ASSERT_FALSE(committed);
  EXPECT_EQ(committed.error().code, ErrorCode::kStaleHandle);
  const std::optional<Error> released = TryRelease(kAlice, block);
  ASSERT_TRUE(released);
  EXPECT_EQ(released->code, ErrorCode::kStaleHandle);
}

TEST_F(CacheBlocksTest, GenerationChangesWhenABlockIsReused) {
  Start({.pool_blocks = 1});
  const BlockHandle first = AllocatePrivate(kAlice);
  Release(kAlice, {first});
  const BlockHandle second = AllocatePrivate(kAlice);
  EXPECT_EQ(first.index, second.index);
  EXPECT_NE(first.generation, second.generation);
}

TEST_F(CacheBlocksTest, ReleasedPrivateBlockIsFreeAgain) {
  Start();
  Release(kAlice, {AllocatePrivate(kAlice)});
  EXPECT_EQ(PoolGaugesNow().free, pool_.blocks);
  EXPECT_EQ(PoolGaugesNow().private_blocks, 0u);
}

TEST_F(CacheBlocksTest, BlockIsCachedWhenItsLastReferenceGoes) {
  Start();
  const Handles alice = Store(kAlice, Sequence(1, 1));
  const Handles bob = HandlesOf(Acquire(kBob, Sequence(1, 1)));
  Release(kAlice, alice);
  EXPECT_EQ(PoolGaugesNow().referenced, 1u);
  Release(kBob, bob);
  EXPECT_EQ(PoolGaugesNow().referenced, 0u);
  EXPECT_EQ(PoolGaugesNow().cached, 1u);
}

TEST_F(CacheBlocksTest, SessionMayHoldSeveralReferencesToOneBlock) {
  Start();
  const Handles blocks = Store(kAlice, Sequence(1, 1));
  (void)Acquire(kAlice, Sequence(1, 1));
  Release(kAlice, blocks);
  EXPECT_EQ(PoolGaugesNow().referenced, 1u);
  Release(kAlice, blocks);
  EXPECT_EQ(PoolGaugesNow().cached, 1u);
}

TEST_F(CacheBlocksTest, DoubleReleaseIsRefusedAndTakesNothingFromOthers) {
  Start();
  const Handles alice = Store(kAlice, Sequence(1, 1));
  (void)Acquire(kBob, Sequence(1, 1));
  Release(kAlice, alice);
  const std::optional<Error> error = TryRelease(kAlice, alice.front());
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code, ErrorCode::kNotOwner);
  EXPECT_EQ(PoolGaugesNow().referenced, 1u);
}

TEST_F(CacheBlocksTest, ReleaseOfAnotherSessionsPrivateBlockIsRefused) {
  Start();
  const BlockHandle block = AllocatePrivate(kAlice);
  const std::optional<Error> error = TryRelease(kBob, block);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code, ErrorCode::kNotOwner);
  EXPECT_EQ(PoolGaugesNow().private_blocks, 1u);
}

TEST_F(CacheBlocksTest, ReleaseTriesAllHandlesAndNamesTheBadOnes) {
  Start();
  const BlockHandle good = AllocatePrivate(kAlice);
  const BlockHandle foreign = AllocatePrivate(kBob);
  const BlockHandle also_good = AllocatePrivate(kAlice);
  const BlockHandle nowhere{BlockIndex(1000), 3};
  const auto errors = cache_->Release(kAlice, pool_.id, Handles{good, nowhere, foreign, also_good});
  ASSERT_EQ(errors.size(), 2u);
  EXPECT_EQ(errors[0].position, 1u);
  EXPECT_EQ(errors[0].error.code, ErrorCode::kStaleHandle);
  EXPECT_EQ(errors[1].position, 2u);
  EXPECT_EQ(errors[1].error.code, ErrorCode::kNotOwner);
  EXPECT_EQ(PoolGaugesNow().private_blocks, 1u);
}

TEST_F(CacheBlocksTest, ReferencesPerSessionAreLimited) {
  CacheSetup setup;
  setup.options.max_references_per_session = 4;
  Start(setup);
  (void)Store(kAlice, Sequence(1, 3));
  EXPECT_THAT(TryAcquire(kAlice, Sequence(1, 2)),
              IsErrorOf(ErrorCode::kLimitExceeded, "session_references"));
  EXPECT_TRUE(TryAcquire(kAlice, Sequence(1, 1)));
  EXPECT_TRUE(TryAcquire(kBob, Sequence(1, 3)));
}

TEST_F(CacheBlocksTest, RefusedAcquireTakesNothing) {
  CacheSetup setup;
  setup.options.max_references_per_session = 2;
  Start(setup);
  Put(Sequence(1, 2));
  Put({TestHash(2, 0)});
  EXPECT_FALSE(TryAcquire(kAlice, {TestHash(1, 0), TestHash(1, 1), TestHash(2, 0)}, 2));
  EXPECT_EQ(PoolGaugesNow().referenced, 0u);
  EXPECT_EQ(PoolGaugesNow().private_blocks, 0u);
  EXPECT_EQ(cache_->stats().acquires_refused, 1u);
}

TEST_F(CacheBlocksTest, ContentsOfAReferencedBlockSurviveAFullPool) {
  Start({.pool_blocks = 4});
  const Handles blocks = Store(kAlice, Sequence(1, 2));
  for (int stream = 10; stream < 20; ++stream) Put(Sequence(stream, 2));
  EXPECT_TRUE(MatchesHash(TestHash(1, 0), Bytes(blocks[0])));
  EXPECT_TRUE(MatchesHash(TestHash(1, 1), Bytes(blocks[1])));
}

}  // namespace
}  // namespace kvtier
