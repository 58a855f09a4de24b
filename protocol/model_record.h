// SPDX-License-Identifier: Apache-2.0
// The model record: KV geometries and everything else that must be equal for blocks to be
// interchangeable. Never inferred from a shape.
//
// A model's layers form groups: those of full attention, of one sliding window, of recurrent state.
// The blocks of a group have a geometry, a pool and an identity of their own, and a hit rule that
// says which of them a prefix needs (restorable_prefix.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/digest.h"
#include "base/result.h"
#include "protocol/restorable_prefix.h"

namespace kvtier {

inline constexpr size_t kMaxModelGroups = 16;
inline constexpr uint32_t kMaxModelLayers = 1024;
inline constexpr uint32_t kMaxModelKvHeads = 1024;
inline constexpr uint32_t kMaxModelHeadDim = 4096;
inline constexpr uint32_t kMaxModelBlockTokens = 1024;
inline constexpr uint32_t kMaxModelTensorParallelSize = 1024;
inline constexpr uint32_t kMaxModelWindowTokens = 1u << 24;
inline constexpr uint32_t kMaxModelScaleBytes = 1024;
inline constexpr uint64_t kMaxModelBlockBytes = uint64_t{1} << 30;
inline constexpr size_t kMaxModelNameBytes = 256;
inline constexpr size_t kMaxHashRecipeBytes = 64;
inline constexpr size_t kMaxModelExtraCount = 32;
inline constexpr size_t kMaxModelExtraKeyBytes = 64;
inline constexpr size_t kMaxModelExtraValueBytes = 256;

// How blocks are hashed for those who have no engine that does.
inline constexpr std::string_view kDefaultHashRecipe = "vllm-sha256-cbor/2";

// Values are part of the fingerprint and never change; new ones are appended.
enum class KvDtype : uint8_t {
  kFloat32 = 1,
  kFloat16 = 2,
  kBfloat16 = 3,
  kFloat8E4m3 = 4,
  kFloat8E5m2 = 5,
  kInt8 = 6,
};

[[nodiscard]] uint32_t KvDtypeBytes(KvDtype dtype);
// "bf16", "f8e4m3", ...
[[nodiscard]] std::string_view KvDtypeName(KvDtype dtype);

// Order of dimensions in the pool; strides follow from it, see kv_layout.h.
enum class KvLayoutKind : uint8_t {
  kBlockFirst = 1,   // [block][layer][K,V][token][head][dim]
  kInterleaved = 2,  // [block][layer][token][head][K dim, V dim], as in vLLM's KV cache
};

// One group of layers, in one of two forms. With dimensions (heads, head sizes, inline scales) the
// layout of a block follows from them, as kv_layout.h says. An opaque group has `layer_bytes`
// instead: only the engine knows what they are, and nothing but the engine looks into them. With
// kState a group is opaque. `block_tokens` is how many tokens a block has; with kState, how far
// apart the boundaries are at which a state can be kept.
struct KvGroup {
  HitRule hit_rule = HitRule::kAll;
  uint32_t window_tokens = 0;  // kTrailing: how many tokens before a boundary are needed
  // Every tensor-parallel rank holds the same bytes, as of a latent cache: they are stored once,
  // and all ranks find them.
  bool replicated = false;
  uint32_t layers = 0;
  uint32_t kv_heads = 0;  // stored by this tensor-parallel rank
  uint32_t k_head_dim = 0;
  uint32_t v_head_dim = 0;   // 0: no values beside the keys, as in a latent cache
  uint32_t scale_bytes = 0;  // quantisation scales stored inline, per token and KV head
  KvDtype dtype = KvDtype::kBfloat16;
  KvLayoutKind layout = KvLayoutKind::kBlockFirst;
  uint32_t block_tokens = 16;
  // The size of one layer of a block, if the group is opaque; 0: the dimensions give it.
  uint64_t layer_bytes = 0;

  friend bool operator==(const KvGroup&, const KvGroup&) = default;

  // Errors: see ModelRecord::Validate.
  [[nodiscard]] Status Validate() const;
  // REQUIRES: Validate() passed, as for the following.
  [[nodiscard]] bool IsOpaque() const { return layer_bytes != 0; }
  [[nodiscard]] GroupRule rule() const { return {hit_rule, block_tokens, window_tokens}; }
  [[nodiscard]] uint64_t LayerBytes() const;
  [[nodiscard]] uint64_t BlockBytes() const { return layers * LayerBytes(); }
};

struct ModelRecord {
  std::string name;      // 1 to kMaxModelNameBytes bytes of printable UTF-8
  std::string revision;  // of the weights; may be empty
  // Name and version of the recipe by which the blocks are hashed, NAME/VERSION: part of the
  // identity, so that hashes of two recipes never meet. Any name will do for hashes that a client
  // makes itself; those that the library makes are in block_hash.h.
  std::string hash_recipe = std::string(kDefaultHashRecipe);
  uint32_t tensor_parallel_rank = 0;
  uint32_t tensor_parallel_size = 1;
  // Whatever else changes the bytes: rope, quantisation scales. Sorted by key, keys unique.
  std::vector<std::pair<std::string, std::string>> extra;
  std::vector<KvGroup> groups = std::vector<KvGroup>(1);  // 1 to kMaxModelGroups

  friend bool operator==(const ModelRecord&, const ModelRecord&) = default;

  // Errors: kInvalidArgument with a reason per field ("bad_name", "bad_hash_recipe", "bad_layers",
  // "bad_tensor_parallel_rank", "bad_window_tokens", "bad_extra_key", ...; "too_many_extra",
  // "extra_not_sorted", "bad_group_count") and the bounds in the context; kUnsupported
  // "model_dtype", "model_layout", "model_hit_rule"; kLimitExceeded "block_too_large".
  [[nodiscard]] Status Validate() const;

  // Equal records have equal encodings, and nothing else decodes to them.
  // REQUIRES: Validate() passed.
  [[nodiscard]] std::vector<std::byte> Encode() const;
  // Errors: those of Validate; kInvalidArgument "bad_model_magic", "truncated_model",
  // "trailing_bytes"; kUnsupported "model_version".
  [[nodiscard]] static Result<ModelRecord> Decode(std::span<const std::byte> bytes);

  // Whether its one group is found by all of its blocks, as before there were groups.
  [[nodiscard]] bool IsPlain() const {
    return groups.size() == 1 && groups[0].hit_rule == HitRule::kAll;
  }

  // SHA-256 of the encoding. REQUIRES: Validate() passed, as for the following.
  [[nodiscard]] ModelFingerprint Fingerprint() const;
  // The fingerprint by which the blocks of one group are found: SHA-256 of the group's number, and
  // of the encoding with that group alone. A replicated group is that of rank 0 of 1.
  [[nodiscard]] ModelFingerprint GroupFingerprint(uint32_t group) const;
};

}  // namespace kvtier
