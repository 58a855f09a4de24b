// SPDX-License-Identifier: Apache-2.0
// A block's identity (its key: whose it is, and its hash), and the places where it is found: its
// row in the directory, its place in a pool, its slot on disk.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "base/digest.h"
#include "base/ids.h"

namespace kvtier {

// A (tenant, model) pair, interned: blocks of different namespaces never meet. Numbered from 0 by
// the cache; persisted by the index, which also keeps the number's identity.
using NamespaceId = Strong<struct NamespaceIdTag, uint32_t>;

inline constexpr size_t kMaxTenantBytes = 64;

// The identity of a namespace, the same for ever. `block_bytes` follows from the model.
struct NamespaceIdentity {
  std::string tenant;  // at most kMaxTenantBytes
  ModelFingerprint model;
  uint64_t block_bytes = 0;
  friend auto operator<=>(const NamespaceIdentity&, const NamespaceIdentity&) = default;
};

struct BlockKey {
  NamespaceId namespace_id;
  BlockHash hash;
  friend auto operator<=>(const BlockKey&, const BlockKey&) = default;
};

// A block's row in the directory. Rows are reused: an index is valid as long as its entry lives.
using EntryIndex = Strong<struct EntryIndexTag, uint32_t>;
inline constexpr EntryIndex kNoEntry{UINT32_MAX};

// Which of the daemon's devices, by position in the configuration.
using DeviceIndex = Strong<struct DeviceIndexTag, uint32_t>;
inline constexpr uint32_t kMaxDevices = 16;

// Which of a namespace's pools: those of the devices come first, by DeviceIndex, then its regions.
using PoolSlot = Strong<struct PoolSlotTag, uint32_t>;
// So that a block's place in a pool fits into 32 bits; see PoolPlace.
inline constexpr uint32_t kMaxPoolSlots = 64;

// Where the pools of one namespace hold a block: in which of them, and in which of its blocks.
// Packed, because every directory entry and every pool block has one.
class PoolPlace {
 public:
  static constexpr uint32_t kBlockBits = 26;
  // A pool has no more blocks than this; the place beyond the last one is "nowhere".
  static constexpr uint32_t kMaxBlocks = (uint32_t{1} << kBlockBits) - 1;

  constexpr PoolPlace() = default;
  // REQUIRES: pool < kMaxPoolSlots, block < kMaxBlocks.
  constexpr PoolPlace(PoolSlot pool, BlockIndex block)
      : bits_(pool.value << kBlockBits | block.value) {}

  [[nodiscard]] constexpr PoolSlot pool() const { return PoolSlot(bits_ >> kBlockBits); }
  [[nodiscard]] constexpr BlockIndex block() const { return BlockIndex(bits_ & kMaxBlocks); }
  friend constexpr bool operator==(PoolPlace, PoolPlace) = default;

 private:
  uint32_t bits_ = UINT32_MAX;
};
static_assert(kMaxPoolSlots == 1u << (32 - PoolPlace::kBlockBits));
static_assert(kMaxDevices < kMaxPoolSlots);

inline constexpr PoolPlace kNoPlace;

// A byte offset in the tier's address space, a multiple of 4 KiB. The slab of the space that it is
// in tells the drive: see DiskGeometry, and docs/DISK_FORMAT.md.
struct DiskLocation {
  uint64_t offset = UINT64_MAX;
  friend constexpr auto operator<=>(const DiskLocation&, const DiskLocation&) = default;
  [[nodiscard]] bool valid() const { return offset != UINT64_MAX; }
};

}  // namespace kvtier

// For tables that no client fills; for others see BlockKeyHash.
template <>
struct std::hash<kvtier::BlockKey> {
  size_t operator()(const kvtier::BlockKey& key) const noexcept {
    return key.hash.Prefix64() ^ key.namespace_id.value * 0x9E3779B97F4A7C15u;
  }
};
