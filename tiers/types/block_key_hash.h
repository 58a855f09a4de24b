// SPDX-License-Identifier: Apache-2.0
// The hash for tables of blocks that clients fill.
//
// Clients choose block hashes, and could choose many with equal prefixes: a table that hashed by
// them would become one long list, and a look into it would hold up the event loop. So each table
// has a hash of its own, keyed with secrets that it draws when it is made.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "tiers/types/block_key.h"

namespace kvtier {

class BlockKeyHash {
 public:
  using is_avalanching = void;  // to boost's tables: all bits are good

  // Draws secrets, which takes system calls: not for tables that are made often.
  BlockKeyHash();

  [[nodiscard]] size_t operator()(const BlockKey& key) const {
    std::array<uint64_t, 4> words;
    static_assert(sizeof(words) == sizeof(key.hash.bytes));
    std::memcpy(words.data(), key.hash.bytes.data(), sizeof(words));
    const uint64_t low = Mix(words[0] ^ secrets_[0], words[1] ^ secrets_[1]);
    const uint64_t high = Mix(words[2] ^ secrets_[2], words[3] ^ secrets_[3]);
    return Mix(low ^ key.namespace_id.value, high ^ secrets_[0]);
  }
  // A number that was made of a block's hash is no better than it.
  [[nodiscard]] size_t operator()(uint64_t block) const {
    return Mix(block ^ secrets_[0], secrets_[1]);
  }

 private:
  // 64 x 64 -> 128 bits, folded.
  static uint64_t Mix(uint64_t a, uint64_t b) {
    __extension__ using Wide = unsigned __int128;
    const Wide product = static_cast<Wide>(a) * b;
    return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
  }

  std::array<uint64_t, 4> secrets_;
};

}  // namespace kvtier
