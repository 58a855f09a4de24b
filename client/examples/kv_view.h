// SPDX-License-Identifier: Apache-2.0
// Where the keys and values of one sequence are: memory, block table, strides. This is all that
// attention knows of the cache, and all that makes a mapped pool usable in place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/check.h"
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

}  // namespace kvtier::generate
