// SPDX-License-Identifier: Apache-2.0
#include "client/examples/rope.h"

#include <cmath>

namespace kvtier::generate {
namespace {

constexpr size_t kPairs = kHeadDim / 2;

}  // namespace

Rope::Rope(const ModelShape& shape)
    : cosines_(shape.max_positions * kPairs), sines_(shape.max_positions * kPairs) {
  for (size_t pair = 0; pair < kPairs; ++pair) {
    const double turn =
        std::pow(double{shape.rope_theta}, -2.0 * static_cast<double>(pair) / kHeadDim);
    for (size_t position = 0; position < shape.max_positions; ++position) {
      const double angle = static_cast<double>(position) * turn;
      cosines_[position * kPairs + pair] = static_cast<float>(std::cos(angle));
      sines_[position * kPairs + pair] = static_cast<float>(std::sin(angle));
    }
  }
}

void Rope::Rotate(float* vectors, size_t heads, size_t position) const {
  const float* cosines = cosines_.data() + position * kPairs;
  const float* sines = sines_.data() + position * kPairs;
  for (size_t head = 0; head < heads; ++head) {
    float* first = vectors + head * kHeadDim;
    float* second = first + kPairs;
    for (size_t i = 0; i < kPairs; ++i) {
      const float x = first[i];
      const float y = second[i];
      first[i] = x * cosines[i] - y * sines[i];
      second[i] = y * cosines[i] + x * sines[i];
    }
  }
}

}  // namespace kvtier::generate
