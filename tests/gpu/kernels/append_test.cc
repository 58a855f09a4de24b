// Append attention on the device against the reference.
#include "kvtier/append.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/reference/number_format.h"
#include "tests/gpu/kernels/append_problem.h"
#include "tests/gpu/kernels/graph_replay.h"

namespace kvtier::kernels {
namespace {

// Lengths next to every border of tiles and pages, and a sequence or two that are empty.
const std::vector<AppendSequence> kOddSequences = {{1, 1},     {5, 17},    {37, 37},  {0, 40},
                                                   {127, 577}, {129, 129}, {3, 0},    {2, 256},
                                                   {16, 128},  {33, 1328}, {64, 2011}};

// The same with few tokens each: the kernel for short suffixes serves them.
const std::vector<AppendSequence> kShortSequences = {{1, 1},     {5, 17},  {16, 37},  {0, 40},
                                                     {17, 577},  {9, 129}, {3, 0},    {2, 256},
                                                     {16, 1328}, {1, 900}, {12, 2501}};

void ExpectRight(const AppendSetup& setup) {
  AppendProblem problem(setup);
  problem.ExpectRight(problem.Run());
}

TEST(Append, MatchesTheReferenceForOddLengthsInOneLaunch) {
  KVT_SKIP_WITHOUT_HOPPER();
  ExpectRight({.sequences = kOddSequences});
  ExpectRight({.sequences = kOddSequences, .query_dtype = KVT_FP16, .kv_dtype = KVT_FP16});
  ExpectRight({.sequences = kOddSequences, .kv_dtype = KVT_FP8_E4M3});
}

TEST(Append, MatchesTheReferenceForOddSuffixes) {
  KVT_SKIP_WITHOUT_HOPPER();
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
TEST(Append, WorksOffOneShortSequenceAfterAnother) {
  KVT_SKIP_WITHOUT_HOPPER();
  std::vector<AppendSequence> sequences;
  for (int32_t i = 0; i < 90; ++i) {
    sequences.push_back(i % 7 == 3 ? AppendSequence{3, 0} : AppendSequence{1 + i % 9, 10 + 3 * i});
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

TEST(Append, FollowsScoresThatGrowOrShrinkAlongTheKeys) {
  KVT_SKIP_WITHOUT_HOPPER();
  for (const kvt_dtype dtype : {KVT_BF16, KVT_FP8_E4M3}) {
    for (const float last_key_size : {0.05F, 20.0F}) {
      SCOPED_TRACE(testing::Message() << "type " << dtype << " last key " << last_key_size);
      ExpectRight({.sequences = {{64, 900}, {33, 1500}},
                   .kv_dtype = dtype,
                   .last_key_size = last_key_size});
    }
  }
}

TEST(Append, ServesEveryPageSize) {
  KVT_SKIP_WITHOUT_HOPPER();
  for (const int32_t page : {16, 32, 64, 128, 256}) {
    ExpectRight({.sequences = {{37, 577}, {129, 300}}, .page = page});
  }
}

TEST(Append, ServesEveryHeadSizeAndType) {
  KVT_SKIP_WITHOUT_HOPPER();
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

TEST(Append, ServesEveryGroupOfHeads) {
  KVT_SKIP_WITHOUT_HOPPER();
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

TEST(Append, DoesNotDependOnTheNumberOfSplits) {
  KVT_SKIP_WITHOUT_HOPPER();
  for (const int32_t splits : {1, 2, 3, 7, 16, 64}) {
    SCOPED_TRACE(splits);
    ExpectRight({.sequences = kOddSequences, .splits = splits});
    ExpectRight({.sequences = {{9, 700}, {2, 0}}, .splits = splits, .sinks = true});
  }
}

TEST(Append, AppliesScalesOfEveryGranularity) {
  KVT_SKIP_WITHOUT_HOPPER();
  for (const AppendScales scales : {AppendScales::kPerHead, AppendScales::kPerToken}) {
    for (const int32_t splits : {1, 3}) {
      ExpectRight({.sequences = {{37, 577}, {129, 300}},
                   .kv_dtype = KVT_FP8_E4M3,
                   .splits = splits,
                   .scales = scales});
    }
  }
}

TEST(Append, SeesOnlyTheWindow) {
  KVT_SKIP_WITHOUT_HOPPER();
  for (const int32_t window : {1, 16, 100, 128, 1000}) {
    SCOPED_TRACE(window);
    ExpectRight({.sequences = kOddSequences, .window_tokens = window});
  }
}

TEST(Append, CapsScoresAndCountsSinks) {
  KVT_SKIP_WITHOUT_HOPPER();
  ExpectRight({.sequences = kOddSequences, .soft_cap = 2.0F});
  ExpectRight({.sequences = kOddSequences, .soft_cap = 50.0F, .sinks = true});
}

TEST(Append, WithoutCausalityEveryTokenSeesEveryKey) {
  KVT_SKIP_WITHOUT_HOPPER();
  AppendProblem all({.sequences = {{5, 300}}, .causal = false});
  const AppendResult result = all.Run();
  // The last token sees every key either way, so its results agree with the causal ones.
  AppendProblem causal({.sequences = {{5, 300}}});
  const AppendResult last = causal.Run();
  const size_t heads = all.params().q_heads;
  for (size_t h = 0; h < heads; ++h) EXPECT_EQ(result.lse[4 * heads + h], last.lse[4 * heads + h]);
  EXPECT_GT(result.lse[0], last.lse[0]);
}

TEST(Append, ReadsOtherLayoutsAndRepeatedBlocks) {
  KVT_SKIP_WITHOUT_HOPPER();
  for (const kvt_dtype kv : {KVT_BF16, KVT_FP8_E4M3}) {
    ExpectRight({.sequences = kOddSequences, .kv_dtype = kv, .heads_outside = true});
    ExpectRight({.sequences = {{20, 160}, {3, 64}}, .kv_dtype = kv, .repeated_blocks = true});
  }
}

TEST(Append, ReachesBlocksBeyondTwoToTheThirtyFirstElements) {
  KVT_SKIP_WITHOUT_HOPPER();
  for (const kvt_dtype kv : {KVT_BF16, KVT_FP8_E4M3}) {
    ExpectRight(
        {.sequences = {{20, 50}}, .kv_dtype = kv, .device_block_stride = int64_t{1500} << 20});
  }
}

TEST(Append, ReplaysOneGraphForOtherLengths) {
  KVT_SKIP_WITHOUT_HOPPER();
  for (const int32_t splits : {1, 4}) {
    AppendProblem problem({.sequences = {{40, 600}, {70, 300}, {9, 80}}, .splits = splits});
    GraphReplay replay([&](cudaStream_t stream) { problem.Queue(stream); });
    for (const std::vector<AppendSequence>& sequences :
         {std::vector<AppendSequence>{{40, 600}, {70, 300}, {9, 80}},
          std::vector<AppendSequence>{{1, 599}, {33, 33}, {0, 0}},
          std::vector<AppendSequence>{{0, 10}, {100, 290}, {19, 79}}}) {
      problem.SetSequences(sequences);
      problem.PoisonOutput();
      replay.Launch();
      problem.ExpectRight(problem.Read());
    }
  }
}

TEST(Append, GivesTheSameBitsEveryTime) {
  KVT_SKIP_WITHOUT_HOPPER();
  AppendProblem problem({.sequences = {{200, 2000}, {300, 300}}});
  const AppendResult first = problem.Run();
  problem.ExpectRight(first);
  for (int i = 0; i < 20; ++i) {
    const AppendResult again = problem.Run();
    ASSERT_TRUE(again.output == first.output);
    ASSERT_TRUE(again.lse == first.lse);
  }
}

TEST(AppendShort, MatchesTheReferenceForOddLengthsOfEveryTypeAndHeadSize) {
  KVT_SKIP_WITHOUT_HOPPER();
  for (const int32_t head_dim : {64, 128}) {
    for (const kvt_dtype dtype : {KVT_BF16, KVT_FP16}) {
      SCOPED_TRACE(testing::Message() << "dim " << head_dim << " type " << dtype);
      ExpectRight({.sequences = kShortSequences,
                   .query_dtype = dtype,
                   .kv_dtype = dtype,
                   .head_dim = head_dim});
    }
  }
}

TEST(AppendShort, ServesEveryPageSizeAndLayout) {
  KVT_SKIP_WITHOUT_HOPPER();
  for (const int32_t page : {16, 32, 64, 128, 256}) {
    SCOPED_TRACE(page);
    ExpectRight({.sequences = {{7, 577}, {16, 300}}, .page = page});
  }
  ExpectRight({.sequences = kShortSequences, .heads_outside = true});
  ExpectRight({.sequences = {{16, 160}, {3, 64}}, .repeated_blocks = true});
  ExpectRight({.sequences = {{16, 50}}, .device_block_stride = int64_t{1500} << 20});
}

TEST(AppendShort, ServesEveryGroupOfHeads) {
  KVT_SKIP_WITHOUT_HOPPER();
  struct Heads {
    int32_t query, kv;
  };
  for (const Heads heads : {Heads{4, 4}, Heads{8, 2}, Heads{32, 8}, Heads{40, 40}, Heads{64, 8},
                            Heads{64, 1}, Heads{10, 2}, Heads{21, 3}}) {
    SCOPED_TRACE(testing::Message() << heads.query << "/" << heads.kv);
    ExpectRight({.sequences = {{1, 133}, {1, 1200}},
                 .q_heads = heads.query,
                 .kv_heads = heads.kv,
                 .head_dim = 64});
    ExpectRight({.sequences = {{2, 133}, {0, 1200}}, .q_heads = heads.query, .kv_heads = heads.kv});
  }
}

TEST(AppendShort, DoesNotDependOnTheNumberOfSplits) {
  KVT_SKIP_WITHOUT_HOPPER();
  for (const int32_t splits : {1, 2, 3, 7, 16, 64}) {
    SCOPED_TRACE(splits);
    ExpectRight({.sequences = kShortSequences, .splits = splits});
    ExpectRight({.sequences = {{9, 700}, {2, 0}}, .splits = splits, .sinks = true});
  }
}

TEST(AppendShort, SeesOnlyTheWindowCapsScoresAndCountsSinks) {
  KVT_SKIP_WITHOUT_HOPPER();
  for (const int32_t window : {1, 16, 100, 1000}) {
    SCOPED_TRACE(window);
    ExpectRight({.sequences = kShortSequences, .window_tokens = window});
  }
  ExpectRight({.sequences = kShortSequences, .soft_cap = 2.0F});
  ExpectRight({.sequences = kShortSequences, .soft_cap = 50.0F, .sinks = true});
}

// Few KV heads give each of them many multiprocessors, many give them few.
TEST(AppendShort, SharesAnItemAmongFewOrManyMultiprocessors) {
  KVT_SKIP_WITHOUT_HOPPER();
  ExpectRight({.sequences = {{3, 4000}}, .q_heads = 4, .kv_heads = 1});
  ExpectRight({.sequences = {{16, 4112}}, .q_heads = 32, .kv_heads = 8});
  ExpectRight({.sequences = {{64, 1024}}, .q_heads = 32, .kv_heads = 8});
  ExpectRight({.sequences = {{3, 700}, {5, 1200}, {2, 90}}, .q_heads = 24, .kv_heads = 24});
}

TEST(AppendShort, StreamsLongPrefixesThroughItsRing) {
  KVT_SKIP_WITHOUT_HOPPER();
  for (const int32_t head_dim : {64, 128}) {
    SCOPED_TRACE(head_dim);
    ExpectRight({.sequences = {{5, 9011}}, .q_heads = 4, .kv_heads = 1, .head_dim = head_dim});
    ExpectRight({.sequences = {{16, 5008}}, .head_dim = head_dim});
  }
}

TEST(AppendShort, WorksOffManySequencesAndALongOneAmongThem) {
  KVT_SKIP_WITHOUT_HOPPER();
  std::vector<AppendSequence> sequences;
  for (int32_t i = 0; i < 150; ++i) sequences.push_back({1 + i % 3, 3 + i * 37 % 700});
  ExpectRight({.sequences = sequences, .head_dim = 64});
  sequences[77] = {200, 600};
  ExpectRight({.sequences = sequences});
}

TEST(AppendShort, ReplaysOneGraphForOtherLengthsAndWithSettledTables) {
  KVT_SKIP_WITHOUT_HOPPER();
  AppendProblem problem({.sequences = {{16, 600}, {3, 300}, {9, 80}}});
  problem.params().tables_settled = 1;
  GraphReplay replay([&](cudaStream_t stream) {
    for (int i = 0; i < 3; ++i) problem.Queue(stream);
  });
  for (const std::vector<AppendSequence>& sequences :
       {std::vector<AppendSequence>{{16, 600}, {3, 300}, {9, 80}},
        std::vector<AppendSequence>{{1, 599}, {13, 33}, {0, 0}},
        std::vector<AppendSequence>{{0, 10}, {27, 290}, {1, 79}}}) {
    problem.SetSequences(sequences);
    problem.PoisonOutput();
    replay.Launch();
    problem.ExpectRight(problem.Read());
  }
}

TEST(AppendShort, GivesTheSameBitsEveryTime) {
  KVT_SKIP_WITHOUT_HOPPER();
  AppendProblem problem({.sequences = kShortSequences});
  const AppendResult first = problem.Run();
  problem.ExpectRight(first);
  for (int i = 0; i < 20; ++i) {
    const AppendResult again = problem.Run();
    ASSERT_TRUE(again.output == first.output);
    ASSERT_TRUE(again.lse == first.lse);
  }
}

TEST(Append, RefusesWhatItWasNotBuiltFor) {
  KVT_SKIP_WITHOUT_HOPPER();
  AppendProblem problem({.sequences = {{4, 20}}});
  kvt_append_params params = problem.params();
  EXPECT_EQ(kvt_append(nullptr, nullptr, 0, nullptr), KVT_KERNEL_INVALID_ARGUMENT);
  DeviceArray<uint8_t> workspace(256);
  EXPECT_EQ(kvt_append(&params, workspace.get(), 16, nullptr), KVT_KERNEL_WORKSPACE_TOO_SMALL);
  params.kv.head_dim = 96;
  EXPECT_EQ(kvt_append(&params, workspace.get(), 256, nullptr), KVT_KERNEL_UNSUPPORTED);
  EXPECT_EQ(kvt_append_workspace_bytes(&params), 0U);
  params = problem.params();
  params.kv.page_tokens = 24;
  EXPECT_EQ(kvt_append(&params, workspace.get(), 256, nullptr), KVT_KERNEL_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace kvtier::kernels
