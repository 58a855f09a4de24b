// SPDX-License-Identifier: Apache-2.0
// Objects of evicted blocks that the cold store does not delete, and the others beside them.
#include <vector>

#include "tests/unit/tiers/cache_cold_fixture.h"

namespace kvtier {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

class ColdDeletionsTest : public CacheColdTest {
 protected:
  ColdDeletionsTest() {
    store_.kept = Name(kept_);
    store_.refusal = {ErrorCode::kPermissionDenied, "cold_store_refuses", "AccessDenied"};
  }
  // Other hosts have written them.
  void StartBesideObjects(const Hashes& hashes) {
    for (const BlockHash& hash : hashes) store_.objects[Name(hash)] = {};
    Start(ColdSetup());
  }
  void TickFor(int64_t ms) {
    for (; ms > 0; ms -= 100) AdvanceAndTick(100);
  }
  [[nodiscard]] static Status NotTold() { return MakeError(ErrorCode::kTimeout, "not_told"); }

  const BlockHash kept_ = hashes_[3];
};

TEST_F(ColdDeletionsTest, OneThatTheStoreRefusesHoldsUpNoOther) {
  const Hashes all = Sequence(1, 65);
  StartBesideObjects(all);
  std::vector<Status> told(all.size(), NotTold());
  for (size_t i = 0; i < all.size(); ++i) Evict({all[i]}, &told[i]);
  TickFor(60'000);
  EXPECT_THAT(store_.objects, SizeIs(1));
  EXPECT_LT(store_.deletions, 20u);
  for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(told[i].has_value(), i != 3) << i;
  EXPECT_THAT(told[3], IsErrorOf(ErrorCode::kIoError, "cold_object_kept"));
}

TEST_F(ColdDeletionsTest, AnEvictionWaitsForItsOwnObjectsAlone) {
  StartBesideObjects(hashes_);
  Status first = NotTold(), second = NotTold(), again = NotTold();
  Evict({kept_}, &first);
  Settle();
  EXPECT_THAT(first, IsErrorOf(ErrorCode::kIoError, "cold_object_kept"));
  Evict({hashes_[2]}, &second);
  Settle();
  EXPECT_TRUE(second) << "at once, also in a pause";
  Evict({kept_}, &again);
  Settle();
  EXPECT_THAT(again, IsErrorOf(ErrorCode::kIoError, "cold_object_kept"));
  store_.kept.clear();
  again = NotTold();
  Evict({kept_}, &again);
  Settle();
  EXPECT_TRUE(again);
  EXPECT_THAT(store_.objects, SizeIs(2));
}

TEST_F(ColdDeletionsTest, AStoreThatRefusesAllIsAskedSeldomAndDeletesAllLater) {
  const Hashes all = Sequence(1, 1000);
  StartBesideObjects(all);
  store_.refuses = true;
  Status told = NotTold();
  Evict(all, &told);
  Settle();
  EXPECT_THAT(told, IsErrorOf(ErrorCode::kIoError, "cold_object_kept"));
  TickFor(600'000);
  EXPECT_LT(store_.deletions, 30u);
  store_.refuses = false;
  store_.kept.clear();
  TickFor(70'000);
  EXPECT_THAT(store_.objects, IsEmpty());
}

TEST_F(ColdDeletionsTest, OneThatTheStoreRefusesForHoursIsGivenUp) {
  StartBesideObjects(hashes_);
  Status told = NotTold();
  Evict({kept_}, &told);
  TickFor(5 * 3'600'000);
  const uint64_t asked = store_.deletions;
  EXPECT_LT(asked, 500u);
  TickFor(600'000);
  EXPECT_EQ(store_.deletions, asked);
}

// The next daemon's library knows nothing of the puts that it left.
TEST_F(ColdDeletionsTest, OneThatAnEarlierDaemonsPutBringsBackIsDeletedAgain) {
  store_.kept.clear();
  WriteByAnotherHost(hashes_);
  const auto objects = store_.objects;
  CacheSetup setup = ColdSetup();
  setup.disk_slots = 0;
  StartAnotherHost(setup);
  Status told = NotTold();
  Evict(hashes_, &told);
  Settle();
  EXPECT_TRUE(told);
  EXPECT_THAT(store_.objects, IsEmpty()) << "what is there goes at once";
  store_.objects = objects;
  EXPECT_THAT(Acquire(kAlice, hashes_).hits, IsEmpty());
  TickFor(61'000);
  EXPECT_THAT(store_.objects, IsEmpty());
  EXPECT_LT(store_.deletions, 6u) << "not with each tick";
  Put(hashes_);
  Use(hashes_);
  EvictFromPool();
  TickFor(kAfterMs);
  EXPECT_THAT(store_.objects, SizeIs(4)) << "computed anew";
}

// Another host may have computed the block since, and counts on its object.
TEST_F(ColdDeletionsTest, OneThatWasDamagedIsDeletedOnce) {
  store_.kept.clear();
  WriteByAnotherHost(hashes_);
  const auto objects = store_.objects;
  store_.objects.at(Name(hashes_[0])).bytes.back() ^= std::byte{1};
  CacheSetup setup = ColdSetup();
  setup.disk_slots = 0;
  StartAnotherHost(setup);
  Release(kAlice, HandlesOf(Acquire(kAlice, hashes_)));
  Settle();
  ASSERT_THAT(store_.objects, SizeIs(3));
  store_.objects = objects;
  TickFor(61'000);
  EXPECT_THAT(store_.objects, SizeIs(4));
  EXPECT_EQ(store_.deletions, 1u);
}

}  // namespace
}  // namespace kvtier
