// SPDX-License-Identifier: Apache-2.0
// Block hashes as engines make them. A recipe says how, by name and version; every hash covers its
// parent's and thereby the whole prefix.
//
// vllm-sha256-cbor/1, /2: SHA-256(canonical CBOR([parent, [token, ...], [extra key, ...] or
// null])),
//   where the parent of the first block is SHA-256(CBOR(seed)). The extra keys identify a block
//   beside its tokens: /1 has them as bare values, so that a cache salt can pass for a LoRA's name;
//   /2 puts before each its kind.
// sglang/1: SHA-256(parent || token as u32, little-endian, ...). The first block's parent is empty,
//   or the digest of the request's namespace.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/digest.h"
#include "base/result.h"

namespace kvtier {

enum class HashRecipe : uint8_t {
  kVllmSha256Cbor1,  // vLLM up to 0.30
  kVllmSha256Cbor2,  // vLLM from 0.31 on
  kSglang1,          // SGLang's storage hashes
};

[[nodiscard]] std::string_view HashRecipeName(HashRecipe recipe);
// Errors: kInvalidArgument "bad_recipe", with the names that are known in the context.
[[nodiscard]] Result<HashRecipe> ParseHashRecipe(std::string_view name);

// One value of the list hashed with a block; lists stand for Python's lists and tuples alike.
struct ExtraKey {
  using List = std::vector<ExtraKey>;
  // Texts should be UTF-8. Others are hashed as they are: no input can make hashing fail.
  std::variant<std::string, int64_t, std::vector<std::byte>, List> value;

  [[nodiscard]] static ExtraKey Text(std::string_view text) { return {std::string(text)}; }
  [[nodiscard]] static ExtraKey Integer(int64_t number) { return {number}; }
  [[nodiscard]] static ExtraKey Bytes(std::span<const std::byte> bytes) {
    return {std::vector<std::byte>(bytes.begin(), bytes.end())};
  }
  [[nodiscard]] static ExtraKey Tuple(List items) { return {std::move(items)}; }

  friend bool operator==(const ExtraKey&, const ExtraKey&) = default;
};

using ExtraKeys = std::vector<ExtraKey>;

// An image, a sound: content that stands behind placeholder tokens.
struct MediaItem {
  std::string content_hash;
  uint64_t first_token = 0;
  uint64_t tokens = 0;
};

inline constexpr std::string_view kDefaultHashSeed = "vllm-none-hash";

// The parts of a request's identity besides tokens. vLLM takes an empty text for none; SGLang does
// not.
struct PromptIdentity {
  std::optional<std::string> seed;  // of vLLM's first parent; none: kDefaultHashSeed
  std::optional<std::string> lora_name;
  std::optional<std::string> lora_path;  // hashed with the name from vllm-sha256-cbor/2 on
  std::optional<std::string> cache_salt;
  std::optional<std::string> extra_key;    // SGLang's
  std::vector<MediaItem> media;            // by first_token
  std::vector<BlockHash> prompt_embeds{};  // digests of each block's prompt embeddings

  // Whether something besides tokens, and the root, tells blocks apart.
  [[nodiscard]] bool HasKeys() const {
    return lora_name || lora_path || cache_salt || extra_key || !media.empty() ||
           !prompt_embeds.empty();
  }
  // Whether the recipe hashes all that is given here; for /1 the LoRA's path may be given, and is
  // passed over. Errors: kInvalidArgument naming the field: "bad_seed", "bad_lora", "bad_items",
  // "bad_prompt_embeds", "bad_extra_key", ...
  [[nodiscard]] Status CheckFor(HashRecipe recipe) const;
};

// The parent of first blocks in vLLM's recipes: SHA-256 of the seed as a CBOR text.
[[nodiscard]] BlockHash RootHash(std::string_view seed = kDefaultHashSeed);

// As vLLM's recipes do, with keys as they are given. Also for partial blocks: a block is whatever
// `tokens` it is given. Does not allocate for blocks of up to 256 tokens without bulky extra keys.
// Any thread.
[[nodiscard]] BlockHash HashBlock(const BlockHash& parent, std::span<const uint32_t> tokens,
                                  std::span<const ExtraKey> extra_keys = {});

// Hashes a growing sequence block by block. One thread at a time.
class BlockHasher {
 public:
  // `lookahead_tokens`: how many tokens behind a block are hashed with it (vLLM's
  // num_hash_lookahead_tokens). REQUIRES: block_tokens > 0; identity.CheckFor(recipe) passed; only
  // vLLM's recipes look ahead.
  explicit BlockHasher(uint32_t block_tokens, HashRecipe recipe = HashRecipe::kVllmSha256Cbor2,
                       PromptIdentity identity = {}, uint32_t lookahead_tokens = 0);

  // Hashes every block that `tokens`, the sequence from its first token, fills, its lookahead
  // included, and that was not hashed yet. REQUIRES: `tokens` begins with the tokens of earlier
  // calls.
  void Extend(std::span<const uint32_t> tokens);

  // The hash of the block that follows the first `full_blocks` ones and has these tokens: a full
  // one's or fewer. REQUIRES: full_blocks <= hashes().size(), and no lookahead.
  [[nodiscard]] BlockHash HashAfter(size_t full_blocks, std::span<const uint32_t> tokens) const;

  // vLLM's keys of block `block` if it has `tokens` tokens, the lookahead included: the LoRA's;
  // (content hash, offset in the block) of each media item that overlaps it, the offset negative if
  // the item began in an earlier block; the salt, in the first block; the block's prompt
  // embeddings.
  [[nodiscard]] ExtraKeys KeysOf(size_t block, size_t tokens) const;

  // The hashes of the full blocks so far.
  [[nodiscard]] const std::vector<BlockHash>& hashes() const { return hashes_; }
  [[nodiscard]] uint32_t block_tokens() const { return block_tokens_; }

 private:
  // `lookahead`: the tokens behind the block, as many as the constructor was told.
  [[nodiscard]] BlockHash HashVllm(size_t block, std::span<const uint32_t> tokens,
                                   std::span<const uint32_t> lookahead) const;
  [[nodiscard]] BlockHash HashSglang(size_t block, std::span<const uint32_t> tokens) const;
  // Nothing for the first block of a SGLang request without a namespace.
  [[nodiscard]] std::optional<BlockHash> ParentOf(size_t block) const;

  uint32_t block_tokens_;
  uint32_t lookahead_tokens_;
  HashRecipe recipe_;
  PromptIdentity identity_;
  bool has_keys_;  // whether any block may have extra keys
  std::optional<BlockHash> root_;
  std::vector<BlockHash> hashes_;
};

}  // namespace kvtier
