// SPDX-License-Identifier: Apache-2.0
#include "kernels/reference/attention_reference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/reference/number_format.h"

namespace kvtier::kernels {
namespace {

constexpr int kDim = 4;
constexpr int kPage = 16;

// One sequence with one head in one block; keys are 0, so that all seen tokens weigh the same.
class OneSequence {
 public:
  explicit OneSequence(int length) : length_(length) {
    keys_.assign(kPage * kDim, 0);
    values_.resize(kPage * kDim);
    for (int t = 0; t < kPage; ++t) {
      for (int d = 0; d < kDim; ++d) {
        StoreElement(values_.data(), KVT_FP32, t * kDim + d, static_cast<float>(t));
      }
    }
  }

  ReferenceAttention Attention() {
    ReferenceAttention attention;
    attention.query = query_.data();
    attention.query_dtype = KVT_FP32;
    attention.q_heads = 1;
    attention.query_token_stride = kDim;
    attention.query_head_stride = kDim;
    attention.kv = {.key = keys_.data(),
                    .value = values_.data(),
                    .dtype = KVT_FP32,
                    .kv_heads = 1,
                    .head_dim = kDim,
                    .page_tokens = kPage,
                    .block_stride = kPage * kDim,
                    .token_stride = kDim,
                    .head_stride = kDim};
    attention.sequences = {.block_table = &table_,
                           .kv_lengths = &length_,
                           .table_stride = 1,
                           .sequences = 1,
                           .max_kv_length = kPage};
    return attention;
  }

