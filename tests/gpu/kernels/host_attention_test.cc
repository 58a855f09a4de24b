// SPDX-License-Identifier: Apache-2.0
#include "kernels/service/host_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/reference/number_format.h"

namespace kvtier::kernels {
namespace {

struct Shape {
  kvt_dtype kv_dtype = KVT_BF16;
  kvt_dtype query_dtype = KVT_BF16;
  int kv_heads = 2;
  int group = 4;
  int dim = 64;
  int page = 16;
  std::vector<int> lengths = {1, 37, 300};
  std::vector<int> rows = {1, 5, 129};
};

// Random sequences over shuffled blocks, in the middle of three layers of the pool's layout.
// Elements that no sequence may see are NaN.
class Problem {
 public:
  explicit Problem(const Shape& shape) : shape_(shape) {
    const int pages_of_longest = (Longest() + shape.page - 1) / shape.page;
    const int sequences = static_cast<int>(shape.lengths.size());
    table_.resize(static_cast<size_t>(sequences) * pages_of_longest);
    std::iota(table_.begin(), table_.end(), 0);
    std::shuffle(table_.begin(), table_.end(), random_);
    starts_ = {0};
    for (const int rows : shape.rows) starts_.push_back(starts_.back() + rows);
    layer_elements_ = 2 * SliceElements();
    pool_.assign(table_.size() * kLayers * layer_elements_ * ElementBytes(shape.kv_dtype),
                 std::byte{0xFF});
    for (int s = 0; s < sequences; ++s) {
      for (int t = 0; t < shape.lengths[s]; ++t)
        FillToken(table_[s * pages_of_longest + t / shape.page], t % shape.page);
    }
    query_.resize(QueryElements() * ElementBytes(shape.query_dtype));
    for (int64_t i = 0; i < QueryElements(); ++i) {
      StoreElement(query_.data(), shape.query_dtype, i, normal_(random_));
    }
    attention_.query = query_.data();
    attention_.query_dtype = shape.query_dtype;
    attention_.q_heads = shape.kv_heads * shape.group;
    attention_.query_head_stride = shape.dim;
    attention_.query_token_stride = int64_t{shape.dim} * attention_.q_heads;
    attention_.query_starts = starts_.data();
    std::byte* const key = pool_.data() + layer_elements_ * ElementBytes(shape.kv_dtype);
    attention_.kv = {.key = key,
                     .value = key + SliceElements() * ElementBytes(shape.kv_dtype),
                     .dtype = shape.kv_dtype,
                     .kv_heads = shape.kv_heads,
                     .head_dim = shape.dim,
                     .page_tokens = shape.page,
                     .block_stride = kLayers * layer_elements_,
                     .token_stride = int64_t{shape.kv_heads} * shape.dim,
                     .head_stride = shape.dim};
    attention_.sequences = {.block_table = table_.data(),
                            .kv_lengths = shape_.lengths.data(),
                            .table_stride = pages_of_longest,
                            .sequences = sequences,
                            .max_kv_length = Longest()};
    attention_.softmax_scale = 1.0F / std::sqrt(static_cast<float>(shape.dim));
  }

  ReferenceAttention& attention() { return attention_; }

  // An element of all queries, in their order, becomes NaN.
  void SpoilQuery(int64_t element) {
    StoreElement(query_.data(), shape_.query_dtype, element, std::nanf(""));
  }
  // One of the key of a sequence's token, for the first KV head, becomes NaN.
  void SpoilKey(int sequence, int token) {
    const int block = table_[sequence * attention_.sequences.table_stride + token / shape_.page];
    StoreElement(
        attention_.kv.key, shape_.kv_dtype,
        block * attention_.kv.block_stride + token % shape_.page * attention_.kv.token_stride,
        std::nanf(""));
  }

