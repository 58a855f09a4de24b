// SPDX-License-Identifier: Apache-2.0
// C++ over kvtier_tokens.h: which tokens blocks hold, told before they are committed or stored.
#ifndef KVTIER_KVTIER_TOKENS_HPP_
#define KVTIER_KVTIER_TOKENS_HPP_

#include <cstdint>
#include <span>

#include "kvtier.hpp"

namespace kvt {

// Whether the daemon keeps ids of this pool's or region's blocks. One round trip.
inline Result<bool> TokensWanted(Pool& pool) {
  int wanted = 0;
  if (kvt_tokens_wanted(pool.get(), &wanted)) return Error::Last();
  return wanted != 0;
}
inline Result<bool> TokensWanted(Region& region) {
  int wanted = 0;
  if (kvt_region_tokens_wanted(region.get(), &wanted)) return Error::Last();
  return wanted != 0;
}

// `counts`: how many of `ids` are each block's, or empty: all blocks are full.
struct BlockTokens {
  std::span<const kvt_hash> hashes;
  std::span<const uint32_t> ids;  // of one block after the other
  std::span<const uint16_t> counts = {};

  [[nodiscard]] bool matches() const { return counts.empty() || counts.size() == hashes.size(); }
};

// Only sends; see kvt_give_tokens.
inline Status GiveTokens(Pool& pool, const BlockTokens& tokens) {
  const auto& [hashes, ids, counts] = tokens;
  if (!tokens.matches()) return Error{KVT_INVALID_ARGUMENT, "bad_token_count", "counts"};
  if (kvt_give_tokens(pool.get(), hashes.data(), counts.data(), hashes.size(), ids.data(),
                      ids.size())) {
    return Error::Last();
  }
  return {};
}
inline Status GiveTokens(Region& region, const BlockTokens& tokens) {
  const auto& [hashes, ids, counts] = tokens;
  if (!tokens.matches()) return Error{KVT_INVALID_ARGUMENT, "bad_token_count", "counts"};
  if (kvt_region_give_tokens(region.get(), hashes.data(), counts.data(), hashes.size(), ids.data(),
                             ids.size())) {
    return Error::Last();
  }
  return {};
}

}  // namespace kvt

#endif  // KVTIER_KVTIER_TOKENS_HPP_
