// SPDX-License-Identifier: Apache-2.0
// Where the pools of one space hold a block: on which device, and in which block of its pool there.
#pragma once

#include <cstdint>

#include "base/ids.h"
#include "tiers/types/device_index.h"

namespace kvtier {

// Packed, because every directory entry and every pool block has one.
class PoolPlace {
 public:
  static constexpr uint32_t kBlockBits = 28;
  // A pool has no more blocks than this; the place beyond the last one is "nowhere".
  static constexpr uint32_t kMaxBlocks = (uint32_t{1} << kBlockBits) - 1;

  constexpr PoolPlace() = default;
  // REQUIRES: device < kMaxDevices, block < kMaxBlocks.
  constexpr PoolPlace(DeviceIndex device, BlockIndex block)
      : bits_(device.value << kBlockBits | block.value) {}

  [[nodiscard]] constexpr DeviceIndex device() const { return DeviceIndex(bits_ >> kBlockBits); }
  [[nodiscard]] constexpr BlockIndex block() const { return BlockIndex(bits_ & kMaxBlocks); }
  friend constexpr bool operator==(PoolPlace, PoolPlace) = default;

 private:
  uint32_t bits_ = UINT32_MAX;
};
static_assert(kMaxDevices == 1u << (32 - PoolPlace::kBlockBits));

inline constexpr PoolPlace kNoPlace;

}  // namespace kvtier
