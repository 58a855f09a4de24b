// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>

#include "decode_problem.h"
#include "kernels/reference/number_format.h"
#include "tests/gpu/kernels/device_array.h"
#include "tests/gpu/kernels/graph_replay.h"

namespace kvtier::kernels {
namespace {

class Decode : public testing::Test {
 protected:
  void SetUp() override { KVT_SKIP_WITHOUT_GPU(); }

  static void Synchronize() { EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess); }

  static void ExpectRight(const DecodeSetup& setup) {
    DecodeProblem problem(setup);
    problem.ExpectRight(problem.Run());
  }
};

const std::vector<int32_t> kOddLengths = {1, 5, 17, 37, 127, 129, 577, 1328, 2011};

TEST_F(Decode, IsRightAtOddLengths) {
  ExpectRight({.lengths = kOddLengths});
  ExpectRight({.lengths = kOddLengths, .query_dtype = KVT_FP16, .kv_dtype = KVT_FP16});
  ExpectRight({.lengths = kOddLengths, .kv_dtype = KVT_FP8_E4M3});
}

TEST_F(Decode, IsRightForEveryHeadCombination) {
  for (const auto& [q_heads, kv_heads] : std::vector<std::pair<int, int>>{
           {4, 4}, {8, 2}, {32, 8}, {40, 40}, {64, 8}, {32, 4}, {7, 1}, {24, 2}, {16, 1}}) {
    for (const kvt_dtype kv : {KVT_BF16, KVT_FP8_E4M3}) {
      SCOPED_TRACE(testing::Message() << q_heads << "/" << kv_heads << ", type " << kv);
      ExpectRight(
          {.lengths = {37, 129, 700}, .kv_dtype = kv, .q_heads = q_heads, .kv_heads = kv_heads});
    }
  }
}

// Query type, cache type, head size.
class DecodeTypes : public Decode,
                    public testing::WithParamInterface<std::tuple<kvt_dtype, kvt_dtype, int>> {};

TEST_P(DecodeTypes, AreRightForEveryPage) {
  const auto [query, kv, head_dim] = GetParam();
  for (const int page : {16, 32, 64, 128, 256}) {
    for (const int q_heads : {8, 24}) {
      SCOPED_TRACE(testing::Message() << "page " << page << ", heads " << q_heads);
      ExpectRight({.lengths = {1, 67, 300, 513},
                   .query_dtype = query,
                   .kv_dtype = kv,
                   .q_heads = q_heads,
                   .kv_heads = 2,
                   .head_dim = head_dim,
                   .page = page});
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Bf16, DecodeTypes,
                         testing::Combine(testing::Values(KVT_BF16),
                                          testing::Values(KVT_BF16, KVT_FP8_E4M3),
                                          testing::Values(64, 128, 256)));
INSTANTIATE_TEST_SUITE_P(Fp16, DecodeTypes,
                         testing::Combine(testing::Values(KVT_FP16),
                                          testing::Values(KVT_FP16, KVT_FP8_E4M3),
                                          testing::Values(64, 128, 256)));

TEST_F(Decode, GivesZerosForEmptySequencesAmongOthers) {
  ExpectRight({.lengths = {0, 40, 0, 0, 333, 0}});
}

TEST_F(Decode, GivesZerosIfAllSequencesAreEmpty) { ExpectRight({.lengths = {0, 0, 0}}); }

TEST_F(Decode, ServesMoreSequencesThanTheGpuHasBlocks) {
  std::vector<int32_t> lengths;
  for (int i = 0; i < 400; ++i) lengths.push_back((i * 37) % 150);
  ExpectRight({.lengths = lengths, .q_heads = 4, .kv_heads = 4});
}

TEST_F(Decode, MergesTheManyPartsOfALongSequence) {
  for (const int head_dim : {64, 128, 256}) {
    for (const int q_heads : {2, 16}) {
      SCOPED_TRACE(testing::Message() << "head size " << head_dim << ", heads " << q_heads);
      ExpectRight(
          {.lengths = {3, 9000, 20, 1}, .q_heads = q_heads, .kv_heads = 1, .head_dim = head_dim});
    }
  }
}

TEST_F(Decode, ServesStepsOfManyLongSequences) {
  std::vector<int32_t> lengths = {9000, 0, 7001};
  for (int i = 0; i < 60; ++i) lengths.push_back(500 + 37 * i);
  DecodeProblem problem(
      {.lengths = lengths, .q_heads = 4, .kv_heads = 4, .head_dim = 64, .page = 32});
  const DecodeResult first = problem.Run();
  problem.ExpectRight(first);
  for (int i = 0; i < 10; ++i) ASSERT_EQ(problem.Run().bits, first.bits);
}

TEST_F(Decode, IsRightWithScales) {
  for (const ScaleKind scales :
       {ScaleKind::kPerTensor, ScaleKind::kPerHead, ScaleKind::kPerToken}) {
    for (const int head_dim : {64, 128, 256}) {
      for (const int split_tokens : {0, 256}) {
        SCOPED_TRACE(testing::Message() << "scales " << static_cast<int>(scales) << ", head size "
                                        << head_dim << ", split " << split_tokens);
        ExpectRight({.lengths = {5, 129, 700, 2011},
                     .kv_dtype = KVT_FP8_E4M3,
                     .head_dim = head_dim,
                     .split_tokens = split_tokens,
                     .scales = scales});
      }
    }
  }
}

TEST_F(Decode, SeesOnlyTheWindow) {
  for (const int window : {1, 16, 33, 500}) {
    for (const kvt_dtype kv : {KVT_BF16, KVT_FP8_E4M3}) {
      SCOPED_TRACE(testing::Message() << "window " << window << ", type " << kv);
      ExpectRight({.lengths = kOddLengths, .kv_dtype = kv, .window_tokens = window});
      ExpectRight(
          {.lengths = kOddLengths, .kv_dtype = kv, .split_tokens = 256, .window_tokens = window});
    }
  }
}

TEST_F(Decode, CapsScores) { ExpectRight({.lengths = kOddLengths, .soft_cap = 5.0F}); }

TEST_F(Decode, GivesSinksTheirWeight) {
  ExpectRight({.lengths = {0, 1, 129, 2011}, .sinks = true});
  ExpectRight({.lengths = {0, 1, 129, 2011}, .split_tokens = 256, .sinks = true});
}

TEST_F(Decode, ServesSequencesThatShareBlocks) {
  ExpectRight({.lengths = {700, 300, 700, 16}, .shared_tokens = 700, .max_length = 700});
}

TEST_F(Decode, ServesTablesThatRepeatABlock) {
  for (const kvt_dtype kv : {KVT_BF16, KVT_FP8_E4M3}) {
    ExpectRight({.lengths = {700, 160, 16, 1}, .kv_dtype = kv, .repeated_blocks = true});
  }
}

TEST_F(Decode, ReadsOtherLayouts) {
  for (const kvt_dtype kv : {KVT_BF16, KVT_FP8_E4M3}) {
    for (const int page : {16, 128}) {
      for (const RowOrder rows : {RowOrder::kHeadToken, RowOrder::kInterleaved}) {
        ExpectRight({.lengths = kOddLengths, .kv_dtype = kv, .page = page, .rows = rows});
      }
    }
  }
}

TEST_F(Decode, ReachesBlocksBeyondTwoToThe31Elements) {
  // 8 pages of 2^29 elements.
  for (const kvt_dtype kv : {KVT_BF16, KVT_FP8_E4M3}) {
    ExpectRight({.lengths = {60, 17}, .kv_dtype = kv, .device_block_stride = int64_t{1} << 29});
  }
}

// The second sequence's first head, and nothing else.
TEST_F(Decode, GivesNanWhereAQueryIs) {
  for (const kvt_dtype kv : {KVT_BF16, KVT_FP8_E4M3}) {
    for (const int split_tokens : {0, 256, 16384}) {
      SCOPED_TRACE(testing::Message() << "type " << kv << ", cut at " << split_tokens);
      DecodeProblem problem({.lengths = {3, 9001}, .kv_dtype = kv, .split_tokens = split_tokens});
      const kvt_decode_params& params = problem.params();
      MakeNan16(params.query, params.query_sequence_stride);
      const DecodeResult result = problem.Run();
      const int dim = params.kv.head_dim;
      int wrong = 0;
      for (int i = 0; i < 2 * params.q_heads * dim; ++i) {
        const bool is_nan = std::isnan(LoadElement(result.bits.data(), KVT_BF16, i));
        wrong += is_nan != (i / dim == params.q_heads);
      }
      for (int i = 0; i < 2 * params.q_heads; ++i) {
        wrong += std::isnan(result.lse[i]) != (i == params.q_heads);
      }
      EXPECT_EQ(wrong, 0);
    }
  }
}

TEST_F(Decode, GivesTheSameWhereverSequencesAreCut) {
  DecodeSetup setup = {.lengths = {2011, 16, 900}, .q_heads = 32, .kv_heads = 8};
  for (const int split_tokens : {0, 256, 512, 1024, 4096}) {
    SCOPED_TRACE(split_tokens);
    setup.split_tokens = split_tokens;
    ExpectRight(setup);
  }
}

TEST_F(Decode, WithFixedCutsGivesTheSameBitsInAnyBatch) {
  // Sequence 0 of both has the same blocks and queries; the second is alone.
  DecodeSetup setup = {.lengths = {1500, 40, 3000, 7}, .split_tokens = 256, .max_length = 3000};
  DecodeProblem problem(setup);
  const DecodeResult together = problem.Run();
  problem.params().sequences.sequences = 1;
  const DecodeResult alone = problem.Run();
  const size_t row = static_cast<size_t>(setup.q_heads) * setup.head_dim;
  EXPECT_TRUE(std::equal(alone.bits.begin(), alone.bits.begin() + row, together.bits.begin()));
}

TEST_F(Decode, GivesTheSameBitsEveryTime) {
  DecodeProblem problem({.lengths = {5000, 1, 77}, .q_heads = 32, .kv_heads = 8});
  const DecodeResult first = problem.Run();
  for (int i = 0; i < 20; ++i) {
    const DecodeResult again = problem.Run();
    ASSERT_EQ(again.bits, first.bits);
    ASSERT_EQ(again.lse, first.lse);
  }
}

TEST_F(Decode, ReplaysInAGraphWithOtherLengths) {
  DecodeProblem problem({.lengths = {10, 20, 30}, .max_length = 1500});
  DeviceBuffer& workspace = problem.workspace();
  GraphReplay replay([&](cudaStream_t stream) {
    EXPECT_EQ(kvt_decode(&problem.params(), workspace.get(), workspace.bytes(), stream),
              KVT_KERNEL_OK);
  });
  for (const std::vector<int32_t>& lengths : std::vector<std::vector<int32_t>>{
           {1500, 0, 1}, {64, 65, 1499}, {0, 0, 0}, {700, 1500, 1500}}) {
    problem.SetLengths(lengths);
    problem.PoisonOutput();
    replay.Launch();
    problem.ExpectRight(problem.ReadResult());
  }
}

TEST_F(Decode, ReadsWhatThePreviousLaunchWrote) {
  // Each launch's output is the next one's query: a launch that ran ahead would see old queries.
  DecodeProblem problem({.lengths = {3000, 900, 5}, .q_heads = 32, .kv_heads = 8});
  DeviceBuffer& workspace = problem.workspace();
  const auto run_chain = [&](int settled, bool wait) {
    kvt_decode_params params = problem.params();
    params.tables_settled = settled;
    problem.PoisonOutput();
    for (int i = 0; i < 12; ++i) {
      EXPECT_EQ(kvt_decode(&params, workspace.get(), workspace.bytes(), nullptr), KVT_KERNEL_OK);
      if (wait) Synchronize();
      params.query = params.output;
    }
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    return problem.ReadResult().bits;
  };
  const std::vector<uint16_t> expected = run_chain(0, true);
  EXPECT_EQ(run_chain(0, false), expected);
  EXPECT_EQ(run_chain(1, false), expected);
}

TEST(DecodeParameters, AreCheckedBeforeAnythingIsQueued) {
  KVT_SKIP_WITHOUT_GPU();
  DecodeProblem problem({.lengths = {20}});
  const kvt_decode_params good = problem.params();
  DeviceBuffer& workspace = problem.workspace();
  const auto status = [&](const kvt_decode_params& params, size_t bytes) {
    return kvt_decode(&params, workspace.get(), bytes, nullptr);
  };
  EXPECT_EQ(status(good, workspace.bytes() - 1), KVT_KERNEL_WORKSPACE_TOO_SMALL);
  kvt_decode_params params = good;
  params.query = nullptr;
  EXPECT_EQ(status(params, workspace.bytes()), KVT_KERNEL_INVALID_ARGUMENT);
  params = good;
  params.kv.page_tokens = 24;
  EXPECT_EQ(status(params, workspace.bytes()), KVT_KERNEL_INVALID_ARGUMENT);
  params = good;
  params.split_tokens = 300;
  EXPECT_EQ(status(params, workspace.bytes()), KVT_KERNEL_INVALID_ARGUMENT);
  params = good;
  params.kv.head_dim = 96;
  EXPECT_EQ(status(params, workspace.bytes()), KVT_KERNEL_UNSUPPORTED);
  params = good;
  params.query_dtype = KVT_FP16;
  EXPECT_EQ(status(params, workspace.bytes()), KVT_KERNEL_UNSUPPORTED);
  EXPECT_EQ(kvt_decode(nullptr, workspace.get(), workspace.bytes(), nullptr),
            KVT_KERNEL_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace kvtier::kernels