 private:
  int32_t length_;
  int32_t table_ = 0;
  std::vector<float> query_ = std::vector<float>(kPage * kDim, 1.0F);
  std::vector<float> keys_;
  std::vector<float> values_;
};

TEST(AttentionReference, AveragesValuesOfEqualKeys) {
  OneSequence sequence(5);
  const ReferenceOutput result = AttentionReference(sequence.Attention());
  EXPECT_DOUBLE_EQ(result.output[0], 2.0);
  EXPECT_NEAR(result.lse[0], std::log(5.0), 1e-12);
}

TEST(AttentionReference, GivesZerosForAnEmptySequence) {
  OneSequence sequence(0);
  const ReferenceOutput result = AttentionReference(sequence.Attention());
  EXPECT_EQ(result.output[0], 0.0);
  EXPECT_EQ(result.lse[0], -std::numeric_limits<double>::infinity());
}

TEST(AttentionReference, ShowsEachRowOnlyWhatLiesBeforeIt) {
  OneSequence sequence(6);
  const int32_t starts[] = {0, 3};
  ReferenceAttention attention = sequence.Attention();
  attention.query_starts = starts;
  const ReferenceOutput result = AttentionReference(attention);
  EXPECT_DOUBLE_EQ(result.output[0 * kDim], 1.5);  // tokens 0 to 3
  EXPECT_DOUBLE_EQ(result.output[1 * kDim], 2.0);
  EXPECT_DOUBLE_EQ(result.output[2 * kDim], 2.5);
}

TEST(AttentionReference, SeesOnlyTheWindow) {
  OneSequence sequence(10);
  ReferenceAttention attention = sequence.Attention();
  attention.window_tokens = 3;
  EXPECT_DOUBLE_EQ(AttentionReference(attention).output[0], 8.0);  // tokens 7, 8, 9
}

TEST(AttentionReference, GivesASinkWeightButNoValue) {
  OneSequence sequence(3);
  const float sink = 0;  // as heavy as one token
  ReferenceAttention attention = sequence.Attention();
  attention.sinks = &sink;
  const ReferenceOutput result = AttentionReference(attention);
  EXPECT_NEAR(result.output[0], 0.75, 1e-7);
  EXPECT_NEAR(result.lse[0], std::log(4.0), 1e-7);
}

TEST(AttentionReference, TakesALatentCachesValuesFromItsKeysFirstColumns) {
  OneSequence sequence(5);
  ReferenceAttention attention = sequence.Attention();
  attention.kv.key = attention.kv.value;
  attention.softmax_scale = 0;  // all tokens weigh the same
  attention.value_dim = kDim / 2;
  const ReferenceOutput result = AttentionReference(attention);
  EXPECT_EQ(result.output, (std::vector<double>{2.0, 2.0}));
  EXPECT_NEAR(result.lse[0], std::log(5.0), 1e-12);
}

TEST(NumberFormat, RoundsToNearestEven) {
  EXPECT_EQ(Bf16FromFloat(1.0F + 0x1p-8F), 0x3F80);            // a tie, to even
  EXPECT_EQ(Bf16FromFloat(1.0F + 0x1p-7F + 0x1p-8F), 0x3F82);  // a tie, to even
  EXPECT_EQ(Fp16FromFloat(1.0F + 0x1p-11F), 0x3C00);
  EXPECT_EQ(Fp16FromFloat(2047.0F / 2048.0F + 0x1p-12F), 0x3C00);  // carries into the exponent
  EXPECT_EQ(E4m3FromFloat(17.0F), 0x58);                           // between 16 and 18
}

TEST(NumberFormat, Fp16IsTheNearestNumberAndOfTwoTheEven) {
  // By the format's definition; infinity stands where the next number would.
  const auto number = [](int bits) {
    const int exponent = bits >> 10, mantissa = bits & 0x3FF;
    return exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -24)
                         : std::ldexp(static_cast<float>(mantissa + 0x400), exponent - 25);
  };
  for (int bits = 0; bits < 0x7C00; ++bits) {
    const float value = number(bits);
    const float middle = (value + number(bits + 1)) / 2;
    ASSERT_EQ(FloatFromFp16(static_cast<uint16_t>(bits)), value);
    ASSERT_EQ(Fp16FromFloat(value), bits);
    ASSERT_EQ(Fp16FromFloat(middle), bits + bits % 2);
    ASSERT_EQ(Fp16FromFloat(std::nextafter(middle, 0.0F)), bits);
    ASSERT_EQ(Fp16FromFloat(std::nextafter(middle, 1e9F)), bits + 1);
    ASSERT_EQ(Fp16FromFloat(-middle), 0x8000 + bits + bits % 2);
    ASSERT_EQ(FloatFromFp16(static_cast<uint16_t>(0x8000 + bits)), -value);
  }
}

TEST(NumberFormat, Fp16KeepsInfinitiesAndWhatIsNoNumber) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(FloatFromFp16(Fp16FromFloat(kInfinity)), kInfinity);
  EXPECT_EQ(FloatFromFp16(Fp16FromFloat(-kInfinity)), -kInfinity);
  EXPECT_EQ(Fp16FromFloat(std::numeric_limits<float>::quiet_NaN()), 0x7FFF);
  EXPECT_TRUE(std::isnan(FloatFromFp16(0x7FFF)));
}

TEST(NumberFormat, KeepsSubnormalsAndSaturates) {
  EXPECT_EQ(FloatFromFp16(Fp16FromFloat(0x1p-24F)), 0x1p-24F);
  EXPECT_EQ(FloatFromE4m3(E4m3FromFloat(0x1p-9F)), 0x1p-9F);
  EXPECT_EQ(Fp16FromFloat(1e6F), 0x7C00);
  EXPECT_EQ(FloatFromE4m3(E4m3FromFloat(1e6F)), 448.0F);
  EXPECT_EQ(FloatFromE4m3(E4m3FromFloat(-1e6F)), -448.0F);
  EXPECT_TRUE(std::isnan(FloatFromE4m3(0x7F)));
}

TEST(NumberFormat, ReadsBackEveryNumberOfEachFormat) {
  for (int bits = 0; bits < 0x7C00; ++bits) {
    ASSERT_EQ(Fp16FromFloat(FloatFromFp16(static_cast<uint16_t>(bits))), bits);
  }
  for (int bits = 0; bits < 0x7F; ++bits) {
    ASSERT_EQ(E4m3FromFloat(FloatFromE4m3(static_cast<uint8_t>(bits))), bits);
  }
}

}  // namespace
}  // namespace kvtier::kernels
