// SPDX-License-Identifier: Apache-2.0
// The orders of rows within one layer of a block, over which kernels are tested: all that strides
// can tell apart.
#pragma once

#include <cstdint>

namespace kvtier::kernels {

enum class RowOrder : uint8_t {
  kTokenHead,    // [K, V][token][head][dim], the pool's
  kHeadToken,    // [K, V][head][token][dim]
  kInterleaved,  // [token][head][K dim, V dim], as in vLLM's KV cache
};

// In elements, within one layer of a block.
struct RowLayout {
  int64_t value_offset = 0;  // from the first key to the first value
  int64_t token_stride = 0;
  int64_t head_stride = 0;

  [[nodiscard]] static RowLayout Of(RowOrder order, int64_t page, int64_t heads, int64_t dim) {
    switch (order) {
      case RowOrder::kTokenHead:
        return {page * heads * dim, heads * dim, dim};
      case RowOrder::kHeadToken:
        return {page * heads * dim, dim, page * dim};
      case RowOrder::kInterleaved:
        return {dim, heads * 2 * dim, 2 * dim};
    }
    return {};
  }
  [[nodiscard]] int64_t At(int part, int token, int head) const {
    return part * value_offset + token * token_stride + head * head_stride;
  }
};

}  // namespace kvtier::kernels
