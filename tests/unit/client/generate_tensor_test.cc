// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "client/examples/tensor.h"
#include "tests/unit/client/generate_fixture.h"

namespace kvtier::generate {
namespace {

constexpr size_t kInputs = 48;
constexpr size_t kOutputs = 80;

// Built with -ffp-contract=off, as the library is.
std::vector<float> MultiplyInOrder(const std::vector<float>& matrix, std::span<const float> x) {
  std::vector<float> y(kOutputs);
  for (size_t output = 0; output < kOutputs; ++output) {
    for (size_t input = 0; input < kInputs; ++input) {
      const float product = matrix[output * kInputs + input] * x[input];
      y[output] = y[output] + product;
    }
  }
  return y;
}

class MultiplyRowsTest : public testing::TestWithParam<size_t> {};

TEST_P(MultiplyRowsTest, EveryRowIsTheSumOverInputsInTheirOrderToTheBit) {
  const std::vector<float> values = RandomFloats(kOutputs * kInputs, 1.0f, 1);
  const PackedMatrix matrix(values, kOutputs, kInputs);
  const size_t rows = GetParam();
  const std::vector<float> x = RandomFloats(rows * kInputs, 1.0f, 2);
  std::vector<float> y(rows * kOutputs);
  MultiplyRows(matrix, x.data(), rows, y.data());
  for (size_t row = 0; row < rows; ++row) {
    const std::vector<float> expected =
        MultiplyInOrder(values, std::span(x).subspan(row * kInputs, kInputs));
    EXPECT_EQ(BitsOf(std::span(y).subspan(row * kOutputs, kOutputs)), BitsOf(expected)) << row;
  }
}

INSTANTIATE_TEST_SUITE_P(Rows, MultiplyRowsTest, testing::Values(1, 3, 4, 5, 8, 31));

TEST(TensorTest, ProductIsAddedToWhatWasThere) {
  const PackedMatrix matrix(RandomFloats(kOutputs * kInputs, 1.0f, 1), kOutputs, kInputs);
  const std::vector<float> x = RandomFloats(2 * kInputs, 1.0f, 2);
  const std::vector<float> before = RandomFloats(2 * kOutputs, 1.0f, 3);
  std::vector<float> product(2 * kOutputs);
  MultiplyRows(matrix, x.data(), 2, product.data());
  std::vector<float> y = before;
  std::vector<float> scratch(2 * kOutputs);
  MultiplyRowsAndAdd(matrix, x.data(), 2, y.data(), scratch.data());
  for (size_t i = 0; i < y.size(); ++i) EXPECT_EQ(y[i], before[i] + product[i]);
}

TEST(TensorTest, NormalizedRowHasTheScalesRootMeanSquare) {
  constexpr size_t kWidth = 64;
  const std::vector<float> x = RandomFloats(3 * kWidth, 7.0f, 1);
  const std::vector<float> scale(kWidth, 2.0f);
  std::vector<float> y(x.size());
  NormalizeRows(x.data(), 3, scale, 0.0f, y.data());
  for (size_t row = 0; row < 3; ++row) {
    double squares = 0;
    for (size_t i = 0; i < kWidth; ++i) squares += std::pow(double{y[row * kWidth + i]}, 2);
    EXPECT_NEAR(std::sqrt(squares / kWidth), 2.0, 1e-5);
    EXPECT_NEAR(y[row * kWidth] / x[row * kWidth], y[row * kWidth + 9] / x[row * kWidth + 9], 1e-5);
  }
}

TEST(TensorTest, GateIsSiluTimesUpOverTheWholeRange) {
  std::vector<float> gate = {-1e30f, -200.0f, -88.5f, -20.0f, -3.0f, -0.5f, -1e-6f, 0.0f,
                             1e-6f,  0.25f,   1.0f,   5.0f,   30.0f, 88.5f, 200.0f, 1e30f};
  const std::vector<float> x = gate;
  const std::vector<float> up(gate.size(), 3.0f);
  GateInPlace(gate.data(), up.data(), gate.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const double expected = 3.0 * x[i] / (1.0 + std::exp(-double{x[i]}));
    if (x[i] < -86.0f) {
      EXPECT_NEAR(gate[i], 0.0, 1e-5) << x[i];
    } else {
      EXPECT_NEAR(gate[i], expected, 1e-6 * std::abs(expected)) << x[i];
    }
  }
}

TEST(TensorTest, ScoresBecomeExponentialsAndTheirSumIgnoresThePadding) {
  for (const size_t count : {1, 15, 16, 17, 100}) {
    std::vector<float> scores = RandomFloats(count + 16, 20.0f, 5);
    const std::vector<float> original = scores;
    const float maximum = *std::max_element(original.begin(), original.begin() + count);
    const float sum = ExponentiateScores(scores.data(), count);
    double expected_sum = 0;
    for (size_t i = 0; i < count; ++i) {
      const double expected = std::exp(double{original[i] - maximum});
      EXPECT_NEAR(scores[i], expected, 4e-7 * expected + 1e-30);
      expected_sum += expected;
    }
    EXPECT_NEAR(sum, expected_sum, 1e-5 * expected_sum) << count;
  }
}

}  // namespace
}  // namespace kvtier::generate
