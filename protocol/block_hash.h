// SPDX-License-Identifier: Apache-2.0
// Block hashes, byte-compatible with vLLM's `sha256_cbor`:
//   SHA-256(canonical CBOR([parent, [token, ...], [extra key, ...] or null]))
// where the parent of the first block is the root. A hash so covers the whole prefix.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/digest.h"
#include "protocol/extra_keys.h"

namespace kvtier {

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