  // The largest differences from the reference, in output and LSE. NaN agrees with NaN.
  void ExpectAgreement(double output_tolerance) {
    std::vector<std::byte> output(query_.size(), std::byte{0xFF});
    std::vector<float> lse(QueryElements() / shape_.dim, std::numeric_limits<float>::quiet_NaN());
    ASSERT_TRUE(AttendOnHost({attention_, output.data(), lse.data()}));
    const ReferenceOutput wanted = AttentionReference(attention_);
    const auto expect_near = [](double held, double expected, double tolerance) {
      ASSERT_EQ(std::isnan(held), std::isnan(expected));
      if (std::isnan(held)) return;
      ASSERT_NEAR(held, expected, tolerance);
    };
    for (size_t i = 0; i < wanted.output.size(); ++i) {
      SCOPED_TRACE(testing::Message() << "element " << i);
      expect_near(LoadElement(output.data(), shape_.query_dtype, static_cast<int64_t>(i)),
                  wanted.output[i], output_tolerance);
      if (testing::Test::HasFatalFailure()) return;
    }
    for (size_t i = 0; i < lse.size(); ++i) {
      SCOPED_TRACE(testing::Message() << "row " << i);
      expect_near(lse[i], wanted.lse[i], 1e-4);
      if (testing::Test::HasFatalFailure()) return;
      nan_rows_ += std::isnan(lse[i]);
    }
  }
  // The rows so far that agreed on NaN.
  [[nodiscard]] int nan_rows() const { return nan_rows_; }

 private:
  static constexpr int kLayers = 3;

  [[nodiscard]] int Longest() const {
    return *std::max_element(shape_.lengths.begin(), shape_.lengths.end());
  }
  [[nodiscard]] int64_t SliceElements() const {
    return int64_t{shape_.page} * shape_.kv_heads * shape_.dim;
  }
  [[nodiscard]] int64_t QueryElements() const {
    return int64_t{starts_.back()} * shape_.kv_heads * shape_.group * shape_.dim;
  }
  void FillToken(int block, int token) {
    const int64_t row = block * kLayers * layer_elements_ + layer_elements_ +
                        int64_t{token} * shape_.kv_heads * shape_.dim;
    for (int64_t i = 0; i < int64_t{shape_.kv_heads} * shape_.dim; ++i) {
      StoreElement(pool_.data(), shape_.kv_dtype, row + i, normal_(random_));
      StoreElement(pool_.data(), shape_.kv_dtype, row + SliceElements() + i, normal_(random_));
    }
  }

