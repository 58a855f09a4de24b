// SPDX-License-Identifier: Apache-2.0
#include "client/examples/kv_access.h"

#include <algorithm>

#include "client/examples/attention.h"

namespace kvtier::generate {

void HostKv::Store(const LayerRows& rows, const float* keys, const float* values) {
  for (size_t row = 0; row < rows.count; ++row) {
    const size_t position = rows.first_position + row;
    for (size_t head = 0; head < rows.shape.kv_heads; ++head) {
      const size_t at = row * rows.shape.kv_width() + head * kHeadDim;
      std::copy_n(keys + at, kHeadDim, view_.Key(rows.layer, position, head));
      std::copy_n(values + at, kHeadDim, view_.Value(rows.layer, position, head));
    }
  }
}

void HostKv::Attend(const LayerRows& rows, const float* queries, std::span<float> scores,
                    float* mixed) {
  const size_t group = rows.shape.query_heads / rows.shape.kv_heads;
  for (size_t row = 0; row < rows.count; ++row) {
    for (size_t head = 0; head < rows.shape.query_heads; ++head) {
      const size_t at = row * rows.shape.query_width() + head * kHeadDim;
      generate::Attend(view_, rows.layer, head / group, rows.first_position + row, queries + at,
                       scores, mixed + at);
    }
  }
}

}  // namespace kvtier::generate
