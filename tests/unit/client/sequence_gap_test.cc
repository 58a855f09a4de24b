// SPDX-License-Identifier: Apache-2.0
// Sequences whose prefix has a gap, to be computed while what follows it is loaded.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "tests/unit/client/client_fixture.h"

namespace kvtier::client {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::SizeIs;

auto Range(uint64_t first, uint64_t end) {
  return AllOf(Field(&kvt_token_range::first, first), Field(&kvt_token_range::end, end));
}

class SequenceGapTest : public ClientFixture {
 protected:
  static constexpr uint32_t kTokens = 26;

  // The first of the prompt's six full blocks is in the pool, and the others are on disk.
  void SetUp() override {
    ClientFixture::SetUp();
    Attach();
    {
      auto head = pool_->OpenSequence(Tokens(kBlockTokens + 1));
      ASSERT_TRUE(head);
      std::memset(Slot(*head, 0), 1, 1);
      ASSERT_TRUE(head->MarkComputed(kBlockTokens));
    }
    ASSERT_TRUE(connection_->Flush());
    kvt_hash_options options;
    kvt_hash_options_init(&options);
    options.block_tokens = kBlockTokens;
    const auto hashes = *kvt::HashBlocks(Tokens(kTokens - 2), options);
    daemon_->WithCache([&](FakeCache* cache) {
      for (size_t i = 1; i < hashes.size(); ++i) {
        BlockHash hash;
        std::memcpy(hash.bytes.data(), hashes[i].bytes, hash.bytes.size());
        cache->PutBelow(hash, Tier::kDisk, kBlockTokens, std::byte(i + 1));
      }
      cache->LeaveGap(1, 2);
    });
    ASSERT_TRUE(pool_->SetComputeCost(10, 0.5, 100));
  }

