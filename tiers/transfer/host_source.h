// SPDX-License-Identifier: Apache-2.0
// The slot in host memory from which a block is copied up.
#pragma once

#include "tiers/state/cache_state.h"
#include "tiers/storage/slot_header.h"

namespace kvtier {

// Whether the slot says that it holds the entry's block. REQUIRES: the entry has one.
[[nodiscard]] inline bool HostSlotIsOf(CacheState& state, const BlockEntry& entry) {
  return HeaderNames(state.NamespaceOf(entry).identity, entry.hash, entry.tokens,
                     state.HostBytes(entry).first<kSlotHeaderBytes>());
}

// Headers lie far apart, in nobody's cache: what HostSlotIsOf will read is fetched ahead of it, for
// so many blocks.
inline constexpr size_t kHeadersAhead = 8;
inline void FetchHostHeader(CacheState& state, const BlockEntry& entry) {
  constexpr size_t kCacheLineBytes = 64;
  const std::byte* const header = state.HostBytes(entry).data();
  for (size_t i = 0; i < kSlotIdentityBytes; i += kCacheLineBytes) __builtin_prefetch(header + i);
}

}  // namespace kvtier
