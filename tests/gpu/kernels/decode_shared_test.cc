#include <gtest/gtest.h>

#include <algorithm>

#include "decode_problem.h"

namespace kvtier::kernels {
namespace {

// All sequences begin with the same `prefix` tokens.
struct SharedSetup {
  int prefix;
  std::vector<int32_t> own;  // tokens after the prefix
  kvt_dtype kv_dtype = KVT_BF16;
  bool sinks = false;
  int window_tokens = 0;
};

class DecodeShared : public testing::Test {
 protected:
  void SetUp() override {
    if (!HasKernelDevice()) GTEST_SKIP() << "no sm_90 GPU";
  }

  // The whole, computed at once by the reference, is what the parts must make.
  static void ExpectRight(const SharedSetup& setup) {
    DecodeSetup whole = {.kv_dtype = setup.kv_dtype,
                         .q_heads = 16,
                         .kv_heads = 2,
                         .window_tokens = setup.window_tokens,
                         .sinks = setup.sinks,
                         .shared_tokens = setup.prefix};
    for (const int own : setup.own) whole.lengths.push_back(setup.prefix + own);
    whole.max_length = *std::max_element(whole.lengths.begin(), whole.lengths.end());
    DecodeProblem problem(whole);
    const int count = static_cast<int>(setup.own.size());
    const std::vector<int32_t> prefix_and_members = {setup.prefix, 0, count};
    DeviceBuffer own_lengths(setup.own.size() * sizeof(int32_t));
    own_lengths.CopyFrom(setup.own.data(), own_lengths.bytes());
    DeviceBuffer prefix(prefix_and_members.size() * sizeof(int32_t));
    prefix.CopyFrom(prefix_and_members.data(), prefix.bytes());

    kvt_decode_shared_params params = {.own = problem.params()};
    params.prefixes = problem.params().sequences;
    params.prefixes.sequences = 1;
    params.prefixes.kv_lengths = prefix.get<int32_t>();
    params.prefixes.max_kv_length = setup.prefix;
    params.members = prefix.get<int32_t>() + 1;
    params.own.sequences.block_table += setup.prefix / whole.page;
    params.own.sequences.kv_lengths = own_lengths.get<int32_t>();
    DeviceBuffer workspace(kvt_decode_shared_workspace_bytes(&params));
    workspace.Fill(0);
    for (int i = 0; i < 2; ++i) {  // the second time in a used workspace
      problem.PoisonOutput();
      ASSERT_EQ(kvt_decode_shared(&params, workspace.get(), workspace.bytes(), nullptr),
                KVT_KERNEL_OK);
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      problem.ExpectRight(problem.ReadResult());
    }
  }
};

TEST_F(DecodeShared, GivesWhatThePlainKernelGives) {
  ExpectRight({.prefix = 1024, .own = {1, 17, 300, 64, 5}});
}

TEST_F(DecodeShared, ServesSequencesThatHaveNothingBeyondThePrefix) {
  ExpectRight({.prefix = 128, .own = {0, 16, 0, 1}});
}

TEST_F(DecodeShared, ServesAnEmptyPrefix) { ExpectRight({.prefix = 0, .own = {40, 3}}); }

TEST_F(DecodeShared, ServesMoreSequencesThanATileHasRows) {
  std::vector<int32_t> own;
  for (int i = 0; i < 70; ++i) own.push_back(i);
  ExpectRight({.prefix = 512, .own = own});
}

TEST_F(DecodeShared, ServesFp8) {
  ExpectRight({.prefix = 256, .own = {100, 3}, .kv_dtype = KVT_FP8_E4M3});
}

TEST_F(DecodeShared, CountsSinksOnce) {
  ExpectRight({.prefix = 64, .own = {0, 30, 500}, .sinks = true});
}

TEST_F(DecodeShared, CountsPrefixAndOwnTokensInTheWindow) {
  for (const int window : {1, 5, 100, 400, 1100, 5000}) {
    SCOPED_TRACE(window);
    ExpectRight({.prefix = 1024, .own = {0, 300, 17, 1, 64, 5}, .window_tokens = window});
  }
}

}  // namespace
}  // namespace kvtier::kernels
