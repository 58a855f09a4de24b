// SPDX-License-Identifier: Apache-2.0
#include "tiers/cold/cold_object.h"

#include <fmt/format.h>

namespace kvtier {
namespace {

bool IsPlain(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '_' || c == '.';
}

}  // namespace

std::string ColdPrefix(std::string_view tenant) {
  std::string prefix(kColdNamePrefix);
  for (const char c : tenant) {
    if (IsPlain(c)) {
      prefix += c;
    } else {
      prefix += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return prefix + '/';
}

std::string ColdName(const NamespaceIdentity& identity, const BlockHash& hash) {
  return ColdPrefix(identity.tenant) +
         fmt::format("{}-{}/{}", identity.model.Hex(), identity.block_bytes, hash.Hex());
}

// A header that was sealed for host memory has no place on disk, and its generation is 0: that is
// what an object's header has to say, too.
ColdVerdict CheckColdObject(const SlotExpectation& expected, std::span<const std::byte> object) {
  if (object.size() != ColdObjectBytes(expected.identity.block_bytes)) {
    return {.miss = MissReason::kChecksumMismatch};
  }
  SlotExpectation unplaced = expected;
  unplaced.location = {};
  unplaced.generation = 0;
  unplaced.authenticated = false;
  switch (CheckDiskSlot(unplaced, object)) {
    case SlotVerdict::kGood:
      break;
    case SlotVerdict::kIdentityMismatch:
      return {.miss = MissReason::kIdentityMismatch};
    case SlotVerdict::kCorrupt:
    case SlotVerdict::kErased:
      return {.miss = MissReason::kChecksumMismatch};
  }
  const Result<SlotHeader> header = DecodeSlotHeader(object.first<kSlotHeaderBytes>());
  // Blocks of the other class never leave their host's memory.
  if (!header || header->retention != RetentionClass::kExtended) {
    return {.miss = MissReason::kIdentityMismatch};
  }
  return {.created_s = header->created_s,
          .last_use_s = header->last_use_s,
          .depth = header->depth,
          .parent = header->parent};
}

}  // namespace kvtier
