// SPDX-License-Identifier: Apache-2.0
// The small value types: ids, descriptors, clocks.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <type_traits>
#include <unordered_set>
#include <utility>

#include "base/clock.h"
#include "base/ids.h"
#include "base/posix.h"

namespace kvtier {
namespace {

static_assert(!std::is_convertible_v<uint32_t, PoolId> && !std::is_convertible_v<PoolId, uint32_t>);
static_assert(!std::is_convertible_v<PoolId, BlockIndex>);
static_assert(!std::is_copy_constructible_v<UniqueFd>);

TEST(Strong, ComparesAndHashesByValue) {
  EXPECT_LT(PoolId{1}, PoolId{2});
  EXPECT_EQ(PoolId{}, PoolId{0});
  const std::unordered_set<BlockIndex> set = {BlockIndex{1}, BlockIndex{1}, kNoBlock};
  EXPECT_EQ(set.size(), 2u);
}

TEST(BlockHandle, DiffersByGeneration) {
  EXPECT_NE((BlockHandle{BlockIndex{1}, 1}), (BlockHandle{BlockIndex{1}, 2}));
  EXPECT_EQ(BlockHandle{}.index, kNoBlock);
}

bool IsOpen(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }

UniqueFd OpenNull() { return UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC)); }

TEST(UniqueFd, ClosesWhenItGoes) {
  int fd;
  {
    const UniqueFd owner = OpenNull();
    ASSERT_TRUE(owner.valid());
    fd = owner.get();
    EXPECT_TRUE(IsOpen(fd));
  }
  EXPECT_FALSE(IsOpen(fd));
}

TEST(UniqueFd, MovingHandsOverAndClosesTheOldOne) {
  UniqueFd first = OpenNull(), second = OpenNull();
  const int kept = first.get(), dropped = second.get();
  second = std::move(first);
  EXPECT_FALSE(first.valid());
  EXPECT_EQ(second.get(), kept);
  EXPECT_TRUE(IsOpen(kept));
  EXPECT_FALSE(IsOpen(dropped));
}

TEST(UniqueFd, ReleaseGivesTheDescriptorAway) {
  UniqueFd owner = OpenNull();
  const int fd = owner.Release();
  EXPECT_FALSE(owner.valid());
  EXPECT_TRUE(IsOpen(fd));
  UniqueFd(fd).Reset();
  EXPECT_FALSE(IsOpen(fd));
}

TEST(SystemClock, MonotonicTimeDoesNotStepBack) {
  const SystemClock clock;
  int64_t last = clock.MonotonicMs();
  for (int i = 0; i < 1000; ++i) {
    const int64_t now = clock.MonotonicMs();
    EXPECT_GE(now, last);
    last = now;
  }
}

TEST(SystemClock, WallTimeIsSinceTheEpoch) {
  constexpr int64_t kYear2024Ms = 1704067200000;
  EXPECT_GT(SystemClock().WallMs(), kYear2024Ms);
}

}  // namespace
}  // namespace kvtier
