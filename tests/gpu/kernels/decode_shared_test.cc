// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>

#include "decode_problem.h"
#include "tests/gpu/kernels/device_array.h"
#include "tests/gpu/kernels/graph_replay.h"

namespace kvtier::kernels {
namespace {

// Sequences that begin with the same `prefix` tokens.
struct SharedSetup {
  int prefix;
  std::vector<int32_t> own;  // tokens after the prefix
  int groups = 1;            // so many prefixes, each of as many sequences
  DecodeSetup like = {.q_heads = 16, .kv_heads = 2};
  // Own tokens may become as many as the longest's. Otherwise what lies behind them is NaN.
  bool may_grow = false;
};

// The whole, which the reference computes at once, and on the GPU the parts that must make it.
class SharedProblem {
 public:
  explicit SharedProblem(const SharedSetup& setup) : setup_(setup), whole_(WholeOf(setup)) {
    const auto count = static_cast<int>(setup.own.size());
    for (int group = 0; group <= setup.groups; ++group) {
      members_.push_back(count * group / setup.groups);
    }
    device_own_.emplace(setup.own.size() * sizeof(int32_t));
    device_prefixes_.emplace(setup.groups * sizeof(int32_t));
    device_members_.emplace(members_.size() * sizeof(int32_t));
    device_members_->CopyFrom(members_.data(), device_members_->bytes());
    params_.own = whole_.params();
    params_.prefixes = whole_.params().sequences;
    params_.prefixes.sequences = setup.groups;
    // A prefix's blocks are those of its first member.
    params_.prefixes.table_stride *= count / setup.groups;
    params_.prefixes.kv_lengths = device_prefixes_->get<int32_t>();
    params_.prefixes.max_kv_length = setup.prefix;
    params_.members = device_members_->get<int32_t>();
    params_.own.sequences.block_table += setup.prefix / setup.like.page;
    params_.own.sequences.kv_lengths = device_own_->get<int32_t>();
    SetLengths(setup.prefix, setup.own);
    workspace_.emplace(kvt_decode_shared_workspace_bytes(&params_));
    workspace_->Fill(0);
  }

  void SetLengths(int prefix, const std::vector<int32_t>& own) {
    device_own_->CopyFrom(own.data(), device_own_->bytes());
    const std::vector<int32_t> prefixes(setup_.groups, prefix);
    device_prefixes_->CopyFrom(prefixes.data(), device_prefixes_->bytes());
    std::vector<int32_t> lengths;
    for (const int32_t tokens : own) lengths.push_back(prefix + tokens);
    whole_.SetLengths(lengths);
  }
  void Queue(cudaStream_t stream) {
    ASSERT_EQ(kvt_decode_shared(&params_, workspace_->get(), workspace_->bytes(), stream),
              KVT_KERNEL_OK);
  }
  void ExpectRight() { whole_.ExpectRight(whole_.ReadResult()); }
  [[nodiscard]] double ErrorBesidePlain() { return whole_.ErrorBesidePlain(whole_.ReadResult()); }
  void PoisonOutput() { whole_.PoisonOutput(); }
  [[nodiscard]] DecodeResult Run() {
    PoisonOutput();
    Queue(nullptr);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    return whole_.ReadResult();
  }
  [[nodiscard]] kvt_decode_shared_params& params() { return params_; }
  [[nodiscard]] DeviceBuffer& workspace() { return *workspace_; }

 private:
  static DecodeSetup WholeOf(const SharedSetup& setup) {
    DecodeSetup whole = setup.like;
    whole.shared_tokens = setup.prefix;
    whole.shared_by = static_cast<int>(setup.own.size()) / setup.groups;
    for (const int own : setup.own) whole.lengths.push_back(setup.prefix + own);
    // A window would leave blocks of the prefix out that some sequence has.
    if (setup.may_grow || whole.window_tokens > 0) {
      whole.max_length = *std::max_element(whole.lengths.begin(), whole.lengths.end());
    }
    return whole;
  }

