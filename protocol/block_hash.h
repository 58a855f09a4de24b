// SPDX-License-Identifier: Apache-2.0
// Block hashes, byte-compatible with vLLM's `sha256_cbor`:
//   SHA-256(canonical CBOR([parent, [token, ...], [extra key, ...] or null]))
// where the parent of the first block is the root. A hash so covers the whole prefix. The extra
// keys are what beyond its tokens makes a block what it is, built as vLLM builds them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/digest.h"

namespace kvtier {

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

// What a request brings along besides tokens. (Digests of prompt embeddings come last in vLLM's
// lists: append them to KeysOf and call HashBlock.)
struct PromptIdentity {
  std::string lora_name;         // empty: none
  std::vector<MediaItem> media;  // by first_token
  std::string cache_salt;        // empty: none

  [[nodiscard]] bool empty() const {
    return lora_name.empty() && media.empty() && cache_salt.empty();
  }
  // The keys of the block that holds tokens [first_token, end_token): the LoRA's name; (content
  // hash, offset in the block) of each media item that overlaps it, the offset negative if the item
  // began in an earlier block; the salt, in the first block.
  [[nodiscard]] ExtraKeys KeysOf(uint64_t first_token, uint64_t end_token) const;
};

inline constexpr std::string_view kDefaultHashSeed = "vllm-none-hash";

// The parent of first blocks: SHA-256 of the seed as a CBOR text.
[[nodiscard]] BlockHash RootHash(std::string_view seed = kDefaultHashSeed);

// Also for partial blocks: a block is whatever `tokens` it is given. Does not allocate for blocks
// of up to 256 tokens without bulky extra keys. Any thread.
[[nodiscard]] BlockHash HashBlock(const BlockHash& parent, std::span<const uint32_t> tokens,
                                  std::span<const ExtraKey> extra_keys = {});

// Hashes a growing sequence block by block.
class BlockHasher {
 public:
  // REQUIRES: block_tokens > 0.
  explicit BlockHasher(uint32_t block_tokens, const BlockHash& root = RootHash(),
                       PromptIdentity identity = {});

  // Hashes every block that `tokens`, the sequence from its first token, fills and that was not
  // hashed yet. REQUIRES: `tokens` begins with the tokens of earlier calls.
  void Extend(std::span<const uint32_t> tokens);

  // The hash of a partial block of `tokens` behind the full ones.
  [[nodiscard]] BlockHash HashPartialBlock(std::span<const uint32_t> tokens) const;

  // Of the full blocks so far.
  [[nodiscard]] const std::vector<BlockHash>& hashes() const { return hashes_; }
  // The last of them, or the root.
  [[nodiscard]] const BlockHash& last() const { return hashes_.empty() ? root_ : hashes_.back(); }
  [[nodiscard]] uint32_t block_tokens() const { return block_tokens_; }
  [[nodiscard]] const PromptIdentity& identity() const { return identity_; }

 private:
  [[nodiscard]] BlockHash HashNext(std::span<const uint32_t> tokens) const;

  uint32_t block_tokens_;
  BlockHash root_;
  PromptIdentity identity_;
  std::vector<BlockHash> hashes_;
};

}  // namespace kvtier
