// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "client/examples/attention.h"
#include "tests/unit/client/generate_fixture.h"

namespace kvtier::generate {
namespace {

constexpr size_t kLayer = 1;
constexpr size_t kHead = 1;
constexpr size_t kPosition = 40;

// Random keys and values at positions 0..kPosition; the rest stays NaN.
void Fill(const KvView& kv) {
  const std::vector<float> values = RandomFloats((kPosition + 1) * 2 * kHeadDim, 2.0f, 1);
  const float* next = values.data();
  for (size_t position = 0; position <= kPosition; ++position) {
    std::copy_n(next, kHeadDim, kv.Key(kLayer, position, kHead));
    std::copy_n(next + kHeadDim, kHeadDim, kv.Value(kLayer, position, kHead));
    next += 2 * kHeadDim;
  }
}

std::vector<float> AttendAt(const KvView& kv, size_t position) {
  const std::vector<float> query = RandomFloats(kHeadDim, 2.0f, 2);
  std::vector<float> scores(position + 1 + 16);
  std::vector<float> output(kHeadDim);
  Attend(kv, kLayer, kHead, position, query.data(), scores, output.data());
  return output;
}

std::vector<double> Reference(const KvView& kv, size_t position) {
  const std::vector<float> query = RandomFloats(kHeadDim, 2.0f, 2);
  std::vector<double> mixed(kHeadDim);
  double sum = 0;
  for (size_t token = 0; token <= position; ++token) {
    double score = 0;
    for (size_t i = 0; i < kHeadDim; ++i)
      score += double{query[i]} * kv.Key(kLayer, token, kHead)[i];
    const double weight = std::exp(score / std::sqrt(double{kHeadDim}));
    sum += weight;
    for (size_t i = 0; i < kHeadDim; ++i) mixed[i] += weight * kv.Value(kLayer, token, kHead)[i];
  }
  for (double& value : mixed) value /= sum;
  return mixed;
}

TEST(AttentionTest, AgreesWithSoftmaxInDoublePrecisionAndReadsNothingBehindThePosition) {
  KvMemory memory(DenseLayout(SmallShape()), 3);
  const KvView kv = memory.view();
  Fill(kv);
  for (const size_t position : {size_t{0}, size_t{15}, size_t{16}, size_t{30}, kPosition}) {
    const std::vector<float> output = AttendAt(kv, position);
    const std::vector<double> expected = Reference(kv, position);
    for (size_t i = 0; i < kHeadDim; ++i) EXPECT_NEAR(output[i], expected[i], 1e-5) << position;
  }
}

TEST(AttentionTest, BlocksAnywhereInThePoolGiveTheSameBits) {
  KvMemory in_order(DenseLayout(SmallShape()), 3);
  KvMemory scattered(DenseLayout(SmallShape()), 9, {7, 0, 4});
  Fill(in_order.view());
  Fill(scattered.view());
  EXPECT_EQ(BitsOf(AttendAt(in_order.view(), kPosition)),
            BitsOf(AttendAt(scattered.view(), kPosition)));
}

TEST(AttentionTest, OtherStridesGiveTheSameBits) {
  KvLayout padded = DenseLayout(SmallShape());
  padded.key_head_stride = padded.value_head_stride = 40 * sizeof(float);
  padded.key_token_stride = padded.value_token_stride = 100 * sizeof(float);
  padded.value_offset = kBlockTokens * padded.key_token_stride;
  padded.layer_stride = 2 * padded.value_offset + 64;
  padded.block_stride = 2 * padded.layer_stride + 4096;
  KvMemory dense(DenseLayout(SmallShape()), 3);
  KvMemory other(padded, 3);
  Fill(dense.view());
  Fill(other.view());
  EXPECT_EQ(BitsOf(AttendAt(dense.view(), kPosition)), BitsOf(AttendAt(other.view(), kPosition)));
}

}  // namespace
}  // namespace kvtier::generate
