// SPDX-License-Identifier: Apache-2.0
// Prefill attention on the device against the reference.
#include "kvtier/prefill.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/reference/number_format.h"
#include "tests/gpu/kernels/graph_replay.h"
#include "tests/gpu/kernels/prefill_problem.h"

namespace kvtier::kernels {
namespace {

// Lengths next to every border of tiles and pages, and a sequence or two that are empty.
const std::vector<PrefillSequence> kOddSequences = {{1, 1},     {5, 17},    {37, 37},  {0, 40},
                                                    {127, 577}, {129, 129}, {3, 0},    {2, 256},
                                                    {16, 128},  {33, 1328}, {64, 2011}};

// The same with few tokens each: the kernel for short queries serves them.
const std::vector<PrefillSequence> kShortSequences = {{1, 1},     {5, 17},  {16, 37},  {0, 40},
                                                      {17, 577},  {9, 129}, {3, 0},    {2, 256},
                                                      {16, 1328}, {1, 900}, {12, 2501}};

constexpr PrefillScales kEveryScale[] = {PrefillScales::kPerTensor, PrefillScales::kPerHead,
                                         PrefillScales::kPerToken, PrefillScales::kOnlyOfValues};

void ExpectRight(const PrefillSetup& setup) {
  PrefillProblem problem(setup);
  problem.ExpectRight(problem.Run());
}

TEST(Prefill, MatchesTheReferenceForOddLengthsInOneLaunch) {
  KVT_SKIP_WITHOUT_GPU();
  ExpectRight({.sequences = kOddSequences});
  ExpectRight({.sequences = kOddSequences, .query_dtype = KVT_FP16, .kv_dtype = KVT_FP16});
  ExpectRight({.sequences = kOddSequences, .kv_dtype = KVT_FP8_E4M3});
}

TEST(Prefill, MatchesTheReferenceForOddSuffixes) {
  KVT_SKIP_WITHOUT_GPU();
  for (const kvt_dtype kv : {KVT_BF16, KVT_FP8_E4M3}) {
    ExpectRight({.sequences = {{1, 1}, {5, 5}, {17, 17}, {37, 37}, {127, 127}, {129, 129}},
                 .kv_dtype = kv,
                 .q_heads = 4,
                 .kv_heads = 2});
    ExpectRight({.sequences = {{577, 577}, {1328, 1328}, {577, 2011}},
                 .kv_dtype = kv,
                 .q_heads = 2,
                 .kv_heads = 1,
                 .head_dim = 64});
  }
}

// More than the device has multiprocessors, so that each works off several, some without keys.
TEST(Prefill, WorksOffOneShortSequenceAfterAnother) {
  KVT_SKIP_WITHOUT_GPU();
  std::vector<PrefillSequence> sequences;
  for (int32_t i = 0; i < 90; ++i) {
    sequences.push_back(i % 7 == 3 ? PrefillSequence{3, 0}
                                   : PrefillSequence{1 + i % 9, 10 + 3 * i});
  }
  for (const int32_t head_dim : {64, 128, 256}) {
    for (const kvt_dtype dtype : {KVT_BF16, KVT_FP8_E4M3}) {
      SCOPED_TRACE(testing::Message() << "dim " << head_dim << " type " << dtype);
      ExpectRight({.sequences = sequences,
                   .kv_dtype = dtype,
                   .q_heads = 8,
                   .kv_heads = 8,
                   .head_dim = head_dim});
    }
  }
}

TEST(Prefill, FollowsScoresThatGrowOrShrinkAlongTheKeys) {
  KVT_SKIP_WITHOUT_GPU();
  for (const kvt_dtype dtype : {KVT_BF16, KVT_FP8_E4M3}) {
    for (const float last_key_size : {0.05F, 20.0F}) {
      SCOPED_TRACE(testing::Message() << "type " << dtype << " last key " << last_key_size);
      ExpectRight({.sequences = {{64, 900}, {33, 1500}},
                   .kv_dtype = dtype,
                   .last_key_size = last_key_size});
    }
  }
}

TEST(Prefill, ServesEveryPageSize) {
  KVT_SKIP_WITHOUT_GPU();
  for (const int32_t page : {16, 32, 64, 128, 256}) {
    ExpectRight({.sequences = {{37, 577}, {129, 300}}, .page = page});
  }
}

TEST(Prefill, ServesEveryHeadSizeAndType) {
  KVT_SKIP_WITHOUT_GPU();
  for (const int32_t head_dim : {64, 128, 256}) {
    for (const kvt_dtype dtype : {KVT_BF16, KVT_FP16}) {
      SCOPED_TRACE(testing::Message() << "dim " << head_dim << " type " << dtype);
      ExpectRight({.sequences = {{37, 577}, {129, 300}},
                   .query_dtype = dtype,
                   .kv_dtype = dtype,
                   .head_dim = head_dim});
      ExpectRight({.sequences = {{37, 577}, {129, 300}},
                   .query_dtype = dtype,
                   .kv_dtype = KVT_FP8_E4M3,
                   .head_dim = head_dim});
    }
  }
}

TEST(Prefill, ServesEveryGroupOfHeads) {
  KVT_SKIP_WITHOUT_GPU();
  struct Heads {
    int32_t query, kv;
  };
  for (const Heads heads : {Heads{4, 4}, Heads{8, 2}, Heads{32, 8}, Heads{40, 40}, Heads{64, 8},
                            Heads{32, 4}, Heads{10, 2}, Heads{21, 3}}) {
    SCOPED_TRACE(testing::Message() << heads.query << "/" << heads.kv);
    for (const int32_t head_dim : {64, 128}) {
      for (const kvt_dtype kv : {KVT_BF16, KVT_FP8_E4M3}) {
        ExpectRight({.sequences = {{35, 133}, {2, 200}},
                     .kv_dtype = kv,
                     .q_heads = heads.query,
                     .kv_heads = heads.kv,
                     .head_dim = head_dim});
      }
    }
  }
}

TEST(Prefill, DoesNotDependOnTheNumberOfSplits) {
  KVT_SKIP_WITHOUT_GPU();
  for (const int32_t splits : {1, 2, 3, 7, 16, 64}) {
    SCOPED_TRACE(splits);
    ExpectRight({.sequences = kOddSequences, .splits = splits});
    ExpectRight({.sequences = {{9, 700}, {2, 0}}, .splits = splits, .sinks = true});
  }
}

TEST(Prefill, LeavesRowsBeforeTheFirstQueryAlone) {
  KVT_SKIP_WITHOUT_GPU();
  for (const int32_t splits : {1, 2}) {
    SCOPED_TRACE(splits);
    ExpectRight({.sequences = {{129, 300}, {5, 17}}, .first_query_start = 70, .splits = splits});
    ExpectRight({.sequences = {{16, 577}, {3, 64}}, .first_query_start = 3, .splits = splits});
  }
}

// The first query's first head, and nothing else.
TEST(Prefill, GivesNanWhereAQueryIs) {
  KVT_SKIP_WITHOUT_GPU();
  for (const int32_t splits : {1, 3}) {
    for (const int32_t query_tokens : {3, 400}) {
      for (const kvt_dtype kv : {KVT_BF16, KVT_FP8_E4M3}) {
        SCOPED_TRACE(testing::Message() << splits << " splits, " << query_tokens << " over " << kv);
        PrefillProblem problem(
            {.sequences = {{query_tokens, 900}}, .kv_dtype = kv, .splits = splits});
        const kvt_prefill_params& params = problem.params();
        MakeNan16(params.query, 0);
        const PrefillResult result = problem.Run();
        int64_t wrong = 0;
        for (int64_t i = 0; i < int64_t{query_tokens} * params.q_heads; ++i) {
          const int64_t at = i / params.q_heads * params.output_token_stride +
                             i % params.q_heads * params.output_head_stride;
          for (int64_t d = 0; d < params.kv.head_dim; ++d) {
            wrong += std::isnan(LoadElement(result.output.data(), KVT_BF16, at + d)) != (i == 0);
          }
          wrong += std::isnan(result.lse[i]) != (i == 0);
        }
        EXPECT_EQ(wrong, 0);
      }
    }
  }
}

// So many and so long sequences over an fp8 cache that tiles are high: three warpgroups share one,
// and of a sequence's last tile some have no rows.
TEST(Prefill, WorksOffLongSequencesInTallTiles) {
  KVT_SKIP_WITHOUT_GPU();
  const PrefillSetup plain = {.sequences = {{97, 97},
                                            {120, 131},
                                            {49, 200},
                                            {144, 150},
                                            {1, 77},
                                            {200, 200},
                                            {96, 96},
                                            {150, 300},
                                            {3, 0}},
                              .kv_dtype = KVT_FP8_E4M3,
                              .q_heads = 44,
                              .kv_heads = 11};
  ExpectRight(plain);
  PrefillSetup scaled = plain;
  scaled.scales = PrefillScales::kPerToken;
  scaled.page = 64;
  ExpectRight(scaled);
  PrefillSetup split = plain;
  split.splits = 3;
  split.sinks = true;
  split.query_dtype = KVT_FP16;
  ExpectRight(split);
  PrefillSetup window = plain;
  window.window_tokens = 100;
  window.soft_cap = 2.0F;
  window.last_key_size = 20.0F;
  ExpectRight(window);
}

TEST(Prefill, AppliesScalesOfEveryGranularity) {
  KVT_SKIP_WITHOUT_GPU();
  for (const PrefillScales scales : kEveryScale) {
    SCOPED_TRACE(testing::Message() << "scales " << static_cast<int>(scales));
    for (const int32_t splits : {1, 3}) {
      ExpectRight({.sequences = {{37, 577}, {129, 300}},
                   .kv_dtype = KVT_FP8_E4M3,
                   .splits = splits,
                   .scales = scales});
    }
  }
}

TEST(Prefill, SeesOnlyTheWindow) {
  KVT_SKIP_WITHOUT_GPU();
  for (const int32_t window : {1, 16, 100, 128, 1000}) {
    SCOPED_TRACE(window);
    ExpectRight({.sequences = kOddSequences, .window_tokens = window});
  }
}

TEST(Prefill, CapsScoresAndCountsSinks) {
  KVT_SKIP_WITHOUT_GPU();
  ExpectRight({.sequences = kOddSequences, .soft_cap = 2.0F});
  ExpectRight({.sequences = kOddSequences, .soft_cap = 50.0F, .sinks = true});
}

TEST(Prefill, WithoutCausalityEveryTokenSeesEveryKey) {
  KVT_SKIP_WITHOUT_GPU();
  PrefillProblem all({.sequences = {{5, 300}}, .causal = false});
  const PrefillResult result = all.Run();
  // The last token sees every key either way, so its results agree with the causal ones.
  PrefillProblem causal({.sequences = {{5, 300}}});
  const PrefillResult last = causal.Run();
  const size_t heads = all.params().q_heads;
  for (size_t h = 0; h < heads; ++h) EXPECT_EQ(result.lse[4 * heads + h], last.lse[4 * heads + h]);
  EXPECT_GT(result.lse[0], last.lse[0]);
}

TEST(Prefill, ReadsOtherLayoutsAndRepeatedBlocks) {
  KVT_SKIP_WITHOUT_GPU();
  for (const kvt_dtype kv : {KVT_BF16, KVT_FP8_E4M3}) {
    for (const RowOrder rows : {RowOrder::kHeadToken, RowOrder::kInterleaved}) {
      ExpectRight({.sequences = kOddSequences, .kv_dtype = kv, .rows = rows});
    }
    ExpectRight({.sequences = {{20, 160}, {3, 64}}, .kv_dtype = kv, .repeated_blocks = true});
  }
}

TEST(Prefill, ReachesBlocksBeyondTwoToTheThirtyFirstElements) {
  KVT_SKIP_WITHOUT_GPU();
  for (const kvt_dtype kv : {KVT_BF16, KVT_FP8_E4M3}) {
    ExpectRight(
        {.sequences = {{20, 50}}, .kv_dtype = kv, .device_block_stride = int64_t{1500} << 20});
  }
}

TEST(Prefill, ReplaysOneGraphForOtherLengths) {
  KVT_SKIP_WITHOUT_GPU();
  for (const int32_t splits : {1, 4}) {
    PrefillProblem problem({.sequences = {{40, 600}, {70, 300}, {9, 80}}, .splits = splits});
    GraphReplay replay([&](cudaStream_t stream) { problem.Queue(stream); });
    for (const std::vector<PrefillSequence>& sequences :
         {std::vector<PrefillSequence>{{40, 600}, {70, 300}, {9, 80}},
          std::vector<PrefillSequence>{{1, 599}, {33, 33}, {0, 0}},
          std::vector<PrefillSequence>{{0, 10}, {100, 290}, {19, 79}}}) {
      problem.SetSequences(sequences);
      problem.PoisonOutput();
      replay.Launch();
      problem.ExpectRight(problem.Read());
    }
  }
}

TEST(Prefill, GivesTheSameBitsEveryTime) {
  KVT_SKIP_WITHOUT_GPU();
  PrefillProblem problem({.sequences = {{200, 2000}, {300, 300}}});
  const PrefillResult first = problem.Run();
  problem.ExpectRight(first);
  for (int i = 0; i < 20; ++i) {
    const PrefillResult again = problem.Run();
    ASSERT_TRUE(again.output == first.output);
    ASSERT_TRUE(again.lse == first.lse);
  }
}

// Queries of both types over caches of theirs and of fp8, heads of both sizes.
void ExpectRightForEveryTypeAndHeadSize(const std::vector<PrefillSequence>& sequences) {
  for (const int32_t head_dim : {64, 128}) {
    for (const kvt_dtype dtype : {KVT_BF16, KVT_FP16}) {
      for (const kvt_dtype kv_dtype : {dtype, KVT_FP8_E4M3}) {
        SCOPED_TRACE(testing::Message()
                     << "dim " << head_dim << " type " << dtype << " over " << kv_dtype);
        ExpectRight({.sequences = sequences,
                     .query_dtype = dtype,
                     .kv_dtype = kv_dtype,
                     .head_dim = head_dim});
      }
    }
  }
}

TEST(PrefillShort, MatchesTheReferenceForOddLengthsOfEveryTypeAndHeadSize) {
  KVT_SKIP_WITHOUT_GPU();
  ExpectRightForEveryTypeAndHeadSize(kShortSequences);
}

// Few enough for the sanitizers.
TEST(PrefillShort, IsRightOverAFewTilesOfEveryTypeAndHeadSize) {
  KVT_SKIP_WITHOUT_GPU();
  ExpectRightForEveryTypeAndHeadSize({{16, 160}, {3, 64}, {1, 33}});
}

TEST(PrefillShort, AppliesScalesOfEveryGranularity) {
  KVT_SKIP_WITHOUT_GPU();
  for (const PrefillScales scales : kEveryScale) {
    SCOPED_TRACE(testing::Message() << "scales " << static_cast<int>(scales));
    for (const int32_t head_dim : {64, 128}) {
      ExpectRight({.sequences = kShortSequences,
                   .kv_dtype = KVT_FP8_E4M3,
                   .head_dim = head_dim,
                   .scales = scales});
    }
    ExpectRight({.sequences = {{16, 577}, {3, 300}},
                 .kv_dtype = KVT_FP8_E4M3,
                 .page = 64,
                 .splits = 3,
                 .soft_cap = 5.0F,
                 .rows = RowOrder::kHeadToken,
                 .scales = scales});
  }
}

TEST(PrefillShort, ServesEveryPageSizeAndLayout) {
  KVT_SKIP_WITHOUT_GPU();
  for (const kvt_dtype kv : {KVT_BF16, KVT_FP8_E4M3}) {
    for (const int32_t page : {16, 32, 64, 128, 256}) {
      SCOPED_TRACE(page);
      ExpectRight({.sequences = {{7, 577}, {16, 300}}, .kv_dtype = kv, .page = page});
    }
    for (const RowOrder rows : {RowOrder::kHeadToken, RowOrder::kInterleaved}) {
      ExpectRight({.sequences = kShortSequences, .kv_dtype = kv, .rows = rows});
    }
    ExpectRight({.sequences = {{16, 160}, {3, 64}}, .kv_dtype = kv, .repeated_blocks = true});
    ExpectRight(
        {.sequences = {{16, 50}}, .kv_dtype = kv, .device_block_stride = int64_t{1500} << 20});
  }
}

TEST(PrefillShort, ServesEveryGroupOfHeads) {
  KVT_SKIP_WITHOUT_GPU();
  struct Heads {
    int32_t query, kv;
  };
  for (const Heads heads : {Heads{4, 4}, Heads{8, 2}, Heads{32, 8}, Heads{40, 40}, Heads{64, 8},
                            Heads{64, 1}, Heads{10, 2}, Heads{21, 3}}) {
    SCOPED_TRACE(testing::Message() << heads.query << "/" << heads.kv);
    for (const kvt_dtype kv : {KVT_BF16, KVT_FP8_E4M3}) {
      ExpectRight({.sequences = {{1, 133}, {1, 1200}},
                   .kv_dtype = kv,
                   .q_heads = heads.query,
                   .kv_heads = heads.kv,
                   .head_dim = 64});
      ExpectRight({.sequences = {{2, 133}, {0, 1200}},
                   .kv_dtype = kv,
                   .q_heads = heads.query,
                   .kv_heads = heads.kv});
    }
  }
}

TEST(PrefillShort, DoesNotDependOnTheNumberOfSplits) {
  KVT_SKIP_WITHOUT_GPU();
  for (const kvt_dtype kv : {KVT_BF16, KVT_FP8_E4M3}) {
    for (const int32_t splits : {1, 2, 3, 7, 16, 64}) {
      SCOPED_TRACE(splits);
      ExpectRight({.sequences = kShortSequences, .kv_dtype = kv, .splits = splits});
      ExpectRight(
          {.sequences = {{9, 700}, {2, 0}}, .kv_dtype = kv, .splits = splits, .sinks = true});
    }
  }
}

TEST(PrefillShort, SeesOnlyTheWindowCapsScoresAndCountsSinks) {
  KVT_SKIP_WITHOUT_GPU();
  for (const kvt_dtype kv : {KVT_BF16, KVT_FP8_E4M3}) {
    for (const int32_t window : {1, 16, 100, 1000}) {
      SCOPED_TRACE(window);
      ExpectRight({.sequences = kShortSequences, .kv_dtype = kv, .window_tokens = window});
    }
    ExpectRight({.sequences = kShortSequences, .kv_dtype = kv, .soft_cap = 2.0F});
    ExpectRight({.sequences = kShortSequences, .kv_dtype = kv, .soft_cap = 50.0F, .sinks = true});
  }
}

// Few KV heads give each of them many multiprocessors, many give them few.
TEST(PrefillShort, SharesAnItemAmongFewOrManyMultiprocessors) {
  KVT_SKIP_WITHOUT_GPU();
  for (const kvt_dtype kv : {KVT_BF16, KVT_FP8_E4M3}) {
    ExpectRight({.sequences = {{3, 4000}}, .kv_dtype = kv, .q_heads = 4, .kv_heads = 1});
    ExpectRight({.sequences = {{16, 4112}}, .kv_dtype = kv, .q_heads = 32, .kv_heads = 8});
    ExpectRight({.sequences = {{64, 1024}}, .kv_dtype = kv, .q_heads = 32, .kv_heads = 8});
    ExpectRight({.sequences = {{3, 700}, {5, 1200}, {2, 90}},
                 .kv_dtype = kv,
                 .q_heads = 24,
                 .kv_heads = 24});
  }
}

TEST(PrefillShort, StreamsLongPrefixesThroughItsRing) {
  KVT_SKIP_WITHOUT_GPU();
  for (const kvt_dtype kv : {KVT_BF16, KVT_FP8_E4M3}) {
    for (const int32_t head_dim : {64, 128}) {
      SCOPED_TRACE(testing::Message() << "dim " << head_dim << " type " << kv);
      ExpectRight({.sequences = {{5, 9011}},
                   .kv_dtype = kv,
                   .q_heads = 4,
                   .kv_heads = 1,
                   .head_dim = head_dim});
      ExpectRight({.sequences = {{16, 5008}}, .kv_dtype = kv, .head_dim = head_dim});
    }
  }
}

TEST(PrefillShort, WorksOffManySequencesAndALongOneAmongThem) {
  KVT_SKIP_WITHOUT_GPU();
  std::vector<PrefillSequence> sequences;
  for (int32_t i = 0; i < 150; ++i) sequences.push_back({1 + i % 3, 3 + i * 37 % 700});
  for (const kvt_dtype kv : {KVT_BF16, KVT_FP8_E4M3}) {
    ExpectRight({.sequences = sequences, .kv_dtype = kv, .head_dim = 64});
  }
  ExpectRight(
      {.sequences = sequences, .kv_dtype = KVT_FP8_E4M3, .scales = PrefillScales::kPerToken});
  sequences[77] = {200, 600};
  for (const kvt_dtype kv : {KVT_BF16, KVT_FP8_E4M3}) {
    ExpectRight({.sequences = sequences, .kv_dtype = kv});
  }
}

TEST(PrefillShort, FollowsScoresThatGrowOrShrinkAlongTheKeysOfAnFp8Cache) {
  KVT_SKIP_WITHOUT_GPU();
  for (const float last_key_size : {0.05F, 20.0F}) {
    SCOPED_TRACE(last_key_size);
    ExpectRight({.sequences = {{16, 900}, {7, 1500}},
                 .kv_dtype = KVT_FP8_E4M3,
                 .last_key_size = last_key_size});
  }
}

// Captures three launches and replays them for other lengths than those at capture.
void ExpectReplaysRight(const PrefillSetup& setup) {
  PrefillProblem problem(setup);
  problem.params().tables_settled = 1;
  GraphReplay replay([&](cudaStream_t stream) {
    for (int i = 0; i < 3; ++i) problem.Queue(stream);
  });
  for (const std::vector<PrefillSequence>& sequences :
       {std::vector<PrefillSequence>{{16, 600}, {3, 300}, {9, 80}},
        std::vector<PrefillSequence>{{1, 599}, {13, 33}, {0, 0}},
        std::vector<PrefillSequence>{{0, 10}, {27, 290}, {1, 79}}}) {
    problem.SetSequences(sequences);
    problem.PoisonOutput();
    replay.Launch();
    problem.ExpectRight(problem.Read());
  }
}

TEST(PrefillShort, ReplaysOneGraphForOtherLengthsAndWithSettledTables) {
  KVT_SKIP_WITHOUT_GPU();
  ExpectReplaysRight({.sequences = {{16, 600}, {3, 300}, {9, 80}}});
}

TEST(PrefillShort, ReplaysOneGraphOverAnFp8CacheForOtherLengths) {
  KVT_SKIP_WITHOUT_GPU();
  ExpectReplaysRight({.sequences = {{16, 600}, {3, 300}, {9, 80}}, .kv_dtype = KVT_FP8_E4M3});
  ExpectReplaysRight({.sequences = {{16, 600}, {3, 300}, {9, 80}},
                      .kv_dtype = KVT_FP8_E4M3,
                      .scales = PrefillScales::kPerToken});
}

TEST(PrefillShort, GivesTheSameBitsEveryTime) {
  KVT_SKIP_WITHOUT_GPU();
  for (const kvt_dtype kv : {KVT_BF16, KVT_FP8_E4M3}) {
    PrefillProblem problem({.sequences = kShortSequences, .kv_dtype = kv});
    const PrefillResult first = problem.Run();
    problem.ExpectRight(first);
    for (int i = 0; i < 20; ++i) {
      const PrefillResult again = problem.Run();
      ASSERT_TRUE(again.output == first.output);
      ASSERT_TRUE(again.lse == first.lse);
    }
  }
}

TEST(Prefill, RefusesWhatItWasNotBuiltFor) {
  KVT_SKIP_WITHOUT_GPU();
  PrefillProblem problem({.sequences = {{4, 20}}});
  kvt_prefill_params params = problem.params();
  EXPECT_EQ(kvt_prefill(nullptr, nullptr, 0, nullptr), KVT_KERNEL_INVALID_ARGUMENT);
  DeviceArray<uint8_t> workspace(256);
  EXPECT_EQ(kvt_prefill(&params, workspace.get(), 16, nullptr), KVT_KERNEL_WORKSPACE_TOO_SMALL);
  params.kv.head_dim = 96;
  EXPECT_EQ(kvt_prefill(&params, workspace.get(), 256, nullptr), KVT_KERNEL_UNSUPPORTED);
  EXPECT_EQ(kvt_prefill_workspace_bytes(&params), 0U);
  params = problem.params();
  params.kv.page_tokens = 24;
  EXPECT_EQ(kvt_prefill(&params, workspace.get(), 256, nullptr), KVT_KERNEL_INVALID_ARGUMENT);
}

TEST(Prefill, CutsLengthsAtThePromisedMaximum) {
  KVT_SKIP_WITHOUT_GPU();
  for (const int32_t query_tokens :
       {3, 400}) {  // by the kernel for short queries, and for long ones
    SCOPED_TRACE(query_tokens);
    PrefillProblem problem({.sequences = {{query_tokens, 900}}});
    problem.params().sequences.max_kv_length = 640;
    problem.SetSequences({{query_tokens, 640}});
    const PrefillResult right = problem.Run();
    problem.ExpectRight(right);
    problem.SetSequences({{query_tokens, 900}});
    const PrefillResult cut = problem.Run();
    EXPECT_EQ(cut.output, right.output);
    EXPECT_EQ(cut.lse, right.lse);
  }
}

}  // namespace
}  // namespace kvtier::kernels
