// SPDX-License-Identifier: Apache-2.0
// Rotary position embedding: a token's position, turned into its queries and keys.
#pragma once

#include <cstddef>
#include <vector>

#include "client/examples/model_shape.h"

namespace kvtier::generate {

// Immutable; any thread.
class Rope {
 public:
  explicit Rope(const ModelShape& shape);

  // Turns each of `heads` vectors of kHeadDim floats; element i together with i + kHeadDim / 2.
  void Rotate(float* vectors, size_t heads, size_t position) const;

 private:
  // [position][kHeadDim / 2]
  std::vector<float> cosines_;
  std::vector<float> sines_;
};

}  // namespace kvtier::generate