  const SharedSetup setup_;
  DecodeProblem whole_;
  std::vector<int32_t> members_;
  std::optional<DeviceBuffer> device_own_, device_prefixes_, device_members_, workspace_;
  kvt_decode_shared_params params_ = {};
};

class DecodeShared : public testing::Test {
 protected:
  void SetUp() override { KVT_SKIP_WITHOUT_GPU(); }

  static void ExpectRight(const SharedSetup& setup) {
    SharedProblem problem(setup);
    for (int i = 0; i < 2; ++i) {  // the second time in a used workspace
      (void)problem.Run();
      problem.ExpectRight();
    }
  }
};

TEST_F(DecodeShared, GivesWhatThePlainKernelGives) {
  ExpectRight({.prefix = 1024, .own = {1, 17, 300, 64, 5}});
}

TEST_F(DecodeShared, IsRightAtOddLengths) {
  ExpectRight({.prefix = 2016, .own = {1, 5, 17, 37, 127, 129, 577, 1328, 2011}});
  ExpectRight({.prefix = 16, .own = {1, 5, 17, 37, 127, 129, 577, 1328, 2011}});
}

TEST_F(DecodeShared, IsRightForEveryHeadCombination) {
  for (const auto& [q_heads, kv_heads] : std::vector<std::pair<int, int>>{
           {4, 4}, {8, 2}, {32, 8}, {40, 40}, {64, 8}, {32, 4}, {7, 1}, {16, 1}}) {
    SCOPED_TRACE(testing::Message() << q_heads << "/" << kv_heads);
    ExpectRight(
        {.prefix = 128, .own = {37, 129, 1}, .like = {.q_heads = q_heads, .kv_heads = kv_heads}});
  }
}

TEST_F(DecodeShared, ServesEveryTypeHeadSizeAndPage) {
  for (const kvt_dtype query : {KVT_BF16, KVT_FP16}) {
    for (const kvt_dtype kv : {query, KVT_FP8_E4M3}) {
      for (const int head_dim : {64, 128, 256}) {
        const int page = head_dim == 64 ? 16 : head_dim == 128 ? 64 : 256;
        SCOPED_TRACE(testing::Message() << "types " << query << " and " << kv << ", head size "
                                        << head_dim << ", page " << page);
        ExpectRight({.prefix = 512,
                     .own = {100, 3},
                     .like = {.query_dtype = query,
                              .kv_dtype = kv,
                              .q_heads = 16,
                              .kv_heads = 2,
                              .head_dim = head_dim,
                              .page = page}});
      }
    }
  }
}

TEST_F(DecodeShared, ServesSeveralPrefixes) {
  ExpectRight({.prefix = 256, .own = {5, 0, 300, 64, 1, 17}, .groups = 3});
}

TEST_F(DecodeShared, ServesSequencesThatHaveNothingBeyondThePrefix) {
  ExpectRight({.prefix = 128, .own = {0, 16, 0, 1}});
}

TEST_F(DecodeShared, ServesAnEmptyPrefix) { ExpectRight({.prefix = 0, .own = {40, 3}}); }

TEST_F(DecodeShared, GivesZerosWhereThereIsNothingAtAll) {
  ExpectRight({.prefix = 0, .own = {40, 0, 3}});
}

TEST_F(DecodeShared, ServesMoreSequencesThanATileHasRows) {
  std::vector<int32_t> own;
  for (int i = 0; i < 70; ++i) own.push_back(i);
  ExpectRight({.prefix = 512, .own = own});
}

TEST_F(DecodeShared, CountsSinksOnce) {
  ExpectRight(
      {.prefix = 64, .own = {0, 30, 500}, .like = {.q_heads = 16, .kv_heads = 2, .sinks = true}});
}

TEST_F(DecodeShared, CountsPrefixAndOwnTokensInTheWindow) {
  for (const int window : {1, 5, 100, 400, 1100, 5000}) {
    SCOPED_TRACE(window);
    ExpectRight({.prefix = 1024,
                 .own = {0, 300, 17, 1, 64, 5},
                 .like = {.q_heads = 16, .kv_heads = 2, .window_tokens = window}});
  }
}

TEST_F(DecodeShared, ReadsOtherLayoutsAndRepeatedBlocks) {
  for (const RowOrder rows : {RowOrder::kHeadToken, RowOrder::kInterleaved}) {
    ExpectRight(
        {.prefix = 256, .own = {40, 3}, .like = {.q_heads = 16, .kv_heads = 2, .rows = rows}});
  }
  ExpectRight({.prefix = 256,
               .own = {40, 3},
               .like = {.q_heads = 16, .kv_heads = 2, .repeated_blocks = true}});
}

TEST_F(DecodeShared, ReachesBlocksBeyondTwoToThe31Elements) {
  ExpectRight({.prefix = 32,
               .own = {17, 3},
               .like = {.q_heads = 16, .kv_heads = 2, .device_block_stride = int64_t{1} << 29}});
}

TEST_F(DecodeShared, DoesNotDependOnWhereOwnTokensAreCut) {
  for (const int split_tokens : {0, 256, 1024}) {
    SCOPED_TRACE(split_tokens);
    ExpectRight({.prefix = 512,
                 .own = {2011, 16, 900},
                 .like = {.q_heads = 16, .kv_heads = 2, .split_tokens = split_tokens}});
  }
}

TEST_F(DecodeShared, GivesTheSameBitsEveryTime) {
  SharedProblem problem({.prefix = 4096, .own = {2000, 1, 77, 300}});
  const DecodeResult first = problem.Run();
  problem.ExpectRight();
  for (int i = 0; i < 20; ++i) {
    const DecodeResult again = problem.Run();
    ASSERT_EQ(again.bits, first.bits);
    ASSERT_EQ(again.lse, first.lse);
  }
}

TEST_F(DecodeShared, ReplaysInAGraphWithOtherLengths) {
  SharedProblem problem({.prefix = 256, .own = {900, 20, 30}, .may_grow = true});
  GraphReplay replay([&](cudaStream_t stream) { problem.Queue(stream); });
  for (const std::vector<int32_t>& own :
       std::vector<std::vector<int32_t>>{{1, 0, 899}, {900, 900, 900}, {0, 0, 0}, {65, 1, 7}}) {
    problem.SetLengths(256, own);
    problem.PoisonOutput();
    replay.Launch();
    problem.ExpectRight();
  }
}

TEST_F(DecodeShared, LosesNoDigitsBetweenItsParts) {
  for (const kvt_dtype type : {KVT_BF16, KVT_FP16}) {
    SCOPED_TRACE(type);
    SharedProblem problem({.prefix = 1024,
                           .own = {1000, 900, 1100, 1024},
                           .like = {.query_dtype = type, .kv_dtype = type}});
    (void)problem.Run();
    problem.ExpectRight();
    // Parts that were rounded to 16 bits before their merge gave 1.6.
    EXPECT_LE(problem.ErrorBesidePlain(), 1.3);
  }
}

TEST_F(DecodeShared, RefusesASmallWorkspaceAndQueuesNothing) {
  SharedProblem problem({.prefix = 64, .own = {20}});
  const DeviceBuffer& workspace = problem.workspace();
  EXPECT_EQ(kvt_decode_shared(&problem.params(), workspace.get(), workspace.bytes() - 256, nullptr),
            KVT_KERNEL_WORKSPACE_TOO_SMALL);
  EXPECT_EQ(kvt_decode_shared(&problem.params(), nullptr, workspace.bytes(), nullptr),
            KVT_KERNEL_WORKSPACE_TOO_SMALL);
}

}  // namespace
}  // namespace kvtier::kernels
