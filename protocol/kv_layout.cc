// SPDX-License-Identifier: Apache-2.0
#include "protocol/kv_layout.h"

#include "base/result.h"

namespace kvtier {

KvLayout KvLayout::Of(const KvGroup& group) {
  KvLayout layout;
  layout.block_tokens = group.block_tokens;
  layout.layer_stride = group.LayerBytes();
  layout.block_stride = group.BlockBytes();
  if (group.hit_rule == HitRule::kState) return layout;
  layout.element_bytes = KvDtypeBytes(group.dtype);
  layout.k_head_stride = group.k_head_dim * layout.element_bytes;
  layout.v_head_stride = group.v_head_dim * layout.element_bytes;
  layout.k_token_stride = group.kv_heads * layout.k_head_stride;
  layout.v_token_stride = group.kv_heads * layout.v_head_stride;
  layout.v_offset = group.block_tokens * layout.k_token_stride;
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
