// SPDX-License-Identifier: Apache-2.0
#include "client/examples/tensor.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/result.h"
#include "client/examples/lanes.h"

namespace kvtier::generate {
namespace {

// Rows that share one reading of the matrix; with one panel their sums fit the registers of AVX2.
constexpr size_t kTileRows = 4;

template <size_t kRows>
KVT_INLINE void MultiplyTile(const float* panel, size_t inputs, const float* x, float* y,
                             size_t outputs) {
  Lanes sums[kRows] = {};
  for (size_t i = 0; i < inputs; ++i) {
    const Lanes weights = At(panel + i * kLanes);
    for (size_t row = 0; row < kRows; ++row) sums[row] += weights * x[row * inputs + i];
  }
  for (size_t row = 0; row < kRows; ++row) At(y + row * outputs) = sums[row];
}

KVT_VECTOR_CLONES void MultiplyPanel(const float* panel, size_t inputs, const float* x, size_t rows,
                                     float* y, size_t outputs) {
  size_t row = 0;
  for (; row + kTileRows <= rows; row += kTileRows) {
    MultiplyTile<kTileRows>(panel, inputs, x + row * inputs, y + row * outputs, outputs);
  }
  for (; row < rows; ++row) {
    MultiplyTile<1>(panel, inputs, x + row * inputs, y + row * outputs, outputs);
  }
}

KVT_VECTOR_CLONES void AddInPlace(float* y, const float* x, size_t count) {
  for (size_t i = 0; i < count; i += kLanes) At(y + i) += At(x + i);
}

KVT_VECTOR_CLONES void NormalizeRow(const float* x, const float* scale, size_t width, float epsilon,
                                    float* y) {
  Lanes squares = {};
  for (size_t i = 0; i < width; i += kLanes) squares += At(x + i) * At(x + i);
  const float mean_square = SumOf(&squares) / static_cast<float>(width);
  const float factor = 1.0f / std::sqrt(mean_square + epsilon);
  for (size_t i = 0; i < width; i += kLanes) At(y + i) = At(x + i) * factor * At(scale + i);
}

KVT_VECTOR_CLONES void GateLanes(float* gate, const float* up, size_t count) {
  const Lanes lowest = Lanes{} - 87.0f;
  for (size_t i = 0; i < count; i += kLanes) {
    const Lanes x = At(gate + i);
    // The exponential's argument stays below 88 so that it cannot overflow.
    Lanes decay = -(x < lowest ? lowest : x);
    ExpInPlace(&decay);
    At(gate + i) = x / (decay + 1.0f) * At(up + i);
  }
}

KVT_VECTOR_CLONES float ExponentiateLanes(float* scores, size_t padded_count, float maximum) {
  Lanes sums = {};
  for (size_t i = 0; i < padded_count; i += kLanes) {
    Lanes weights = At(scores + i) - maximum;
    ExpInPlace(&weights);
    At(scores + i) = weights;
    sums += weights;
  }
  return SumOf(&sums);
}

}  // namespace

PackedMatrix::PackedMatrix(std::span<const float> values, size_t outputs, size_t inputs)
    : outputs_(outputs), inputs_(inputs), buffer_(values.size_bytes()) {
  KVT_CHECK(outputs % kLanes == 0 && values.size() == outputs * inputs);
  float* packed = reinterpret_cast<float*>(buffer_.span().data());
  for (size_t panel = 0; panel < outputs; panel += kLanes) {
    for (size_t input = 0; input < inputs; ++input) {
      for (size_t lane = 0; lane < kLanes; ++lane) {
        *packed++ = values[(panel + lane) * inputs + input];
      }
    }
  }
}

void MultiplyRows(const PackedMatrix& matrix, const float* x, size_t rows, float* y) {
  for (size_t output = 0; output < matrix.outputs(); output += kLanes) {
    MultiplyPanel(matrix.data() + output * matrix.inputs(), matrix.inputs(), x, rows, y + output,
                  matrix.outputs());
  }
}

void MultiplyRowsAndAdd(const PackedMatrix& matrix, const float* x, size_t rows, float* y,
                        float* scratch) {
  MultiplyRows(matrix, x, rows, scratch);
  AddInPlace(y, scratch, rows * matrix.outputs());
}

void NormalizeRows(const float* x, size_t rows, std::span<const float> scale, float epsilon,
                   float* y) {
  const size_t width = scale.size();
  for (size_t row = 0; row < rows; ++row) {
    NormalizeRow(x + row * width, scale.data(), width, epsilon, y + row * width);
  }
}

void GateInPlace(float* gate, const float* up, size_t count) { GateLanes(gate, up, count); }

float ExponentiateScores(float* scores, size_t count) {
  const float maximum = *std::max_element(scores, scores + count);
  const size_t padded_count = (count + kLanes - 1) / kLanes * kLanes;
  std::fill(scores + count, scores + padded_count, -std::numeric_limits<float>::infinity());
  return ExponentiateLanes(scores, padded_count, maximum);
}

}  // namespace kvtier::generate
