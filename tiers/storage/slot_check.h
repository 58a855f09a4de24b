// SPDX-License-Identifier: Apache-2.0
// Are these the bytes that were written for this block? Asked of every slot that is read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tiers/types/block_key.h"
#include "tiers/types/disk_location.h"

namespace kvtier {

// What the reader believes of a slot; copied, so that a check can run on any thread.
struct SlotExpectation {
  NamespaceIdentity identity;
  BlockHash hash;
  DiskLocation location;
  uint32_t generation = 0;
  uint16_t tokens = 0;
};

enum class SlotVerdict : uint8_t {
  kGood,
  kIdentityMismatch,  // whole, but another block, place or write
  kCorrupt,           // header or payload damaged
};

// Checks header, identity and the payload's checksum. `slot` is header and payload as read. Pure.
[[nodiscard]] SlotVerdict CheckDiskSlot(const SlotExpectation& expected,
                                        std::span<const std::byte> slot);

}  // namespace kvtier
