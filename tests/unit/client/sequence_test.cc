// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <set>

#include "tests/unit/client/client_fixture.h"

namespace kvtier::client {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

class SequenceTest : public ClientFixture {
 protected:
  void SetUp() override {
    ClientFixture::SetUp();
    Attach();
  }

  [[nodiscard]] static kvt_sequence_options SequenceOptions() {
    kvt_sequence_options options;
    kvt_sequence_options_init(&options);
    return options;
  }

  // Where a token's "KV" is kept by these tests: one byte of its slot's own.
  [[nodiscard]] std::byte* Slot(const kvt::Sequence& sequence, uint64_t token) {
    const int64_t slot = (*sequence.SlotMapping(token, 1))[0];
    const kvt_sequence_info info = sequence.Info();
    return static_cast<std::byte*>(info.base) +
           slot / kBlockTokens * static_cast<int64_t>(pool_->Info().block_bytes) +
           slot % kBlockTokens;
  }
  [[nodiscard]] static std::byte KvOf(uint32_t token) { return std::byte(token & 0xff); }

  // Writes the tokens that are not cached yet, as an engine would.
  void Compute(kvt::Sequence* sequence, const std::vector<uint32_t>& tokens) {
    for (uint64_t i = sequence->Info().computed_tokens; i < tokens.size(); ++i) {
      *Slot(*sequence, i) = KvOf(tokens[i]);
    }
    ASSERT_TRUE(sequence->MarkComputed(tokens.size()));
  }
  void ExpectKv(const kvt::Sequence& sequence, const std::vector<uint32_t>& tokens) {
    for (size_t i = 0; i < tokens.size(); ++i) {
      EXPECT_EQ(*Slot(sequence, i), KvOf(tokens[i])) << "token " << i;
    }
  }

