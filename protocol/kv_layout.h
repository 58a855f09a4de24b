// SPDX-License-Identifier: Apache-2.0
// Where the K and V of a token lie in a pool of one group of layers.
#pragma once

#include <cstdint>

#include "base/ids.h"
#include "protocol/model_record.h"

namespace kvtier {

// Byte strides of a group's KvLayoutKind. Inline scales follow a layer's keys and values as
// [token][head][scale]. An opaque group has only strides of blocks and layers; the others are 0.
struct KvLayout {
  uint32_t block_tokens = 0;
  uint64_t element_bytes = 0;
  uint64_t block_stride = 0;
  uint64_t layer_stride = 0;
  uint64_t v_offset = 0;  // from a layer's K to its V
  uint64_t k_token_stride = 0;
  uint64_t k_head_stride = 0;
  uint64_t v_token_stride = 0;
  uint64_t v_head_stride = 0;

  // REQUIRES: the group is one of a record whose Validate() passed.
  [[nodiscard]] static KvLayout Of(const KvGroup& group) {
    KvLayout layout;
    layout.block_tokens = group.block_tokens;
    layout.layer_stride = group.LayerBytes();
    layout.block_stride = group.BlockBytes();
    if (group.IsOpaque()) return layout;
    layout.element_bytes = KvDtypeBytes(group.dtype);
    const uint64_t k_bytes = group.k_head_dim * layout.element_bytes;
    const uint64_t v_bytes = group.v_head_dim * layout.element_bytes;
    const bool interleaved = group.layout == KvLayoutKind::kInterleaved;
    layout.k_head_stride = interleaved ? k_bytes + v_bytes : k_bytes;
    layout.v_head_stride = interleaved ? k_bytes + v_bytes : v_bytes;
    layout.k_token_stride = group.kv_heads * layout.k_head_stride;
    layout.v_token_stride = group.kv_heads * layout.v_head_stride;
    layout.v_offset = interleaved ? k_bytes : group.block_tokens * layout.k_token_stride;
    return layout;
  }

  // Offsets from the pool's first byte to the first element of a head's vector. `token` is within
  // the block.
  [[nodiscard]] uint64_t KeyOffset(BlockIndex block, uint32_t layer, uint32_t token,
                                   uint32_t head) const {
    return block.value * block_stride + layer * layer_stride + token * k_token_stride +
           head * k_head_stride;
  }
  [[nodiscard]] uint64_t ValueOffset(BlockIndex block, uint32_t layer, uint32_t token,
                                     uint32_t head) const {
    return block.value * block_stride + layer * layer_stride + v_offset + token * v_token_stride +
           head * v_head_stride;
  }
};

}  // namespace kvtier