  const Shape shape_;
  std::mt19937 random_{7};
  std::normal_distribution<float> normal_;
  std::vector<int32_t> table_;
  std::vector<int32_t> starts_;
  int64_t layer_elements_ = 0;
  std::vector<std::byte> pool_;
  std::vector<std::byte> query_;
  ReferenceAttention attention_;
  int nan_rows_ = 0;
};

// Half a unit in the last place of outputs below 4.
constexpr double kBf16Tolerance = 0x1p-7 + 1e-4;
constexpr double kFp16Tolerance = 0x1p-10 + 1e-4;
constexpr double kFp32Tolerance = 1e-5;

TEST(HostAttention, AgreesWithTheReferenceForEveryTypeOfCache) {
  Problem({.kv_dtype = KVT_BF16, .query_dtype = KVT_BF16}).ExpectAgreement(kBf16Tolerance);
  Problem({.kv_dtype = KVT_FP16, .query_dtype = KVT_FP16}).ExpectAgreement(kFp16Tolerance);
  Problem({.kv_dtype = KVT_FP32, .query_dtype = KVT_FP32}).ExpectAgreement(kFp32Tolerance);
  Problem({.kv_dtype = KVT_FP8_E4M3, .query_dtype = KVT_FP16}).ExpectAgreement(kFp16Tolerance);
}

TEST(HostAttention, AgreesForHeadsAndPagesOfAnySize) {
  Problem({.kv_dtype = KVT_FP32,
           .query_dtype = KVT_FP32,
           .kv_heads = 1,
           .group = 1,
           .dim = 7,
           .page = 5})
      .ExpectAgreement(kFp32Tolerance);
  Problem({.kv_dtype = KVT_FP32,
           .query_dtype = KVT_FP32,
           .kv_heads = 3,
           .group = 16,
           .dim = 80,
           .page = 64})
      .ExpectAgreement(kFp32Tolerance);
}

TEST(HostAttention, SeesOnlyTheWindow) {
  Problem problem({.kv_dtype = KVT_FP32, .query_dtype = KVT_FP32});
  problem.attention().window_tokens = 20;
  problem.ExpectAgreement(kFp32Tolerance);
}

TEST(HostAttention, CapsScores) {
  Problem problem({.kv_dtype = KVT_FP32, .query_dtype = KVT_FP32});
  problem.attention().soft_cap = 0.5F;
  problem.ExpectAgreement(kFp32Tolerance);
}

// Eight heads over two KV heads; the second tile of keys begins at token 128.
TEST(HostAttention, GivesNanWhereAKeyOrAQueryIsNan) {
  for (const int token : {0, 5, 128, 299}) {
    SCOPED_TRACE(token);
    Problem problem({.kv_dtype = KVT_FP32, .query_dtype = KVT_FP32, .lengths = {300}, .rows = {1}});
    problem.SpoilKey(0, token);
    problem.ExpectAgreement(kFp32Tolerance);
    EXPECT_EQ(problem.nan_rows(), 4);
  }
  Problem problem({.kv_dtype = KVT_FP32, .query_dtype = KVT_FP32, .lengths = {300}, .rows = {2}});
  problem.SpoilQuery(0);
  problem.ExpectAgreement(kFp32Tolerance);
  EXPECT_EQ(problem.nan_rows(), 1);
}

TEST(HostAttention, GivesZerosForAnEmptySequence) {
  Problem problem({.lengths = {0, 3}, .rows = {1, 1}});
  std::vector<uint16_t> output(size_t{2} * 8 * 64, 0xFFFF);
  std::vector<float> lse(size_t{2} * 8);
  ASSERT_TRUE(AttendOnHost({problem.attention(), output.data(), lse.data()}));
  for (int i = 0; i < 8 * 64; ++i) ASSERT_EQ(output[i], 0);
  EXPECT_EQ(lse[0], -std::numeric_limits<float>::infinity());
}

// The processor time of the fastest of three runs, with all keys and values so large, and scores
// that differ by so much.
double SecondsWith(float element, float score_gap) {
  constexpr int kDim = 128, kTokens = 2048, kRows = 16;
  std::vector<float> query(size_t{kRows} * kDim, 1), output(query.size());
  std::vector<float> keys(size_t{kTokens} * kDim, element), values = keys;
  for (int d = 0; d < kDim; ++d) keys[d] += score_gap / kDim;
  std::vector<int32_t> table(kTokens / 16);
  std::iota(table.begin(), table.end(), 0);
  const int32_t starts[] = {0, kRows}, length = kTokens;
  const ReferenceAttention problem{.query = query.data(),
                                   .query_dtype = KVT_FP32,
                                   .q_heads = 1,
                                   .query_token_stride = kDim,
                                   .query_head_stride = kDim,
                                   .query_starts = starts,
                                   .kv = {.key = keys.data(),
                                          .value = values.data(),
                                          .dtype = KVT_FP32,
                                          .kv_heads = 1,
                                          .head_dim = kDim,
                                          .page_tokens = 16,
                                          .block_stride = 16 * kDim,
                                          .token_stride = kDim,
                                          .head_stride = kDim},
                                   .sequences = {.block_table = table.data(),
                                                 .kv_lengths = &length,
                                                 .table_stride = kTokens / 16,
                                                 .sequences = 1,
                                                 .max_kv_length = kTokens},
                                   .softmax_scale = 1};
  double fastest = std::numeric_limits<double>::infinity();
  for (int run = 0; run < 3; ++run) {
    const auto now = [] {
      timespec time{};
      ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
      return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
    };
    const double begun = now();
    EXPECT_TRUE(AttendOnHost({problem, output.data(), nullptr}));
    fastest = std::min(fastest, now() - begun);
  }
  return fastest;
}

// A client chooses the bytes, and is allowed a call by its price.
TEST(HostAttention, TakesNoLongerForNumbersTooSmallToBeNormal) {
  const double usual = SecondsWith(0.01F, 0);
  EXPECT_LT(SecondsWith(1e-40F, 0), 4 * usual) << "keys and values";
  EXPECT_LT(SecondsWith(0.01F, 95), 4 * usual) << "weights";
}

TEST(HostAttention, StopsWhenItIsCancelled) {
  Problem problem({});
  std::vector<uint16_t> output(size_t{135} * 8 * 64);
  const std::atomic<bool> cancelled = true;
  EXPECT_FALSE(AttendOnHost({problem.attention(), output.data(), nullptr}, &cancelled));
}

}  // namespace
}  // namespace kvtier::kernels
