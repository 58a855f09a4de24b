// SPDX-License-Identifier: Apache-2.0
#include "protocol/kv_layout.h"

#include "base/result.h"

namespace kvtier {

KvLayout KvLayout::Of(const ModelRecord& record) {
  KvLayout layout;
  layout.block_tokens = record.block_tokens;
  layout.element_bytes = KvDtypeBytes(record.dtype);
  layout.k_head_stride = record.k_head_dim * layout.element_bytes;
  layout.v_head_stride = record.v_head_dim * layout.element_bytes;
  layout.k_token_stride = record.kv_heads * layout.k_head_stride;
  layout.v_token_stride = record.kv_heads * layout.v_head_stride;
  layout.v_offset = record.block_tokens * layout.k_token_stride;
  layout.layer_stride = layout.v_offset + record.block_tokens * layout.v_token_stride;
  layout.block_stride = record.layers * layout.layer_stride;
  return layout;
}

std::vector<uint64_t> SlotMapping(std::span<const BlockIndex> block_table, uint32_t block_tokens,
                                  uint64_t first, uint64_t count) {
  KVT_CHECK(block_tokens > 0 && first + count <= block_table.size() * uint64_t{block_tokens});
  std::vector<uint64_t> slots;
  slots.reserve(count);
  for (uint64_t token = first; token < first + count; ++token) {
    const uint64_t block = block_table[token / block_tokens].value;
    slots.push_back(block * block_tokens + token % block_tokens);
  }
  return slots;
}

}  // namespace kvtier