  // Runs a sequence from beginning to end, so that its blocks are cached.
  void Cache(const std::vector<uint32_t>& tokens, bool with_partial = false) {
    auto sequence = pool_->OpenSequence(tokens);
    ASSERT_TRUE(sequence) << sequence.error().ToString();
    Compute(&*sequence, tokens);
    if (with_partial) {
      ASSERT_TRUE(sequence->Finish());
    }
  }
};

TEST_F(SequenceTest, ANewSequenceHasPrivateBlocksForAllItsTokens) {
  const auto sequence = pool_->OpenSequence(Tokens(10));
  ASSERT_TRUE(sequence) << sequence.error().ToString();
  EXPECT_EQ(sequence->cached_tokens(), 0u);
  EXPECT_EQ(sequence->tokens(), 10u);
  EXPECT_EQ(sequence->Info().ready, 1);
  EXPECT_EQ(sequence->BlockTable()->size(), 3u);
}

TEST_F(SequenceTest, SlotsAreBlockIndexTimesBlockTokensPlusOffset) {
  const auto sequence = pool_->OpenSequence(Tokens(10));
  ASSERT_TRUE(sequence);
  const std::vector<int32_t> table = *sequence->BlockTable();
  EXPECT_THAT(*sequence->SlotMapping(3, 3),
              ElementsAre(table[0] * 4 + 3, table[1] * 4 + 0, table[1] * 4 + 1));
  EXPECT_EQ(sequence->SlotMapping(8, 3).error().reason, "beyond_sequence");
  EXPECT_TRUE(sequence->SlotMapping(10, 0)->empty());
}

TEST_F(SequenceTest, ACachedPrefixIsSharedInPlace) {
  const std::vector<uint32_t> tokens = Tokens(12);
  Cache(tokens);
  auto longer = tokens;
  longer.push_back(7);
  const auto first = pool_->OpenSequence(longer);
  const auto second = pool_->OpenSequence(longer);
  ASSERT_TRUE(first && second);
  EXPECT_EQ(first->cached_tokens(), 12u);
  EXPECT_EQ(first->Info().pool_tokens, 12u);
  const auto table_of_first = *first->BlockTable();
  const auto table_of_second = *second->BlockTable();
  EXPECT_TRUE(
      std::equal(table_of_first.begin(), table_of_first.begin() + 3, table_of_second.begin()));
  EXPECT_NE(table_of_first[3], table_of_second[3]);
  ExpectKv(*first, tokens);
}

TEST_F(SequenceTest, AFullyCachedPromptIsOneRoundTrip) {
  Cache(Tokens(10), /*with_partial=*/true);
  ASSERT_TRUE(connection_->Flush());
  const int before = daemon_->Requests(wire::MessageType::kAcquire);
  const auto sequence = pool_->OpenSequence(Tokens(10));
  ASSERT_TRUE(sequence);
  EXPECT_EQ(sequence->cached_tokens(), 9u);
  EXPECT_EQ(daemon_->Requests(wire::MessageType::kAcquire), before + 1);
}

TEST_F(SequenceTest, OneTokenIsLeftToComputeUnlessTheCallerWantsNone) {
  Cache(Tokens(8));
  const auto sequence = pool_->OpenSequence(Tokens(8));
  ASSERT_TRUE(sequence);
  EXPECT_EQ(sequence->cached_tokens(), 7u);
  ExpectKv(*sequence, Tokens(7));

  kvt_sequence_options options = SequenceOptions();
  options.leave_tokens = 0;
  const auto whole = pool_->OpenSequence(Tokens(8), &options);
  ASSERT_TRUE(whole);
  EXPECT_EQ(whole->cached_tokens(), 8u);
  EXPECT_EQ(whole->BlockTable()->size(), 2u);
}

TEST_F(SequenceTest, TheBlockOfTokensToComputeIsPrivate) {
  Cache(Tokens(8));
  const auto first = pool_->OpenSequence(Tokens(8));
  const auto second = pool_->OpenSequence(Tokens(8));
  ASSERT_TRUE(first && second);
  *Slot(*first, 7) = std::byte{0xaa};
  EXPECT_NE(*Slot(*second, 7), std::byte{0xaa});
  kvt_sequence_options options = SequenceOptions();
  options.leave_tokens = 0;
  const auto cached = pool_->OpenSequence(Tokens(8), &options);
  ASSERT_TRUE(cached);
  ExpectKv(*cached, Tokens(8));
}

TEST_F(SequenceTest, MoreTokensCanBeLeftThanABlockHas) {
  Cache(Tokens(12));
  kvt_sequence_options options = SequenceOptions();
  options.leave_tokens = 6;
  const auto sequence = pool_->OpenSequence(Tokens(12), &options);
  ASSERT_TRUE(sequence);
  EXPECT_EQ(sequence->cached_tokens(), 6u);
  EXPECT_EQ(sequence->BlockTable()->size(), 3u);
  ExpectKv(*sequence, Tokens(6));
  options.leave_tokens = 100;
  EXPECT_EQ(pool_->OpenSequence(Tokens(12), &options)->cached_tokens(), 0u);
}

TEST_F(SequenceTest, APartialTailOfAnotherSequenceIsFoundAndCopied) {
  Cache(Tokens(6), /*with_partial=*/true);
  auto tokens = Tokens(6);
  tokens.insert(tokens.end(), {1, 2, 3, 4, 5});
  // The tail is in the middle of what this prompt asks for as a full block.
  const auto in_full_block = pool_->OpenSequence(tokens);
  ASSERT_TRUE(in_full_block);
  EXPECT_EQ(in_full_block->cached_tokens(), 4u);
  // And at its end here.
  tokens.resize(8);
  const auto sequence = pool_->OpenSequence(tokens);
  ASSERT_TRUE(sequence);
  EXPECT_EQ(sequence->cached_tokens(), 6u);
  ExpectKv(*sequence, Tokens(6));
}

TEST_F(SequenceTest, TheLongestTailWins) {
  Cache(Tokens(5), /*with_partial=*/true);
  Cache(Tokens(7), /*with_partial=*/true);
  const auto sequence = pool_->OpenSequence(Tokens(8));
  ASSERT_TRUE(sequence);
  EXPECT_EQ(sequence->cached_tokens(), 7u);
}

TEST_F(SequenceTest, BlocksAreCommittedAsTheyAreComputedNotAsTheyAreAppended) {
  auto sequence = pool_->OpenSequence(Tokens(3));
  ASSERT_TRUE(sequence);
  const std::vector<uint32_t> more = Tokens(6, 1003);
  ASSERT_TRUE(sequence->Append(more));
  ASSERT_TRUE(connection_->Flush());
  EXPECT_EQ(daemon_->Requests(wire::MessageType::kCommit), 0);
  ASSERT_TRUE(sequence->MarkComputed(7));
  ASSERT_TRUE(connection_->Flush());
  EXPECT_EQ(daemon_->Requests(wire::MessageType::kCommit), 1);
  EXPECT_EQ(pool_->OpenSequence(Tokens(9))->cached_tokens(), 4u);
  ASSERT_TRUE(sequence->MarkComputed(8));
  EXPECT_EQ(pool_->OpenSequence(Tokens(9))->cached_tokens(), 8u);
  EXPECT_EQ(sequence->MarkComputed(10).error().reason, "too_many_tokens");
  EXPECT_TRUE(sequence->MarkComputed(2));
  EXPECT_EQ(sequence->Info().computed_tokens, 8u);
}

TEST_F(SequenceTest, AppendingAllocatesOnlyAtBlockBoundaries) {
  kvt_sequence_options options = SequenceOptions();
  options.reserve_tokens = 5;
  auto sequence = pool_->OpenSequence(Tokens(3), &options);
  ASSERT_TRUE(sequence);
  EXPECT_EQ(sequence->BlockTable()->size(), 2u);
  const int before = daemon_->Requests(wire::MessageType::kAcquire);
  for (uint32_t token = 0; token < 5; ++token) {
    ASSERT_TRUE(sequence->Append(std::span(&token, 1)));
  }
  EXPECT_EQ(daemon_->Requests(wire::MessageType::kAcquire), before);
  const uint32_t token = 5;
  ASSERT_TRUE(sequence->Append(std::span(&token, 1)));
  EXPECT_EQ(daemon_->Requests(wire::MessageType::kAcquire), before + 1);
  EXPECT_EQ(sequence->BlockTable()->size(), 3u);
}

TEST_F(SequenceTest, AppendingAfterFinishCopiesTheCommittedTail) {
  auto tokens = Tokens(6);
  auto sequence = pool_->OpenSequence(tokens);
  ASSERT_TRUE(sequence);
  Compute(&*sequence, tokens);
  ASSERT_TRUE(sequence->Finish());
  const int32_t committed = (*sequence->BlockTable())[1];
  ASSERT_TRUE(sequence->Append(std::vector<uint32_t>{42}));
  tokens.push_back(42);
  EXPECT_NE((*sequence->BlockTable())[1], committed);
  Compute(&*sequence, tokens);
  ExpectKv(*sequence, tokens);
  // The committed block still has its bytes from the commit.
  const auto other = pool_->OpenSequence(Tokens(8));
  ASSERT_TRUE(other);
  EXPECT_EQ(other->cached_tokens(), 6u);
  ExpectKv(*other, Tokens(6));
}

TEST_F(SequenceTest, FinishIsForComputedTokensOnly) {
  auto sequence = pool_->OpenSequence(Tokens(6));
  ASSERT_TRUE(sequence);
  EXPECT_TRUE(sequence->Finish());  // nothing is computed, nothing to commit
  ASSERT_TRUE(sequence->MarkComputed(5));
  EXPECT_EQ(sequence->Finish().error().reason, "tokens_not_computed");
  ASSERT_TRUE(sequence->MarkComputed(6));
  EXPECT_TRUE(sequence->Finish());
  EXPECT_TRUE(sequence->Finish());
  ASSERT_TRUE(connection_->Flush());
  EXPECT_EQ(daemon_->Requests(wire::MessageType::kCommit), 2);
}

TEST_F(SequenceTest, AForkSharesCommittedBlocksAndCopiesThePrivateTail) {
  const auto tokens = Tokens(10);
  auto parent = pool_->OpenSequence(tokens);
  ASSERT_TRUE(parent);
  Compute(&*parent, tokens);
  auto fork = parent->Fork();
  ASSERT_TRUE(fork) << fork.error().ToString();
  const auto parent_table = *parent->BlockTable();
  const auto fork_table = *fork->BlockTable();
  EXPECT_EQ(fork_table[0], parent_table[0]);
  EXPECT_EQ(fork_table[1], parent_table[1]);
  EXPECT_NE(fork_table[2], parent_table[2]);
  EXPECT_EQ(fork->Info().computed_tokens, 10u);
  ExpectKv(*fork, tokens);

  // From here on they part.
  auto left = tokens;
  auto right = tokens;
  left.push_back(1);
  right.push_back(2);
  ASSERT_TRUE(parent->Append(std::vector<uint32_t>{1}));
  ASSERT_TRUE(fork->Append(std::vector<uint32_t>{2}));
  Compute(&*parent, left);
  Compute(&*fork, right);
  ExpectKv(*parent, left);
  ExpectKv(*fork, right);
}

TEST_F(SequenceTest, AForkOutlivesItsParent) {
  const auto tokens = Tokens(6);
  std::optional<kvt::Sequence> fork;
  {
    auto parent = pool_->OpenSequence(tokens);
    ASSERT_TRUE(parent);
    Compute(&*parent, tokens);
    fork.emplace(*parent->Fork());
  }
  ExpectKv(*fork, tokens);
  fork.reset();
  EXPECT_EQ(References(), 0u);
}

TEST_F(SequenceTest, AForkOfAFinishedSequenceMayGrow) {
  auto tokens = Tokens(6);
  auto parent = pool_->OpenSequence(tokens);
  ASSERT_TRUE(parent);
  Compute(&*parent, tokens);
  ASSERT_TRUE(parent->Finish());
  auto fork = parent->Fork();
  ASSERT_TRUE(fork) << fork.error().ToString();
  ASSERT_TRUE(fork->Append(std::vector<uint32_t>{42}));
  tokens.push_back(42);
  Compute(&*fork, tokens);
  ExpectKv(*fork, tokens);
  ExpectKv(*parent, Tokens(6));
}

TEST_F(SequenceTest, AForkOfUncomputedTokensHasRoomForThem) {
  auto parent = pool_->OpenSequence(Tokens(10));
  ASSERT_TRUE(parent);
  const auto fork = parent->Fork();
  ASSERT_TRUE(fork);
  EXPECT_EQ(fork->tokens(), 10u);
  EXPECT_EQ(fork->Info().computed_tokens, 0u);
  EXPECT_EQ(fork->BlockTable()->size(), 3u);
}

TEST_F(SequenceTest, WhatTheCacheForgotIsCopiedByAFork) {
  const auto tokens = Tokens(8);
  // All commits are lost on their way.
  daemon_->Intercept([](const wire::Frame& frame) -> std::optional<FakeDaemon::Bytes> {
    if (frame.type != static_cast<uint16_t>(wire::MessageType::kCommit)) return std::nullopt;
    return FakeDaemon::Bytes();
  });
  auto parent = pool_->OpenSequence(tokens);
  ASSERT_TRUE(parent);
  Compute(&*parent, tokens);
  const auto fork = parent->Fork();
  ASSERT_TRUE(fork);
  EXPECT_NE((*fork->BlockTable())[0], (*parent->BlockTable())[0]);
  ExpectKv(*fork, tokens);
}

TEST_F(SequenceTest, ClosingGivesEverythingBack) {
  Cache(Tokens(10), /*with_partial=*/true);
  {
    kvt_sequence_options options = SequenceOptions();
    options.reserve_tokens = 9;
    auto sequence = pool_->OpenSequence(Tokens(10), &options);
    ASSERT_TRUE(sequence);
    const auto fork = sequence->Fork();
    ASSERT_TRUE(fork);
    ASSERT_TRUE(sequence->Append(Tokens(20)));
  }
  EXPECT_EQ(References(), 0u);
  EXPECT_TRUE(connection_->TakeErrors().empty());
}

TEST_F(SequenceTest, AFullPoolLeavesTheSequenceAsItWas) {
  auto sequence = pool_->OpenSequence(Tokens(8));
  ASSERT_TRUE(sequence);
  EXPECT_EQ(sequence->Append(Tokens(65 * kBlockTokens)).error().code, KVT_RESOURCE_EXHAUSTED);
  EXPECT_EQ(sequence->tokens(), 8u);
  EXPECT_TRUE(sequence->Append(Tokens(3)));
  EXPECT_EQ(pool_->OpenSequence(Tokens(64 * kBlockTokens)).error().code, KVT_RESOURCE_EXHAUSTED);
  EXPECT_EQ(References(), 3u);
}

TEST_F(SequenceTest, ADifferentLoraOrSaltSharesNothing) {
  Cache(Tokens(8));
  kvt_prompt_identity identity;
  kvt_prompt_identity_init(&identity);
  kvt_sequence_options options = SequenceOptions();
  options.identity = &identity;
  identity.lora = "sql-adapter";
  EXPECT_EQ(pool_->OpenSequence(Tokens(9), &options)->cached_tokens(), 0u);
  identity.lora = nullptr;
  identity.cache_salt = "tenant-42";
  EXPECT_EQ(pool_->OpenSequence(Tokens(9), &options)->cached_tokens(), 0u);
  identity.cache_salt = nullptr;
  const kvt_multimodal_item image{"abcdef", 5, 2};
  identity.items = &image;
  identity.item_count = 1;
  EXPECT_EQ(pool_->OpenSequence(Tokens(9), &options)->cached_tokens(), 4u);
}

TEST_F(SequenceTest, ASequenceIsHashedByTheModelsRecipe) {
  kvt_model_record record = Record();
  record.hash_recipe = KVT_HASH_SGLANG_1;
  auto pool = connection_->Attach(connection_->RegisterModel(record)->model, 0, 0);
  ASSERT_TRUE(pool) << pool.error().ToString();
  const auto tokens = Tokens(9);
  auto sequence = pool->OpenSequence(tokens);
  ASSERT_TRUE(sequence) << sequence.error().ToString();
  ASSERT_TRUE(sequence->MarkComputed(8));
  ASSERT_TRUE(connection_->Flush());
  kvt_hash_options options;
  kvt_hash_options_init(&options);
  options.block_tokens = kBlockTokens;
  options.recipe = record.hash_recipe;
  EXPECT_THAT(*pool->Lookup(*kvt::HashBlocks(std::span(tokens).first(8), options)),
              ElementsAre(KVT_PRESENT_POOL, KVT_PRESENT_POOL));

  kvt_prompt_identity identity;
  kvt_prompt_identity_init(&identity);
  identity.lora = "sql";
  kvt_sequence_options given = SequenceOptions();
  given.identity = &identity;
  EXPECT_EQ(pool->OpenSequence(tokens, &given).error().reason, "bad_lora");
}

TEST_F(SequenceTest, AModelWithARecipeOfItsOwnHasNoSequences) {
  kvt_model_record record = Record();
  record.hash_recipe = "my-engine/1";
  auto pool = connection_->Attach(connection_->RegisterModel(record)->model, 0, 0);
  ASSERT_TRUE(pool) << pool.error().ToString();
  EXPECT_EQ(pool->OpenSequence(Tokens(9)).error().reason, "bad_recipe");
}

TEST_F(SequenceTest, DigestsOfPromptEmbeddingsAreNotForSequences) {
  const kvt_hash digest{};
  kvt_prompt_identity identity;
  kvt_prompt_identity_init(&identity);
  identity.prompt_embeds = &digest;
  identity.prompt_embed_count = 1;
  kvt_sequence_options options = SequenceOptions();
  options.identity = &identity;
  EXPECT_EQ(pool_->OpenSequence(Tokens(9), &options).error().reason, "bad_prompt_embeds");
}

TEST_F(SequenceTest, AnEmptySequenceGrowsFromNothing) {
  auto sequence = pool_->OpenSequence({});
  ASSERT_TRUE(sequence) << sequence.error().ToString();
  EXPECT_EQ(sequence->BlockTable()->size(), 0u);
  ASSERT_TRUE(sequence->Append(Tokens(1)));
  EXPECT_EQ(sequence->BlockTable()->size(), 1u);
}

TEST_F(SequenceTest, CopiesGoThroughTheCallersFunctionIfThereIsOne) {
  Cache(Tokens(6), /*with_partial=*/true);
  kvt_sequence_options options = SequenceOptions();
  std::vector<uint64_t> copies;
  options.copy_user = &copies;
  options.copy = [](void* user, uint64_t target, uint64_t source, uint64_t bytes) -> int32_t {
    *static_cast<std::vector<uint64_t>*>(user) = {target, source, bytes};
    return 0;
  };
  const auto sequence = pool_->OpenSequence(Tokens(8), &options);
  ASSERT_TRUE(sequence);
  const uint64_t block_bytes = pool_->Info().block_bytes;
  ASSERT_EQ(copies.size(), 3u);
  EXPECT_EQ(copies[0], static_cast<uint64_t>((*sequence->BlockTable())[1]) * block_bytes);
  EXPECT_EQ(copies[2], block_bytes);
  options.copy = [](void*, uint64_t, uint64_t, uint64_t) -> int32_t { return 1; };
  EXPECT_EQ(pool_->OpenSequence(Tokens(8), &options).error().reason, "copy_failed");
}

class SequenceLoadTest : public SequenceTest {
 protected:
  // Puts the first `blocks` blocks of Tokens(n) and a tail of two tokens behind them below the
  // pool.
  void PutBelow(uint32_t blocks) {
    kvt_hash_options options;
    kvt_hash_options_init(&options);
    options.block_tokens = kBlockTokens;
    const auto hashes = kvt::HashBlocks(Tokens(blocks * kBlockTokens + 2), options);
    ASSERT_TRUE(hashes);
    daemon_->WithCache([&](FakeCache* cache) {
      for (uint32_t i = 0; i <= blocks; ++i) {
        BlockHash hash;
        std::memcpy(hash.bytes.data(), (*hashes)[i].bytes, hash.bytes.size());
        cache->PutBelow(hash, i == 0 ? Tier::kHost : Tier::kDisk, i < blocks ? kBlockTokens : 2,
                        std::byte(i + 1));
      }
    });
  }
};

TEST_F(SequenceLoadTest, IsReadyWhenItsPrefixHasBeenLoaded) {
  PutBelow(2);
  auto sequence = pool_->OpenSequence(Tokens(11));
  ASSERT_TRUE(sequence) << sequence.error().ToString();
  EXPECT_EQ(sequence->Info().ready, 0);
  EXPECT_EQ(sequence->BlockTable().error().code, KVT_WRONG_STATE);
  EXPECT_EQ(sequence->Append(Tokens(1)).error().code, KVT_WRONG_STATE);
  EXPECT_EQ(sequence->Wait(0).error().code, KVT_TIMEOUT);
  daemon_->Progress(LoadId{1}, 3, true);
  ASSERT_TRUE(sequence->Wait());
  const kvt_sequence_info info = sequence->Info();
  EXPECT_EQ(info.ready, 1);
  EXPECT_EQ(info.cached_tokens, 10u);
  EXPECT_EQ(info.host_tokens, 4u);
  EXPECT_EQ(info.disk_tokens, 6u);
  EXPECT_EQ(*Slot(*sequence, 0), std::byte{1});
  EXPECT_EQ(*Slot(*sequence, 9), std::byte{3});
}

TEST_F(SequenceLoadTest, CanBeWaitedForHoweverManyLoadsHaveEndedSince) {
  constexpr uint64_t kMoreThanAreRemembered = 4097;
  PutBelow(2);
  auto sequence = pool_->OpenSequence(Tokens(11));
  ASSERT_TRUE(sequence) << sequence.error().ToString();
  daemon_->Progress(LoadId{1}, 2, true);
  daemon_->WithCache([&](FakeCache* cache) {
    cache->PutBelow(WireHash(1), Tier::kHost, kBlockTokens, std::byte{1});
  });
  for (uint64_t i = 0; i < kMoreThanAreRemembered; ++i) {
    auto acquired = pool_->Acquire(Hashes(1, 1));
    ASSERT_TRUE(acquired) << acquired.error().ToString();
    daemon_->Progress(LoadId{acquired->load.id}, 1, true);
    const uint32_t block = acquired->hits[0].index;
    ASSERT_TRUE(pool_->Release(acquired->hits.Take()));
    ASSERT_TRUE(connection_->Ping());
    daemon_->WithCache([&](FakeCache* cache) { cache->Sink(block); });
  }
  ASSERT_TRUE(sequence->Wait());
  EXPECT_EQ(sequence->cached_tokens(), 8u);
}

TEST_F(SequenceLoadTest, ShrinksToWhatCouldBeLoaded) {
  PutBelow(2);
  auto sequence = pool_->OpenSequence(Tokens(11));
  ASSERT_TRUE(sequence);
  daemon_->Progress(LoadId{1}, 1, true, KVT_MISS_READ_ERROR);
  ASSERT_TRUE(sequence->Wait());
  const kvt_sequence_info info = sequence->Info();
  EXPECT_EQ(info.cached_tokens, 4u);
  EXPECT_EQ(info.computed_tokens, 4u);
  EXPECT_EQ(info.host_tokens, 4u);
  EXPECT_EQ(info.disk_tokens, 0u);
  EXPECT_EQ(info.miss, KVT_MISS_READ_ERROR);
  const auto table = *sequence->BlockTable();
  EXPECT_EQ(std::set<int32_t>(table.begin(), table.end()).size(), 3u);
  EXPECT_EQ(References(), 3u);
}

TEST_F(SequenceLoadTest, LosingEverythingLeavesASequenceToCompute) {
  PutBelow(2);
  auto sequence = pool_->OpenSequence(Tokens(11));
  ASSERT_TRUE(sequence);
  daemon_->Progress(LoadId{1}, 0, true, KVT_MISS_COPY_FAILED);
  ASSERT_TRUE(sequence->Wait());
  EXPECT_EQ(sequence->cached_tokens(), 0u);
  EXPECT_EQ(sequence->BlockTable()->size(), 3u);
  EXPECT_EQ(References(), 3u);
  EXPECT_TRUE(connection_->TakeErrors().empty());
}

TEST_F(SequenceLoadTest, ClosedWhileLoadingItGivesEverythingBack) {
  PutBelow(2);
  ASSERT_TRUE(pool_->OpenSequence(Tokens(11)));
  EXPECT_EQ(References(), 0u);
}

TEST_F(SequenceTest, AHitOfAnotherLengthThanAskedForIsNotUsed) {
  kvt_hash_options options;
  kvt_hash_options_init(&options);
  options.block_tokens = kBlockTokens;
  const auto hashes = kvt::HashBlocks(Tokens(8), options);
  daemon_->WithCache([&](FakeCache* cache) {
    BlockHash hash;
    std::memcpy(hash.bytes.data(), (*hashes)[0].bytes, hash.bytes.size());
    cache->PutBelow(hash, Tier::kHost, kBlockTokens - 1, std::byte{1});
  });
  auto sequence = pool_->OpenSequence(Tokens(9));
  ASSERT_TRUE(sequence);
  EXPECT_EQ(sequence->cached_tokens(), 0u);
  daemon_->Progress(LoadId{1}, 1, true);
  ASSERT_TRUE(sequence->Wait());
  EXPECT_EQ(References(), 3u);
}

TEST_F(SequenceTest, ALostConnectionLosesTheSequence) {
  auto sequence = pool_->OpenSequence(Tokens(6));
  ASSERT_TRUE(sequence);
  std::byte* slot = Slot(*sequence, 5);
  EXPECT_TRUE(sequence->Check());
  daemon_->DropClient();
  EXPECT_EQ(sequence->Check().error().code, KVT_STALE_HANDLE);
  EXPECT_EQ(sequence->Append(Tokens(1)).error().reason, "connection_lost");
  EXPECT_EQ(sequence->MarkComputed(6).error().code, KVT_STALE_HANDLE);
  EXPECT_EQ(sequence->Finish().error().code, KVT_STALE_HANDLE);
  EXPECT_EQ(sequence->Fork().error().code, KVT_STALE_HANDLE);
  *slot = std::byte{1};  // does not fault
  // A new one works over a new connection, and the old one stays lost.
  EXPECT_TRUE(pool_->OpenSequence(Tokens(6)));
  EXPECT_EQ(sequence->Check().error().code, KVT_STALE_HANDLE);
}

TEST_F(SequenceTest, WithoutADaemonThereIsNoSequence) {
  daemon_.reset();
  EXPECT_TRUE(pool_->OpenSequence(Tokens(6)).error().unavailable());
}

}  // namespace
}  // namespace kvtier::client
