// SPDX-License-Identifier: Apache-2.0
// How large a model's KV cache is, told from its Hugging Face config.json.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace kvtier {

struct ModelSize {
  std::string architecture;
  uint64_t layers = 0;  // that keep KV, of `all_layers`
  uint64_t all_layers = 0;
  uint64_t kv_heads = 0;  // of one tensor-parallel rank
  uint64_t head_dim = 0;
  bool latent = false;  // one compressed vector of head_dim a token and layer, instead of K and V
  std::string dtype;    // of the KV cache
  uint64_t element_bytes = 0;
  std::vector<std::string> notes;  // for people: facts that the figures leave out

  [[nodiscard]] uint64_t BytesPerToken() const {
    return layers * kv_heads * head_dim * element_bytes * (latent ? 1 : 2);
  }
};

// `dtype`: bf16, f16, f32, fp8; empty: as the config says. Errors: kInvalidArgument "bad_json",
// "bad_model_config" naming the missing field, "bad_dtype", "bad_tensor_parallel".
[[nodiscard]] Result<ModelSize> MeasureModel(std::string_view config_json, std::string_view dtype,
                                             uint64_t tensor_parallel);

// The slots that host (0) or disk (kSlabHeaderBytes) holds: each of a block with its header, in
// whole slabs, each of which may begin with a header of its own.
[[nodiscard]] uint64_t SlotsIn(uint64_t tier_bytes, uint64_t block_bytes, uint64_t slab_bytes,
                               uint64_t slab_header_bytes);

}  // namespace kvtier
