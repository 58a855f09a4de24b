// SPDX-License-Identifier: Apache-2.0
// Sequences of more blocks than the daemon takes in one call.
#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "tests/unit/client/client_fixture.h"

namespace kvtier::client {
namespace {

class LongSequenceTest : public ClientFixture {
 protected:
  void SetUp() override {
    StartDaemon({.max_hashes = 3, .max_blocks = 8});
    Attach();
  }
  // Runs a sequence from beginning to end, so that its blocks are cached.
  void Cache(const std::vector<uint32_t>& tokens) {
    auto sequence = pool_->OpenSequence(tokens);
    ASSERT_TRUE(sequence) << sequence.error().ToString();
    ASSERT_TRUE(sequence->MarkComputed(tokens.size()));
  }
  // Puts the first `blocks` blocks of these tokens below the pool.
  void PutBelow(const std::vector<uint32_t>& tokens, size_t blocks) {
    kvt_hash_options options;
    kvt_hash_options_init(&options);
    options.block_tokens = kBlockTokens;
    const auto hashes = kvt::HashBlocks(tokens, options);
    ASSERT_TRUE(hashes);
    daemon_->WithCache([&](FakeCache* cache) {
      for (size_t i = 0; i < blocks; ++i) {
        BlockHash hash;
        std::memcpy(hash.bytes.data(), (*hashes)[i].bytes, hash.bytes.size());
        cache->PutBelow(hash, Tier::kHost, kBlockTokens, std::byte{1});
      }
    });
  }
};

TEST_F(LongSequenceTest, MoreBlocksThanACallNamesAreFound) {
  Cache(Tokens(25));
  const auto sequence = pool_->OpenSequence(Tokens(25));
  ASSERT_TRUE(sequence) << sequence.error().ToString();
  EXPECT_EQ(sequence->cached_tokens(), 24u);
  EXPECT_EQ(sequence->Info().pool_tokens, 24u);
  EXPECT_EQ(sequence->BlockTable()->size(), 7u);
  EXPECT_EQ(sequence->Info().miss, KVT_MISS_NONE);
}

TEST_F(LongSequenceTest, TheReasonOfAMissBehindTheFirstCallIsTold) {
  Cache(Tokens(16));
  const auto sequence = pool_->OpenSequence(Tokens(25));
  ASSERT_TRUE(sequence) << sequence.error().ToString();
  EXPECT_EQ(sequence->cached_tokens(), 16u);
  EXPECT_EQ(sequence->BlockTable()->size(), 7u);
  EXPECT_EQ(sequence->Info().miss, KVT_MISS_UNKNOWN);
}

TEST_F(LongSequenceTest, BlocksBehindThoseThatAreLoadedAreAskedForAfterwards) {
  const std::vector<uint32_t> tokens = Tokens(25);
  PutBelow(tokens, 5);
  auto sequence = pool_->OpenSequence(tokens);
  ASSERT_TRUE(sequence) << sequence.error().ToString();
  EXPECT_EQ(sequence->Info().ready, 0);
  EXPECT_EQ(daemon_->Requests(wire::MessageType::kAcquire), 1);
  daemon_->Progress(LoadId(1), 3, /*finished=*/true);
  // The second part's load is told of as soon as the daemon has been asked for it.
  std::thread second([&] {
    daemon_->WaitForRequests(wire::MessageType::kAcquire, 2);
    daemon_->Progress(LoadId(2), 1, /*finished=*/true);
  });
  EXPECT_TRUE(sequence->Wait());
  second.join();
  // One of its two blocks was lost.
  EXPECT_EQ(sequence->cached_tokens(), 16u);
  EXPECT_EQ(sequence->Info().host_tokens, 16u);
  EXPECT_EQ(sequence->BlockTable()->size(), 7u);
  EXPECT_EQ(References(), 7u);
}

TEST_F(LongSequenceTest, NothingIsAskedForBehindALoadThatFellShort) {
  const std::vector<uint32_t> tokens = Tokens(25);
  PutBelow(tokens, 5);
  auto sequence = pool_->OpenSequence(tokens);
  ASSERT_TRUE(sequence) << sequence.error().ToString();
  daemon_->Progress(LoadId(1), 2, /*finished=*/true);
  EXPECT_TRUE(sequence->Wait());
  EXPECT_EQ(sequence->cached_tokens(), 8u);
  EXPECT_EQ(sequence->BlockTable()->size(), 7u);
}

TEST_F(LongSequenceTest, AnAppendThatEndsWithAFullPoolLeavesTheSequenceAsItWas) {
  const auto other = pool_->OpenSequence(Tokens(10 * kBlockTokens));
  auto sequence = pool_->OpenSequence(Tokens(2 * kBlockTokens, 5000));
  ASSERT_TRUE(other && sequence);
  const auto table = *sequence->BlockTable();
  const auto appended = sequence->Append(Tokens(60 * kBlockTokens));
  ASSERT_FALSE(appended);
  EXPECT_EQ(appended.error().reason, "pool_full");
  EXPECT_EQ(*sequence->BlockTable(), table);
  EXPECT_EQ(References(), 12u);
}

TEST_F(LongSequenceTest, MoreThanThePoolHasIsNotAskedFor) {
  auto sequence = pool_->OpenSequence(Tokens(2 * kBlockTokens));
  ASSERT_TRUE(sequence);
  const int before = daemon_->Requests(wire::MessageType::kAcquire);
  EXPECT_EQ(sequence->Append(Tokens(64 * kBlockTokens)).error().reason, "pool_full");
  EXPECT_EQ(daemon_->Requests(wire::MessageType::kAcquire), before);
}

}  // namespace
}  // namespace kvtier::client
