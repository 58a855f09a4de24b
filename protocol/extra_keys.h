// SPDX-License-Identifier: Apache-2.0
// Extra keys: what beyond its tokens makes a block what it is. Built as vLLM builds them, so that
// hashes agree.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

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
// lists; who has them appends them to KeysOf and calls HashBlock.)
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

}  // namespace kvtier
