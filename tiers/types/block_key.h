// SPDX-License-Identifier: Apache-2.0
// Who a block belongs to and what it holds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "base/digest.h"
#include "base/ids.h"

namespace kvtier {

// A (tenant, model) pair, interned: blocks of different spaces never meet. Numbered from 0 by the
// cache; persisted by the index, which also keeps what the number stands for.
using NamespaceId = Strong<struct NamespaceIdTag, uint32_t>;

inline constexpr size_t kMaxTenantBytes = 64;

// What a space stands for, the same for ever. `block_bytes` follows from the model.
struct NamespaceIdentity {
  std::string tenant;  // at most kMaxTenantBytes
  ModelFingerprint model;
  uint64_t block_bytes = 0;
  friend bool operator==(const NamespaceIdentity&, const NamespaceIdentity&) = default;
};

struct BlockKey {
  NamespaceId namespace_id;
  BlockHash hash;
  friend bool operator==(const BlockKey&, const BlockKey&) = default;
};

}  // namespace kvtier

template <>
struct std::hash<kvtier::BlockKey> {
  size_t operator()(const kvtier::BlockKey& key) const noexcept {
    return key.hash.Prefix64() ^ key.namespace_id.value * 0x9E3779B97F4A7C15u;
  }
};
