// SPDX-License-Identifier: Apache-2.0
// Where the keys and values of one sequence are (memory, block table, strides), and causal
// attention over them, read where they are. This is all that attention knows of the cache, and all
// that makes a mapped pool usable in place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"
#include "client/examples/model_shape.h"

namespace kvtier::generate {

// Byte strides of the block-first layout [block][layer][K,V][token][head][dim], FP32.
struct KvLayout {
  size_t block_stride = 0;
  size_t layer_stride = 0;
  size_t value_offset = 0;  // from a layer's keys to its values
  size_t key_token_stride = 0;
  size_t key_head_stride = 0;
  size_t value_token_stride = 0;
  size_t value_head_stride = 0;
};

// Does not own the memory. Reading and writing at the same time is the caller's to order.
struct KvView {
  std::byte* base = nullptr;
  std::span<const int32_t> block_table;  // of the sequence's blocks, in order
  KvLayout layout;

  // The vector of kHeadDim floats of one layer and head for the token at `position`.
  [[nodiscard]] float* Key(size_t layer, size_t position, size_t head) const {
    return Floats(
        layer, position,
        position % kBlockTokens * layout.key_token_stride + head * layout.key_head_stride);
  }
  [[nodiscard]] float* Value(size_t layer, size_t position, size_t head) const {
    return Floats(layer, position,
                  layout.value_offset + position % kBlockTokens * layout.value_token_stride +
                      head * layout.value_head_stride);
  }

 private:
  [[nodiscard]] float* Floats(size_t layer, size_t position, size_t offset) const {
    const size_t block = position / kBlockTokens;
    KVT_CHECK(block < block_table.size());
    return reinterpret_cast<float*>(base +
                                    static_cast<size_t>(block_table[block]) * layout.block_stride +
                                    layer * layout.layer_stride + offset);
  }
};

// One query head: mixes the values of positions 0..position of `layer` and `kv_head` into `output`,
// weighted by softmax(query * key / sqrt(kHeadDim)). `query` and `output` are kHeadDim floats;
// `scores` is scratch for position + 1 floats and kLanes more.
//
// Every sum goes over the positions in their order, so the result depends on the bytes of the
// sequence and on nothing else: not on where its blocks are, nor on when they were computed.
void Attend(const KvView& kv, size_t layer, size_t kv_head, size_t position, const float* query,
            std::span<float> scores, float* output);

// Consecutive tokens of the sequence, in one layer.
struct LayerRows {
  const ModelShape& shape;
  size_t layer = 0;
  size_t first_position = 0;
  size_t count = 0;
};

// Its calls may be made from several threads at once, for different rows.
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
