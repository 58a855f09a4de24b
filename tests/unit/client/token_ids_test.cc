// SPDX-License-Identifier: Apache-2.0
// Which tokens blocks hold: told to a daemon that wants to know, and to no other.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/mman.h>
#include <unistd.h>

#include <numeric>

#include "kvtier/kvtier_tokens.h"
#include "tests/unit/client/client_fixture.h"

namespace kvtier::client {
namespace {

using ::testing::IsEmpty;
using Ids = std::vector<uint32_t>;
using Counts = std::vector<uint16_t>;

// 1 or 0, or -1 for an error.
int Wanted(kvt::Pool* pool) {
  int wanted = -1;
  return kvt_tokens_wanted(pool->get(), &wanted) == KVT_OK ? wanted : -1;
}
int Wanted(kvt::Region* region) {
  int wanted = -1;
  return kvt_region_tokens_wanted(region->get(), &wanted) == KVT_OK ? wanted : -1;
}
// Without `counts` all blocks are full.
kvt::Status Give(kvt::Pool* pool, const std::vector<kvt_hash>& hashes, const Ids& ids,
                 const Counts& counts = {}) {
  return kvt::ToStatus(kvt_give_tokens(pool->get(), hashes.data(),
                                       counts.empty() ? nullptr : counts.data(), hashes.size(),
                                       ids.data(), ids.size()));
}

class TokenIdsTest : public ClientFixture {
 protected:
  void Connect(bool wanted, uint32_t blocks = 64) {
    StartDaemon({.blocks = blocks, .token_ids = wanted});
    Attach();
  }
  void Compute(const Ids& tokens, const kvt_sequence_options* options = nullptr) {
    auto sequence = pool_->OpenSequence(tokens, options);
    ASSERT_TRUE(sequence) << sequence.error().ToString();
    ASSERT_TRUE(sequence->MarkComputed(tokens.size()));
    ASSERT_TRUE(sequence->Finish());
  }
  // The ids of all blocks that the daemon was told of.
  [[nodiscard]] std::vector<Ids> Told() {
    std::vector<Ids> told;
    EXPECT_TRUE(connection_->Ping());  // all earlier messages have come
    for (const auto& [hash, ids] : daemon_->TokenIds()) told.push_back(ids);
    std::ranges::sort(told);
    return told;
  }
};

TEST_F(TokenIdsTest, ASequenceTellsThemOfEachBlockThatItCommits) {
  Connect(true);
  Compute({1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
  EXPECT_EQ(Told(), (std::vector<Ids>{{1, 2, 3, 4}, {5, 6, 7, 8}, {9, 10}}));
  // One question for all sequences of a pool, and a message for each commit.
  const int told = daemon_->Requests(wire::MessageType::kTokens);
  Compute({20, 21, 22, 23});
  EXPECT_EQ(Told().size(), 4u);
  EXPECT_EQ(daemon_->Requests(wire::MessageType::kTokens), told + 1);
}

TEST_F(TokenIdsTest, ADaemonThatKnowsNoneIsAskedOnceAndToldNothing) {
  Connect(false);
  Compute({1, 2, 3, 4, 5});
  Compute({6, 7, 8, 9});
  EXPECT_EQ(Wanted(&*pool_), 0);
  EXPECT_EQ(daemon_->Requests(wire::MessageType::kTokens), 1);
  EXPECT_THAT(Told(), IsEmpty());
  EXPECT_THAT(connection_->TakeErrors(), IsEmpty());
}

TEST_F(TokenIdsTest, ASequenceWhoseBlocksAreMoreThanTheirTokensTellsNone) {
  Connect(true);
  kvt_sequence_options options;
  kvt_sequence_options_init(&options);
  kvt_prompt_identity identity;
  kvt_prompt_identity_init(&identity);
  identity.cache_salt = "salt";
  options.identity = &identity;
  Compute({1, 2, 3, 4, 5}, &options);
  EXPECT_THAT(Told(), IsEmpty());
}

TEST_F(TokenIdsTest, APoolTellsWhatItIsGiven) {
  Connect(true);
  EXPECT_EQ(Wanted(&*pool_), 1);
  const auto hashes = Hashes(1, 2);
  const Ids full{1, 2, 3, 4, 5, 6, 7, 8};
  ASSERT_TRUE(Give(&*pool_, hashes, full));
  EXPECT_EQ(Told(), (std::vector<Ids>{{1, 2, 3, 4}, {5, 6, 7, 8}}));
  const Ids few{1, 2, 3};
  ASSERT_TRUE(Give(&*pool_, hashes, few, {1, 2}));
  EXPECT_EQ(Told(), (std::vector<Ids>{{1}, {2, 3}}));
}

TEST_F(TokenIdsTest, CountsThatAreNoneAreRefused) {
  Connect(true);
  const auto hashes = Hashes(1, 2);
  const auto reason = [&](const Ids& ids, const Counts& counts) {
    const kvt::Status given = Give(&*pool_, hashes, ids, counts);
    return given ? std::string() : given.error().reason;
  };
  EXPECT_EQ(reason({1, 2, 3, 4}, {}), "bad_token_count");
  EXPECT_EQ(reason({1, 2, 3}, {1, 1}), "bad_token_count");
  EXPECT_EQ(reason({1, 2}, {0, 2}), "bad_token_count");
  EXPECT_EQ(reason({1, 2, 3, 4, 5, 6}, {5, 1}), "bad_token_count");
  EXPECT_THAT(Told(), IsEmpty());
}

TEST_F(TokenIdsTest, ManyBlocksGoOutAsSeveralMessages) {
  Connect(true);
  constexpr uint32_t kMany = 5000;
  std::vector<kvt_hash> hashes(kMany);
  for (uint32_t i = 0; i < kMany; ++i) std::memcpy(hashes[i].bytes, &i, sizeof(i));
  Ids ids(kMany * kBlockTokens);
  std::iota(ids.begin(), ids.end(), 0u);
  ASSERT_TRUE(Give(&*pool_, hashes, ids));
  const std::vector<Ids> told = Told();
  ASSERT_EQ(told.size(), kMany);
  EXPECT_EQ(told.back(), (Ids{ids.end() - kBlockTokens, ids.end()}));
  EXPECT_EQ(daemon_->Requests(wire::MessageType::kTokens), 2);
}

TEST_F(TokenIdsTest, ARegionTellsWhatItIsGiven) {
  Connect(true);
  const auto model = connection_->RegisterModel(Record());
  ASSERT_TRUE(model);
  const UniqueFd memory(::memfd_create("region", MFD_CLOEXEC));
  constexpr uint64_t kBytes = 2 * kBlockTokens * 4 * sizeof(float);
  ASSERT_EQ(::ftruncate(memory.get(), kBytes), 0);
  kvt_region_options options;
  kvt_region_options_init(&options);
  options.fd = memory.get();
  options.bytes = kBytes;
  options.blocks = 1;
  auto region = connection_->OpenRegion(model->model, options);
  ASSERT_TRUE(region) << region.error().ToString();
  EXPECT_EQ(Wanted(&*region), 1);
  const auto hashes = Hashes(3, 1);
  const Ids ids{4, 3, 2, 1};
  ASSERT_EQ(kvt_region_give_tokens(region->get(), hashes.data(), nullptr, hashes.size(), ids.data(),
                                   ids.size()),
            KVT_OK);
  EXPECT_EQ(Told(), (std::vector<Ids>{{4, 3, 2, 1}}));
}

}  // namespace
}  // namespace kvtier::client
