// SPDX-License-Identifier: Apache-2.0
// The arithmetic of the model's layers, row by row.
//
// A row is one token's vector. What comes out for a row never depends on which rows are computed
// with it, in what order, or on which thread: each output is one sum in one fixed order. All calls
// are pure and may be made from any thread.
#pragma once

#include <cstddef>
#include <span>

#include "base/bytes.h"

namespace kvtier::generate {

// A matrix [outputs][inputs], rearranged so that multiplying reads it forwards: panels of kLanes
// outputs, in a panel input by input. Move-only.
class PackedMatrix {
 public:
  PackedMatrix() = default;
  // `values` in row-major order. REQUIRES: outputs is a multiple of kLanes.
  PackedMatrix(std::span<const float> values, size_t outputs, size_t inputs);

  [[nodiscard]] size_t outputs() const { return outputs_; }
  [[nodiscard]] size_t inputs() const { return inputs_; }
  [[nodiscard]] const float* data() const {
    return reinterpret_cast<const float*>(buffer_.span().data());
  }

 private:
  size_t outputs_ = 0;
  size_t inputs_ = 0;
  AlignedBuffer buffer_;
};

// y[row] = matrix * x[row] for x [rows][inputs] and y [rows][outputs]; each output is the sum over
// the inputs in their order.
void MultiplyRows(const PackedMatrix& matrix, const float* x, size_t rows, float* y);

// y[row] += matrix * x[row]; the product is summed first. `scratch` holds rows * outputs floats.
void MultiplyRowsAndAdd(const PackedMatrix& matrix, const float* x, size_t rows, float* y,
                        float* scratch);

// y[row] = x[row] / rms(x[row]) * scale, element by element. REQUIRES: width, the size of `scale`,
// is a multiple of kLanes.
void NormalizeRows(const float* x, size_t rows, std::span<const float> scale, float epsilon,
                   float* y);

// gate[i] = silu(gate[i]) * up[i]. REQUIRES: count is a multiple of kLanes.
void GateInPlace(float* gate, const float* up, size_t count);

// Turns scores into weights that sum to 1, except for the division by that sum, which is returned.
// `scores` has room up to the next multiple of kLanes. REQUIRES: count > 0.
[[nodiscard]] float ExponentiateScores(float* scores, size_t count);

}  // namespace kvtier::generate
