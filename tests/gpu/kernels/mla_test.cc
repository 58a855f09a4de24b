// SPDX-License-Identifier: Apache-2.0
// MLA decode on the device against the reference.
#include "kvtier/mla.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/reference/number_format.h"
#include "tests/gpu/kernels/graph_replay.h"
#include "tests/gpu/kernels/mla_problem.h"

namespace kvtier::kernels {
namespace {

const std::vector<int32_t> kOddLengths = {1, 5, 17, 37, 63, 64, 65, 127, 129, 577, 1328, 2011};

void ExpectRight(const MlaSetup& setup) {
  MlaProblem problem(setup);
  problem.ExpectRight(problem.Run());
}

TEST(MlaDecode, IsRightAtOddLengths) {
  KVT_SKIP_WITHOUT_HOPPER();
  ExpectRight({.lengths = kOddLengths});
}

TEST(MlaDecode, ServesEveryNumberOfHeads) {
  KVT_SKIP_WITHOUT_HOPPER();
  for (const int32_t heads : {1, 8, 16, 20, 64, 65, 100, 128}) {
    SCOPED_TRACE(heads);
    ExpectRight({.lengths = {3, 200, 130}, .q_heads = heads});
  }
}

TEST(MlaDecode, ServesEveryPageAndType) {
  KVT_SKIP_WITHOUT_HOPPER();
  for (const int32_t page : {16, 32, 64, 128, 256}) {
    for (const kvt_dtype dtype : {KVT_BF16, KVT_FP16}) {
      SCOPED_TRACE(testing::Message() << "page " << page << " type " << dtype);
      ExpectRight({.lengths = {1, 67, 300, 513}, .dtype = dtype, .page = page});
    }
  }
}

TEST(MlaDecode, IsRightOverAnFp8CacheWithScalesOfEveryKind) {
  KVT_SKIP_WITHOUT_HOPPER();
  for (const LatentScales scales :
       {LatentScales::kNone, LatentScales::kPerTensor, LatentScales::kPerToken}) {
    SCOPED_TRACE(static_cast<int>(scales));
    ExpectRight({.lengths = kOddLengths, .fp8 = true, .scales = scales});
  }
}

TEST(MlaDecode, ServesEveryNumberOfHeadsPageAndTypeOverAnFp8Cache) {
  KVT_SKIP_WITHOUT_HOPPER();
  for (const int32_t heads : {1, 16, 20, 64, 65, 128}) {
    for (const int32_t page : {16, 64, 256}) {
      SCOPED_TRACE(testing::Message() << heads << " heads, page " << page);
      ExpectRight({.lengths = {3, 200, 0, 130},
                   .dtype = heads % 2 == 0 ? KVT_BF16 : KVT_FP16,
                   .fp8 = true,
                   .scales = page == 64 ? LatentScales::kPerTensor : LatentScales::kPerToken,
                   .q_heads = heads,
                   .page = page});
    }
  }
}

TEST(MlaDecode, MergesAndRepeatsToTheBitOverAnFp8Cache) {
  KVT_SKIP_WITHOUT_HOPPER();
  for (const int32_t heads : {4, 128}) {
    SCOPED_TRACE(heads);
    MlaProblem problem({.lengths = {3, 9001, 20, 1},
                        .fp8 = true,
                        .scales = LatentScales::kPerToken,
                        .q_heads = heads});
    const MlaResult first = problem.Run();
    problem.ExpectRight(first);
    for (int i = 0; i < 50; ++i) ASSERT_TRUE(problem.Run().output == first.output);
  }
}

TEST(MlaDecode, ServesMoreSequencesThanTheGpuHasBlocksOverAnFp8Cache) {
  KVT_SKIP_WITHOUT_HOPPER();
  std::vector<int32_t> lengths;
  for (int32_t i = 0; i < 300; ++i) lengths.push_back(i * 37 % 150);
  ExpectRight({.lengths = lengths, .fp8 = true, .scales = LatentScales::kPerTensor, .q_heads = 4});
}

TEST(MlaDecode, GivesZerosForEmptySequencesAmongOthers) {
  KVT_SKIP_WITHOUT_HOPPER();
  ExpectRight({.lengths = {0, 40, 0, 0, 333, 0}});
  ExpectRight({.lengths = {0, 0}, .q_heads = 128});
}

TEST(MlaDecode, ServesMoreSequencesThanTheGpuHasBlocks) {
  KVT_SKIP_WITHOUT_HOPPER();
  std::vector<int32_t> lengths;
  for (int32_t i = 0; i < 300; ++i) lengths.push_back(i * 37 % 150);
  ExpectRight({.lengths = lengths, .q_heads = 4});
}

TEST(MlaDecode, MergesTheManyPartsOfALongSequence) {
  KVT_SKIP_WITHOUT_HOPPER();
  for (const int32_t heads : {4, 66}) {
    SCOPED_TRACE(heads);
    ExpectRight({.lengths = {3, 9001, 20, 1}, .q_heads = heads});
  }
}

// The long sequence's first head, and nothing else, whether few or many parts are merged, or none.
TEST(MlaDecode, GivesNanWhereAQueryIs) {
  KVT_SKIP_WITHOUT_HOPPER();
  for (const bool fp8 : {false, true}) {
    for (const int32_t heads : {4, 66}) {
      for (const int32_t split_tokens : {0, 256, 2048, 16384}) {
        SCOPED_TRACE(testing::Message() << heads << " heads, cut at " << split_tokens);
        MlaProblem problem({.lengths = {3, 9001},
                            .fp8 = fp8,
                            .scales = fp8 ? LatentScales::kPerTensor : LatentScales::kNone,
                            .q_heads = heads,
                            .split_tokens = split_tokens});
        MakeNan16(problem.params().query, problem.params().query_sequence_stride);
        const MlaResult result = problem.Run();
        int64_t wrong = 0;
        for (int64_t i = 0; i < 2 * heads; ++i) {
          const int64_t row = i / heads * (heads + 1) + i % heads;
          for (int64_t d = 0; d < KVT_MLA_LATENT_DIM; ++d) {
            const float value =
                LoadElement(result.output.data(), KVT_BF16, row * KVT_MLA_LATENT_DIM + d);
            wrong += std::isnan(value) != (i == heads);
          }
          wrong += std::isnan(result.lse[i]) != (i == heads);
        }
        EXPECT_EQ(wrong, 0);
      }
    }
  }
}

TEST(MlaDecode, GivesTheSameWhereverSequencesAreCut) {
  KVT_SKIP_WITHOUT_HOPPER();
  for (const int32_t split_tokens : {0, 256, 512, 4096}) {
    SCOPED_TRACE(split_tokens);
    ExpectRight({.lengths = {2011, 0, 16, 900}, .split_tokens = split_tokens});
  }
}

TEST(MlaDecode, WithFixedCutsGivesTheSameBitsInAnyBatch) {
  KVT_SKIP_WITHOUT_HOPPER();
  MlaProblem problem({.lengths = {1500, 40, 3000, 7}, .split_tokens = 256});
  const MlaResult together = problem.Run();
  problem.params().sequences.sequences = 1;
  const MlaResult alone = problem.Run();
  const size_t row = size_t{16} * KVT_MLA_LATENT_DIM;
  EXPECT_TRUE(
      std::equal(alone.output.begin(), alone.output.begin() + row, together.output.begin()));
}

TEST(MlaDecode, GivesTheSameBitsEveryTime) {
  KVT_SKIP_WITHOUT_HOPPER();
  MlaProblem problem({.lengths = {5000, 1, 77, 1200}, .q_heads = 128});
  const MlaResult first = problem.Run();
  for (int i = 0; i < 50; ++i) {
    const MlaResult again = problem.Run();
    ASSERT_TRUE(again.output == first.output);
    ASSERT_TRUE(again.lse == first.lse);
  }
}

TEST(MlaDecode, ReachesBlocksBeyondTwoToTheThirtyFirstElements) {
  KVT_SKIP_WITHOUT_HOPPER();
  ExpectRight({.lengths = {60, 130}, .device_block_stride = int64_t{1} << 29});
  ExpectRight({.lengths = {60, 130}, .fp8 = true, .device_block_stride = int64_t{1} << 30});
}

TEST(MlaDecode, ReplaysOneGraphForOtherLengths) {
  KVT_SKIP_WITHOUT_HOPPER();
  for (const int32_t settled : {0, 1, 2}) {
    MlaProblem problem({.lengths = {10, 20, 30}, .fp8 = settled == 2, .max_length = 1500});
    problem.params().tables_settled = settled;
    GraphReplay replay([&](cudaStream_t stream) {
      for (int i = 0; i < 3; ++i) problem.Queue(stream);
    });
    for (const std::vector<int32_t>& lengths : std::vector<std::vector<int32_t>>{
             {1500, 0, 1}, {64, 65, 1499}, {0, 0, 0}, {700, 1500, 1500}}) {
      problem.SetLengths(lengths);
      problem.PoisonOutput();
      replay.Launch();
      problem.ExpectRight(problem.Read());
    }
  }
}

TEST(MlaDecode, RefusesWhatItWasNotBuiltFor) {
  KVT_SKIP_WITHOUT_HOPPER();
  MlaProblem problem({.lengths = {20}});
  const auto status = [&](const kvt_mla_decode_params& params, size_t bytes) {
    return kvt_mla_decode(&params, problem.workspace(), bytes, nullptr);
  };
  const size_t bytes = problem.workspace_bytes();
  EXPECT_EQ(kvt_mla_decode(nullptr, nullptr, 0, nullptr), KVT_KERNEL_INVALID_ARGUMENT);
  kvt_mla_decode_params params = problem.params();
  EXPECT_EQ(status(params, bytes - 1), KVT_KERNEL_WORKSPACE_TOO_SMALL);
  params.q_heads = 129;
  EXPECT_EQ(status(params, bytes), KVT_KERNEL_UNSUPPORTED);
  EXPECT_EQ(kvt_mla_decode_workspace_bytes(&params), 0U);
  params = problem.params();
  params.dtype = KVT_FP8_E4M3;
  EXPECT_EQ(status(params, bytes), KVT_KERNEL_UNSUPPORTED);
  params = problem.params();
  params.latent_dtype = KVT_FP16;
  EXPECT_EQ(status(params, bytes), KVT_KERNEL_UNSUPPORTED);
  params.latent_dtype = KVT_FP8_E4M3;
  params.token_stride = KVT_MLA_QUERY_DIM + 8;  // not 16 bytes
  EXPECT_EQ(status(params, bytes), KVT_KERNEL_INVALID_ARGUMENT);
  params = problem.params();
  params.page_tokens = 24;
  EXPECT_EQ(status(params, bytes), KVT_KERNEL_INVALID_ARGUMENT);
  params = problem.params();
  params.split_tokens = 300;
  EXPECT_EQ(status(params, bytes), KVT_KERNEL_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace kvtier::kernels
