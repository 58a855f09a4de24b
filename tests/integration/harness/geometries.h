// SPDX-License-Identifier: Apache-2.0
// The KV caches of real models, through all tiers of a daemon.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kvtier/kvtier.h"

namespace kvtier {

struct KvGeometry {
  const char* name;
  uint32_t layers;
  uint32_t kv_heads;
  uint32_t k_head_dim;
  uint32_t v_head_dim;
  kvt_model_dtype dtype;
  uint64_t block_bytes;  // as the model's users reckon it
};

inline constexpr KvGeometry kKvGeometries[] = {
    {"Llama31_8B", 32, 8, 128, 128, KVT_DTYPE_BFLOAT16, 2097152},
    {"Qwen3_06B", 28, 8, 128, 128, KVT_DTYPE_BFLOAT16, 1835008},
    {"Gpt2", 12, 12, 64, 64, KVT_DTYPE_FLOAT16, 589824},
    {"Latent", 61, 1, 576, 0, KVT_DTYPE_BFLOAT16, 1124352},
    {"Llama31_8BFp8", 32, 8, 128, 128, KVT_DTYPE_FLOAT8_E4M3, 1048576},
};

// Starts a daemon on the device ("host", "cuda:0") in the directory and expects blocks of this
// geometry, each layer of each block different, to be served byte by byte from the pool, from host
// (whole and layer by layer) and, after kill -9 and a restart, from disk.
void ExpectServedFromAllTiers(const KvGeometry& geometry, const std::string& kvtierd,
                              const std::string& device, const std::string& directory);

}  // namespace kvtier