  [[nodiscard]] kvt::Sequence Open() {
    kvt_sequence_options options;
    kvt_sequence_options_init(&options);
    options.plan = KVT_PLAN_BOTH_ENDS;
    return *pool_->OpenSequence(Tokens(kTokens), &options);
  }
  [[nodiscard]] std::byte* Slot(const kvt::Sequence& sequence, uint64_t token) {
    const int64_t slot = (*sequence.SlotMapping(token, 1))[0];
    return static_cast<std::byte*>(sequence.Info().base) +
           slot / kBlockTokens * static_cast<int64_t>(pool_->Info().block_bytes) +
           slot % kBlockTokens;
  }
  // Computes what there is to compute in [first, end), each token of block i being i + 1.
  void Compute(const kvt::Sequence& sequence, uint64_t first, uint64_t end) {
    for (uint64_t i = first; i < end; ++i) {
      *Slot(sequence, i) = std::byte(i / kBlockTokens + 1);
    }
  }
  void ExpectBytes(const kvt::Sequence& sequence, uint64_t end) {
    for (uint64_t i = 0; i < end; i += kBlockTokens) {
      EXPECT_EQ(*Slot(sequence, i), std::byte(i / kBlockTokens + 1)) << "token " << i;
    }
  }
  [[nodiscard]] uint32_t References() {
    uint32_t count = 0;
    daemon_->WithCache([&](FakeCache* cache) { count = cache->references(); });
    return count;
  }
};

TEST_F(SequenceGapTest, TheGapIsComputedWhileTheRestIsLoaded) {
  kvt::Sequence sequence = Open();
  EXPECT_EQ(sequence.Info().ready, 0);
  EXPECT_THAT(*sequence.ComputeRanges(), ElementsAre(Range(4, 12), Range(24, kTokens)));
  EXPECT_THAT(*sequence.BlockTable(), SizeIs(3)) << "up to the gap's end";
  EXPECT_EQ(sequence.SlotMapping(12, 1).error().code, KVT_WRONG_STATE);
  Compute(sequence, 4, 12);
  ASSERT_TRUE(sequence.MarkComputed(12));
  EXPECT_EQ(sequence.MarkComputed(13).error().code, KVT_WRONG_STATE);
  daemon_->Progress(LoadId{1}, 4, true);
  ASSERT_TRUE(sequence.Wait());
  EXPECT_THAT(*sequence.ComputeRanges(), ElementsAre(Range(24, kTokens)));
  EXPECT_EQ(sequence.Info().computed_tokens, 24u);
  EXPECT_EQ(sequence.cached_tokens(), 16u);
  EXPECT_EQ(sequence.Info().disk_tokens, 12u);
  EXPECT_THAT(*sequence.BlockTable(), SizeIs(7));
  ExpectBytes(sequence, 24);
  Compute(sequence, 24, kTokens);
  EXPECT_TRUE(sequence.MarkComputed(kTokens));
}

TEST_F(SequenceGapTest, TheGapMayAlsoBeComputedAfterTheWait) {
  kvt::Sequence sequence = Open();
  daemon_->Progress(LoadId{1}, 4, true);
  ASSERT_TRUE(sequence.Wait());
  EXPECT_THAT(*sequence.ComputeRanges(), ElementsAre(Range(4, 12), Range(24, kTokens)));
  EXPECT_EQ(sequence.Fork().error().reason, "gap_not_computed");
  Compute(sequence, 4, 12);
  Compute(sequence, 24, kTokens);
  ASSERT_TRUE(sequence.MarkComputed(kTokens));
  EXPECT_TRUE(sequence.ComputeRanges()->empty());
  ExpectBytes(sequence, kTokens);
  EXPECT_TRUE(sequence.Finish());
  EXPECT_TRUE(connection_->TakeErrors().empty());
}

TEST_F(SequenceGapTest, WhatFailsBehindAComputedGapIsComputedAsWell) {
  kvt::Sequence sequence = Open();
  Compute(sequence, 4, 12);
  ASSERT_TRUE(sequence.MarkComputed(12));
  daemon_->Progress(LoadId{1}, 2, true, KVT_MISS_READ_ERROR);
  ASSERT_TRUE(sequence.Wait());
  EXPECT_THAT(*sequence.ComputeRanges(), ElementsAre(Range(16, kTokens)));
  EXPECT_EQ(sequence.Info().miss, KVT_MISS_READ_ERROR);
  Compute(sequence, 16, kTokens);
  ExpectBytes(sequence, kTokens);
  EXPECT_TRUE(sequence.MarkComputed(kTokens));
  EXPECT_EQ(References(), 7u);
}

TEST_F(SequenceGapTest, WhereAllBehindTheGapFailsTheGapGoesOn) {
  kvt::Sequence sequence = Open();
  Compute(sequence, 4, 8);
  ASSERT_TRUE(sequence.MarkComputed(8));
  daemon_->Progress(LoadId{1}, 1, true, KVT_MISS_CHECKSUM_MISMATCH);
  ASSERT_TRUE(sequence.Wait());
  EXPECT_THAT(*sequence.ComputeRanges(), ElementsAre(Range(8, kTokens)));
  EXPECT_EQ(sequence.cached_tokens(), 4u);
  Compute(sequence, 8, kTokens);
  ExpectBytes(sequence, kTokens);
  EXPECT_TRUE(sequence.MarkComputed(kTokens));
  EXPECT_EQ(References(), 7u);
}

TEST_F(SequenceGapTest, AComputedGapStaysWhereAllBehindItFails) {
  kvt::Sequence sequence = Open();
  Compute(sequence, 4, 12);
  ASSERT_TRUE(sequence.MarkComputed(12));
  daemon_->Progress(LoadId{1}, 1, true, KVT_MISS_READ_ERROR);
  ASSERT_TRUE(sequence.Wait());
  EXPECT_THAT(*sequence.ComputeRanges(), ElementsAre(Range(12, kTokens)));
  ExpectBytes(sequence, 12);
}

TEST_F(SequenceGapTest, WhatComesBeforeTheGapIsNotTakenBack) {
  kvt::Sequence sequence = Open();
  daemon_->Progress(LoadId{1}, 0, true, KVT_MISS_READ_ERROR);
  ASSERT_TRUE(sequence.Wait());
  EXPECT_THAT(*sequence.ComputeRanges(), ElementsAre(Range(4, kTokens)));
  EXPECT_EQ(sequence.cached_tokens(), 4u);
  Compute(sequence, 4, kTokens);
  ExpectBytes(sequence, kTokens);
  EXPECT_TRUE(sequence.MarkComputed(kTokens));
  EXPECT_EQ(References(), 7u);
}

TEST_F(SequenceGapTest, ClosingGivesEverythingBack) {
  (void)Open();
  ASSERT_TRUE(connection_->Flush());
  EXPECT_EQ(References(), 0u);
}

TEST_F(SequenceGapTest, WithoutAPlanThereIsNoGap) {
  const auto sequence = pool_->OpenSequence(Tokens(kTokens));
  ASSERT_TRUE(sequence);
  EXPECT_THAT(*sequence->ComputeRanges(), ElementsAre(Range(24, kTokens)));
}

TEST_F(SequenceGapTest, ACostThatIsNoneIsRefused) {
  EXPECT_EQ(pool_->SetComputeCost(-1, 0, 0).error().reason, "bad_cost");
  EXPECT_EQ(pool_->SetComputeCost(0, 1e10, 0).error().reason, "bad_cost");
  EXPECT_EQ(pool_->SetComputeCost(0, 0, std::numeric_limits<double>::quiet_NaN()).error().reason,
            "bad_cost");
}

}  // namespace
}  // namespace kvtier::client
