// SPDX-License-Identifier: Apache-2.0
// Where the K and V of a token lie in a pool of one group of layers.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "protocol/model_record.h"

namespace kvtier {

// Byte strides of [block][layer][K,V][token][head][dim]. Inline scales follow a layer's values as
// [token][head][scale]. Of a group of states only the strides of blocks and layers are not 0.
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
  [[nodiscard]] static KvLayout Of(const KvGroup& group);

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

// Slots (block_index * block_tokens + offset) of a sequence's tokens [first, first + count).
// REQUIRES: the table covers them.
[[nodiscard]] std::vector<uint64_t> SlotMapping(std::span<const BlockIndex> block_table,
                                                uint32_t block_tokens, uint64_t first,
                                                uint64_t count);

}  // namespace kvtier
