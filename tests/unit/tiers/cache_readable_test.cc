// SPDX-License-Identifier: Apache-2.0
// Which blocks may be read on a session's behalf.

#include "tests/unit/tiers/cache_fixture.h"

namespace kvtier {
namespace {

class CacheReadableTest : public CacheTest {
 protected:
  Result<const DevicePool*> Readable(SessionId session, const Handles& blocks) {
    return cache_->ReadableMemory(session, pool_.id, blocks);
  }
};

TEST_F(CacheReadableTest, WhatTheSessionReferencesOrOwnsIsReadable) {
  Start();
  const Handles stored = Store(kAlice, Sequence(1, 2));
  const Handles allocated = Acquire(kAlice, {}, 1).new_blocks;
  const auto memory = Readable(kAlice, {stored[0], stored[1], allocated[0], stored[0]});
  ASSERT_TRUE(memory.has_value());
  EXPECT_EQ((*memory)->bytes(), pool_.bytes);
  EXPECT_TRUE(Readable(kAlice, {}).has_value());
}

TEST_F(CacheReadableTest, AnothersBlocksAreNot) {
  Start();
  const Handles stored = Store(kAlice, Sequence(1, 1));
  const Handles allocated = Acquire(kAlice, {}, 1).new_blocks;
  EXPECT_THAT(Readable(kBob, stored), IsErrorOf(ErrorCode::kNotOwner, "not_held"));
  EXPECT_THAT(Readable(kBob, allocated), IsErrorOf(ErrorCode::kNotOwner, "not_held"));
}

TEST_F(CacheReadableTest, ReleasedBlocksAreNot) {
  Start();
  const Handles stored = Store(kAlice, Sequence(1, 1));
  const Handles allocated = Acquire(kAlice, {}, 1).new_blocks;
  Release(kAlice, stored);
  Release(kAlice, allocated);
  EXPECT_THAT(Readable(kAlice, stored), IsErrorOf(ErrorCode::kNotOwner, "not_held"));
  EXPECT_THAT(Readable(kAlice, allocated), IsErrorOf(ErrorCode::kStaleHandle, "stale_generation"));
}

TEST_F(CacheReadableTest, HandlesThatNameNothingAreStale) {
  Start();
  EXPECT_THAT(Readable(kAlice, {{BlockIndex{1'000'000}, 1}}),
              IsErrorOf(ErrorCode::kStaleHandle, "stale_generation"));
  EXPECT_THAT(Readable(kAlice, {{BlockIndex{0}, 77}}),
              IsErrorOf(ErrorCode::kStaleHandle, "stale_generation"));
  EXPECT_THAT(cache_->ReadableMemory(kAlice, PoolId{99}, {}),
              IsErrorOf(ErrorCode::kNotFound, "unknown_pool"));
  EXPECT_THAT(Readable(SessionId{99}, {}), IsErrorOf(ErrorCode::kCancelled, "session_closed"));
}

TEST_F(CacheReadableTest, BlocksAreReadableOnceTheirLoadHasReachedThem) {
  Start();
  Put(Sequence(1, 1));
  EvictFromPool();
  machine_->loop.Hold(machine_->device->source());
  const PendingAcquire answer = BeginAcquire(kAlice, Sequence(1, 1));
  ASSERT_TRUE(answer.succeeded());
  const Handles blocks = HandlesOf(answer.reply());
  EXPECT_THAT(Readable(kAlice, blocks), IsErrorOf(ErrorCode::kWrongState, "block_not_loaded"));
  machine_->loop.LetGo(machine_->device->source());
  Settle();
  EXPECT_TRUE(Readable(kAlice, blocks).has_value());
}

TEST_F(CacheReadableTest, BlocksWhoseLoadFailedStayUnreadable) {
  Start();
  Put(Sequence(1, 1));
  EvictFromPool();
  machine_->device->FailNextCopies(1);
  const Handles blocks = HandlesOf(Acquire(kAlice, Sequence(1, 1)));
  ASSERT_EQ(blocks.size(), 1u);
  EXPECT_THAT(Readable(kAlice, blocks), IsErrorOf(ErrorCode::kWrongState, "block_not_loaded"));
}

}  // namespace
}  // namespace kvtier
