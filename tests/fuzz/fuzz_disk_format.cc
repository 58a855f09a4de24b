// SPDX-License-Identifier: Apache-2.0
// libFuzzer target: bytes of a disk through every decoder of pages and of index entries.
//
// The first input byte gives the rest's meaning: its lowest three bits the kind, and bit 7, whether
// the checksum is made right first, as the fuzzer would not find one. Checked besides memory
// safety: whatever decodes encodes to the same bytes.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "base/digest.h"
#include "base/result.h"
#include "tiers/cold/cold_object.h"
#include "tiers/index/index_codec.h"
#include "tiers/storage/disk_geometry.h"
#include "tiers/storage/header_page.h"
#include "tiers/storage/slot_header.h"
#include "tiers/storage/superblock.h"

namespace kvtier {
namespace {

using Bytes = std::span<const std::byte>;
using Page = std::array<std::byte, kHeaderPageBytes>;

enum class Kind : uint8_t {
  kSlot,
  kSlab,
  kSuperblock,
  kMeta,
  kBudget,
  kNamespace,
  kRecord,
  kAnyKey,
  kErasure,
  kTokens
};
constexpr uint8_t kKindMask = 15;
constexpr uint8_t kRightChecksum = 0x80;

Page PageOf(Bytes bytes, bool right_checksum) {
  Page page{};
  std::memcpy(page.data(), bytes.data(), std::min(bytes.size(), page.size()));
  if (right_checksum) {
    std::memset(page.data() + offsetof(HeaderPagePrefix, checksum), 0, sizeof(uint64_t));
    const Page fields = page;
    SealHeaderPage(fields, page);
  }
  return page;
}

void CheckPage(Kind kind, const Page& page) {
  Page again;
  if (kind == Kind::kSlot) {
    const auto without_hashes = DecodeEncryptedSlotHeader(page);
    if (without_hashes.has_value()) {
      KVT_CHECK(ClaimsEncryptedSlot(page) && without_hashes->hash == BlockHash{});
      KVT_CHECK(!DecodeSlotHeader(page).has_value());
    }
    const auto header = DecodeSlotHeader(page);
    // As a store may return it: a header, and not the payload that it speaks of.
    KVT_CHECK(CheckColdObject({}, page).miss != MissReason::kNone);
    if (!header.has_value()) return;
    KVT_CHECK(header->payload_bytes > 0 && header->payload_bytes <= kMaxPayloadBytes);
    EncodeSlotHeader(*header, again);
  } else if (kind == Kind::kSlab) {
    const auto header = DecodeSlabHeader(page);
    if (!header.has_value()) return;
    EncodeSlabHeader(*header, again);
  } else {
    const auto superblock = DecodeSuperblock(page);
    if (!superblock.has_value()) return;
    EncodeSuperblock(*superblock, again);
  }
  KVT_CHECK(again == page);
}

// How many bytes of the input are the entry's key.
size_t KeyBytes(Kind kind) {
  switch (kind) {
    case Kind::kNamespace:
      return sizeof(NamespaceKey);
    case Kind::kRecord:
    case Kind::kTokens:
      return sizeof(RecordKey);
    case Kind::kErasure:
      return sizeof(ErasureKey);
    default:
      return sizeof(SingleKey);
  }
}

void MakeChecksumRight(Bytes key, std::vector<std::byte>* value) {
  if (value->size() < sizeof(uint32_t)) return;
  const size_t end = value->size() - sizeof(uint32_t);
  std::vector<std::byte> covered(key.begin(), key.end());
  covered.insert(covered.end(), value->begin(), value->begin() + static_cast<ptrdiff_t>(end));
  const auto checksum = static_cast<uint32_t>(ChecksumHeader(covered));
  std::memcpy(value->data() + end, &checksum, sizeof(checksum));
}

void CheckEntry(Kind kind, Bytes key, Bytes value) {
  if (kind == Kind::kMeta) {
    const auto meta = DecodeMeta(value);
    if (meta.has_value()) KVT_CHECK(std::ranges::equal(EncodeMeta(*meta), value));
  } else if (kind == Kind::kBudget) {
    const auto budget = DecodeBudget(value);
    if (budget.has_value()) KVT_CHECK(std::ranges::equal(EncodeBudget(*budget), value));
  } else if (kind == Kind::kNamespace) {
    const auto name_space = DecodeNamespace(key, value);
    if (!name_space.has_value()) return;
    KVT_CHECK(std::ranges::equal(EncodeNamespaceKey(name_space->first), key));
    KVT_CHECK(std::ranges::equal(EncodeNamespace(name_space->first, name_space->second), value));
  } else if (kind == Kind::kTokens) {
    const auto tokens = DecodeTokens(key, value);
    if (!tokens.has_value()) return;
    const RecordKey again = EncodeTokensKey(tokens->key);
    KVT_CHECK(std::ranges::equal(again, key));
    KVT_CHECK(std::ranges::equal(EncodeTokens(again, *tokens), value));
    const auto ids = TokenIdsOf(tokens->ids);
    KVT_CHECK(!ids || BytesOfTokenIds(*ids) == tokens->ids);
  } else if (kind == Kind::kErasure) {
    const auto erasure = DecodeErasure(key, value);
    if (!erasure.has_value()) return;
    KVT_CHECK(std::ranges::equal(EncodeErasureKey(erasure->number), key));
    KVT_CHECK(std::ranges::equal(EncodeErasure(*erasure), value));
  } else {
    const auto record = DecodeRecord(key, value);
    if (!record.has_value()) return;
    const RecordKey again = EncodeRecordKey(record->key);
    KVT_CHECK(std::ranges::equal(again, key));
    KVT_CHECK(std::ranges::equal(EncodeRecord(again, *record), value));
  }
}

void CheckBytes(uint8_t mode, Bytes bytes) {
  const auto kind = static_cast<Kind>(mode & kKindMask);
  const bool right_checksum = (mode & kRightChecksum) != 0;
  if (kind <= Kind::kSuperblock) return CheckPage(kind, PageOf(bytes, right_checksum));
  if (kind == Kind::kAnyKey) return static_cast<void>(DecodeKeyKind(bytes));
  // A meta or budget entry's key is part of what its checksum covers, and always the same.
  const Bytes given = bytes.first(std::min(bytes.size(), KeyBytes(kind)));
  const Bytes key = kind == Kind::kMeta     ? Bytes(kMetaKey)
                    : kind == Kind::kBudget ? Bytes(kBudgetKey)
                                            : given;
  const Bytes rest = bytes.subspan(given.size());
  std::vector<std::byte> value(rest.begin(), rest.end());
  if (right_checksum) MakeChecksumRight(key, &value);
  CheckEntry(kind, key, value);
}

}  // namespace
}  // namespace kvtier

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  kvtier::CheckBytes(data[0], std::as_bytes(std::span(data, size)).subspan(1));
  return 0;
}
