// SPDX-License-Identifier: Apache-2.0
// A client that closes a pool and keeps its connection gives back its blocks.
#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "tests/integration/harness/daemon_test.h"
#include "tests/integration/harness/plain_client.h"

namespace kvtier {
namespace {

constexpr const char* kTwoDevices = R"(pool.device=["host", "host"])";

class ClosedPoolsTest : public DaemonTest {
 protected:
  // Starts a daemon with a pool on each of two devices, and attaches to both.
  void Begin(uint64_t pool_blocks) {
    StartDaemon({.pool_blocks = pool_blocks}, {kTwoDevices});
    connection_.emplace(ConnectTo(daemon().socket()));
    model_ = RegisterTinyModel(&*connection_);
    first_ = Attach(0);
    second_ = Attach(1);
  }
  std::optional<kvt::Pool> Attach(uint32_t device) {
    auto pool = connection_->Attach(model_, 0, device);
    EXPECT_TRUE(pool) << pool.error().ToString();
    if (!pool) return std::nullopt;
    return *std::move(pool);
  }
  static std::vector<kvt_block> AcquireNew(kvt::Pool& pool, uint32_t count) {
    auto acquired = pool.Acquire({}, {}, count);
    EXPECT_TRUE(acquired) << acquired.error().ToString();
    return acquired ? acquired->new_blocks.Take() : std::vector<kvt_block>();
  }
  // Commits `count` new blocks, of which the hashes begin with `first`, and keeps them.
  static void CommitNew(kvt::Pool& pool, uint8_t first, uint8_t count) {
    std::vector<kvt_commit_entry> entries;
    for (const kvt_block& block : AcquireNew(pool, count)) {
      kvt_commit_entry entry{};
      entry.block = block;
      entry.hash = Hash(static_cast<uint8_t>(first + entries.size()));
      entry.tokens = 1;
      entries.push_back(entry);
    }
    ASSERT_TRUE(pool.Commit(entries));
  }
  static kvt_hash Hash(uint8_t byte) {
    kvt_hash hash;
    std::ranges::fill(hash.bytes, byte);
    return hash;
  }
  // A count of the daemon for the device's pool, and for the one session's blocks. All requests
  // that were sent before are done then.
  uint64_t CountIn(uint32_t device, const char* what) {
    EXPECT_TRUE(connection_->Ping());
    return Admin("status").at("pools").at(device).at(what).to_number<uint64_t>();
  }
  uint64_t HeldBlocks() {
    EXPECT_TRUE(connection_->Ping());
    const boost::json::value status = Admin("status");
    return status.at("sessions").at("list").at(0).at("references").to_number<uint64_t>();
  }
  // Parts of the return may be events after the first.
  void WaitUntilGivenBack() { (void)Ctl({"settle"}); }

  std::optional<kvt::Connection> connection_;
  uint32_t model_ = 0;
  std::optional<kvt::Pool> first_;
  std::optional<kvt::Pool> second_;
};

TEST_F(ClosedPoolsTest, WhatIsHeldThereIsGivenBackAndTheOtherPoolGoesOn) {
  Begin(64);
  CommitNew(*first_, 1, 4);
  (void)AcquireNew(*first_, 7);
  CommitNew(*second_, 101, 2);
  const std::vector<kvt_block> kept = AcquireNew(*second_, 3);
  ASSERT_EQ(HeldBlocks(), 4u + 7u + 2u + 3u);
  const uint64_t free = CountIn(0, "free");
  first_.reset();
  EXPECT_EQ(HeldBlocks(), 2u + 3u);
  EXPECT_EQ(CountIn(0, "free"), free + 7);
  EXPECT_EQ(CountIn(0, "cached"), 4u);
  EXPECT_EQ(CountIn(0, "private") + CountIn(0, "referenced") + CountIn(0, "quarantined"), 0u);
  EXPECT_EQ(CountIn(1, "private"), 3u);
  EXPECT_EQ(CountIn(1, "referenced"), 2u);
  EXPECT_TRUE(second_->Release(kept));
  EXPECT_EQ(HeldBlocks(), 2u);
  EXPECT_TRUE(connection_->TakeErrors().empty());
}

TEST_F(ClosedPoolsTest, OfTwoPoolsOfOneConnectionTheLastGivesBack) {
  Begin(64);
  std::optional<kvt::Pool> again = Attach(0);
  const std::vector<kvt_block> held = AcquireNew(*again, 5);
  first_.reset();
  EXPECT_EQ(HeldBlocks(), 5u);
  EXPECT_TRUE(again->Release(held));
  (void)AcquireNew(*again, 6);
  again.reset();
  EXPECT_EQ(HeldBlocks(), 0u);
  EXPECT_EQ(CountIn(0, "private"), 0u);
}

TEST_F(ClosedPoolsTest, AnotherClientHasTheRoomAtOnce) {
  Begin(64);
  const auto all = static_cast<uint32_t>(CountIn(0, "free"));
  (void)AcquireNew(*first_, all);
  kvt::Connection other = ConnectTo(daemon().socket());
  auto pool = other.Attach(RegisterTinyModel(&other), 0, 0);
  ASSERT_TRUE(pool) << pool.error().ToString();
  EXPECT_FALSE(pool->Acquire({}, {}, all));
  first_.reset();
  EXPECT_TRUE(connection_->Ping());
  EXPECT_TRUE(pool->Acquire({}, {}, all));
}

// So many blocks are given back in several events, between which the new attachment is served.
TEST_F(ClosedPoolsTest, WhatIsAcquiredAfterANewAttachIsKept) {
  Begin(8192);
  ASSERT_GT(CountIn(0, "free"), 15'000u);
  CommitNew(*first_, 1, 4);
  (void)AcquireNew(*first_, 15'000);
  first_.reset();
  first_ = Attach(0);
  const std::vector<kvt_hash> hashes = {Hash(1)};
  auto acquired = first_->Acquire(hashes, {}, 10);
  ASSERT_TRUE(acquired) << acquired.error().ToString();
  EXPECT_EQ(acquired->hits.size(), 1u);
  WaitUntilGivenBack();
  EXPECT_EQ(CountIn(0, "private"), 10u);
  EXPECT_EQ(CountIn(0, "referenced"), 1u);
  EXPECT_EQ(HeldBlocks(), 11u);
}

TEST_F(ClosedPoolsTest, ADaemonThatIsStartedAnewHearsOfNoneThatWasClosed) {
  StartDaemon({.disk_blocks = 0}, {"restart.keep_for=60s"});
  connection_.emplace(ConnectTo(daemon().socket()));
  model_ = RegisterTinyModel(&*connection_);
  first_ = Attach(0);
  CommitNew(*first_, 1, 4);
  (void)AcquireNew(*first_, 5);
  first_.reset();
  ASSERT_EQ(HeldBlocks(), 0u);
  daemon().Kill();
  ASSERT_TRUE(daemon().Restart());
  EXPECT_EQ(CountIn(0, "quarantined"), 0u);
  EXPECT_EQ(CountIn(0, "cached"), 4u);
  EXPECT_EQ(HeldBlocks(), 0u);
}

}  // namespace
}  // namespace kvtier
