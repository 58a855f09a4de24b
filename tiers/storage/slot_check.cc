// SPDX-License-Identifier: Apache-2.0
#include "tiers/storage/slot_check.h"

#include "base/checksum.h"
#include "tiers/storage/slot_header.h"

namespace kvtier {
namespace {

bool SameBlock(const SlotExpectation& expected, const SlotHeader& header) {
  return header.hash == expected.hash && header.model == expected.identity.model &&
         header.tenant == expected.identity.tenant &&
         header.payload_bytes == expected.identity.block_bytes && header.tokens == expected.tokens;
}

}  // namespace

SlotVerdict CheckDiskSlot(const SlotExpectation& expected, std::span<const std::byte> slot) {
  const Result<SlotHeader> header = DecodeSlotHeader(slot.first<kSlotHeaderBytes>());
  if (!header) return SlotVerdict::kCorrupt;
  if (!SameBlock(expected, *header) || header->address != expected.location ||
      header->generation != expected.generation) {
    return SlotVerdict::kIdentityMismatch;
  }
  const auto payload = slot.subspan(kSlotHeaderBytes, expected.identity.block_bytes);
  return ChecksumPayload(payload) == header->payload_checksum ? SlotVerdict::kGood
                                                              : SlotVerdict::kCorrupt;
}

}  // namespace kvtier
