// SPDX-License-Identifier: Apache-2.0
// The objects of the cold store: one for each block, its header and payload as in a slot. The name
// says whose block it is, and the header says it again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/acquired.h"
#include "base/ids.h"
#include "tiers/storage/slot_header.h"
#include "tiers/types/block_key.h"

namespace kvtier {

// All names begin so; the number is that of the format.
inline constexpr std::string_view kColdNamePrefix = "kvtier/1/";

// "kvtier/1/TENANT/FINGERPRINT-BYTES/HASH". A tenant's name in it has `%XX` for each byte that is
// neither letter nor digit nor one of "-_.", so that no two tenants' names meet.
[[nodiscard]] std::string ColdName(const NamespaceIdentity& identity, const BlockHash& hash);
// The prefix of all names of the tenant's objects, and of no other's.
[[nodiscard]] std::string ColdPrefix(std::string_view tenant);

// Bytes of an object: header and payload, without what a slot adds behind them.
[[nodiscard]] constexpr uint64_t ColdObjectBytes(uint64_t payload_bytes) {
  return kSlotHeaderBytes + payload_bytes;
}

// A reader's verdict on an object.
struct ColdVerdict {
  MissReason miss = MissReason::kNone;  // kNone: header and payload are the expected block's
  uint32_t created_s = 0;               // Unix time, as the writer knew them
  uint32_t last_use_s = 0;
  uint32_t depth = 0;
  std::optional<BlockHash> parent;
};

// Checks what a store returned for the block; any bytes will do. Pure, for any thread.
[[nodiscard]] ColdVerdict CheckColdObject(const SlotExpectation& expected,
                                          std::span<const std::byte> object);

}  // namespace kvtier
