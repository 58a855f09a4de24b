// SPDX-License-Identifier: Apache-2.0
// What the model does with the keys and values of one sequence, wherever they are.
#pragma once

#include <cstddef>
#include <span>

#include "client/examples/kv_view.h"
#include "client/examples/model_shape.h"

namespace kvtier::generate {

// Consecutive tokens of the sequence, in one layer.
struct LayerRows {
  const ModelShape& shape;
  size_t layer = 0;
  size_t first_position = 0;
  size_t count = 0;
};

// Both may be called from several threads at once, for different rows.
class KvAccess {
 public:
  virtual ~KvAccess() = default;

  // Writes the rows' keys and values, [count][kv_heads][kHeadDim] each.
  virtual void Store(const LayerRows& rows, const float* keys, const float* values) = 0;
  // Attention of each row over the positions up to its own, which have been stored: queries and
  // `mixed` are [count][query_heads][kHeadDim]. `scores` is scratch for as many floats as there are
  // positions, and kLanes more.
  virtual void Attend(const LayerRows& rows, const float* queries, std::span<float> scores,
                      float* mixed) = 0;
};

// In memory of the CPU.
class HostKv final : public KvAccess {
 public:
  explicit HostKv(const KvView& view) : view_(view) {}

  void Store(const LayerRows& rows, const float* keys, const float* values) override;
  void Attend(const LayerRows& rows, const float* queries, std::span<float> scores,
              float* mixed) override;

 private:
  const KvView view_;
};

}  // namespace kvtier::generate
