// SPDX-License-Identifier: Apache-2.0
// The 4 KiB that precede every payload, in host slots and on disk, and the check that a slot which
// was read holds the block that it should. On disk the header is the truth: whose block lies here,
// its hash and whether the bytes are whole. An encrypted header has the plain one's fields in the
// same places, hashes and payload checksum encrypted, and the fields needed to decrypt them.
// docs/DISK_FORMAT.md gives the bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "base/digest.h"
#include "base/ids.h"
#include "base/result.h"
#include "tiers/storage/aes.h"
#include "tiers/storage/block_file.h"
#include "tiers/storage/header_page.h"
#include "tiers/types/block_key.h"

namespace kvtier {

inline constexpr size_t kSlotHeaderBytes = 4096;
inline constexpr uint32_t kSlotFormatVersion = 1;
inline constexpr uint32_t kEncryptedSlotVersion = 2;
inline constexpr uint8_t kEncryptionAes256Gcm = 1;
// No block comes near this; a header that says more is damaged.
inline constexpr uint64_t kMaxPayloadBytes = uint64_t{1} << 40;

// Bytes a slot takes, in the host arena and on disk: the header, and the payload up to the next
// multiple of the I/O alignment.
[[nodiscard]] constexpr uint64_t SlotBytes(uint64_t payload_bytes) {
  return kSlotHeaderBytes + (payload_bytes + kIoAlignment - 1) / kIoAlignment * kIoAlignment;
}

struct SlotHeader {
  std::string tenant;  // at most kMaxTenantBytes
  ModelFingerprint model;
  BlockHash hash;
  std::optional<BlockHash> parent;  // nothing for a sequence's first block
  // Where the slot lies; invalid (all ones) while the block is only in host memory.
  DiskLocation address;
  uint32_t generation = 0;     // the slot's write counter
  uint64_t payload_bytes = 0;  // 1 to kMaxPayloadBytes
  PayloadChecksum payload_checksum;
  uint16_t tokens = 0;
  uint32_t depth = 0;  // blocks before this one in its sequence
  RetentionClass retention = RetentionClass::kExtended;
  uint32_t created_s = 0;  // Unix time
  uint32_t last_use_s = 0;
  friend bool operator==(const SlotHeader&, const SlotHeader&) = default;
};

// The header's bytes as they lie in memory and on disk, little-endian. In a plain header all from
// `key_id` on are zero, and so is `encryption_algorithm`.
struct SlotFields {
  HeaderPagePrefix prefix;
  uint64_t address;
  uint64_t payload_bytes;
  uint32_t generation;
  uint32_t depth;
  uint32_t created_s;
  uint32_t last_use_s;
  uint16_t tokens;
  uint8_t retention;
  uint8_t has_parent;
  uint8_t tenant_bytes;
  uint8_t encryption_algorithm;
  uint8_t zero[2];
  // Encrypted in an encrypted header, with the payload's checksum.
  BlockHash hash;
  BlockHash parent;
  ModelFingerprint model;
  PayloadChecksum payload_checksum;
  char tenant[kMaxTenantBytes];
  uint64_t key_id;
  GcmNonce nonce;
  GcmTag payload_tag;
  uint8_t zero_end[4];
  GcmTag header_tag;
};
static_assert(sizeof(SlotFields) == 296, "no holes: docs/DISK_FORMAT.md lists every byte");
static_assert(offsetof(SlotFields, hash) == 64 && offsetof(SlotFields, parent) == 96);

// Fills all of `out`. Under a microsecond. REQUIRES: the bounds noted above.
void EncodeSlotHeader(const SlotHeader& header, std::span<std::byte, kSlotHeaderBytes> out);

// Facts about a block that are known only when it is written to disk.
struct SlotPlacement {
  DiskLocation address;
  uint32_t generation = 0;
  uint32_t created_s = 0;
  uint32_t last_use_s = 0;
};
// Changes these fields of a header and seals it anew. REQUIRES: EncodeSlotHeader wrote it.
void PlaceSlotHeader(const SlotPlacement& placement, std::span<std::byte, kSlotHeaderBytes> header);

// All that HeaderNames looks at lies in so many bytes from the start.
inline constexpr size_t kSlotIdentityBytes = 5 * 64;

// Whether a header that was sealed here says that the slot is this block's. It is compared, not
// decoded: no checksum is needed for fields that must all have one value.
[[nodiscard]] bool HeaderNames(const NamespaceIdentity& identity, const BlockHash& hash,
                               uint16_t tokens, std::span<const std::byte, kSlotHeaderBytes> in);

// The inverse of EncodeSlotHeader, for bytes that may hold anything. Every bit of `in` is covered
// by the header's checksum. Says nothing of the payload: compare its checksum, and `address` with
// the place read. Errors, all kCorrupt: "bad_magic" (nothing was ever written here, or something
// else), then "bad_version", "bad_header_checksum", and "bad_field" naming a field whose value
// cannot be.
[[nodiscard]] Result<SlotHeader> DecodeSlotHeader(std::span<const std::byte, kSlotHeaderBytes> in);

// Whether the page claims to be the header of a slot, and of an encrypted one. Nothing else is
// looked at.
[[nodiscard]] bool ClaimsSlot(std::span<const std::byte, kSlotHeaderBytes> page);
[[nodiscard]] bool ClaimsEncryptedSlot(std::span<const std::byte, kSlotHeaderBytes> page);

// The fields that can be read without a key: all but hash, parent and payload checksum, which are
// zeros and nothing. For bytes that may hold anything; errors as those of DecodeSlotHeader.
[[nodiscard]] Result<SlotHeader> DecodeEncryptedSlotHeader(
    std::span<const std::byte, kSlotHeaderBytes> page);

// The reader's belief about a slot; copied, so that a check can run on any thread.
struct SlotExpectation {
  NamespaceIdentity identity;
  BlockHash hash;
  DiskLocation location;
  uint32_t generation = 0;
  uint16_t tokens = 0;
  // Decryption has shown already that header and payload are as written: the payload's checksum
  // would cost a second pass over the bytes and say nothing more.
  bool authenticated = false;
};

enum class SlotVerdict : uint8_t {
  kGood,
  kIdentityMismatch,  // whole, but another block, place or write
  kCorrupt,           // header or payload damaged
  kErased,            // encrypted still, for its key is gone
};

// Checks header, identity and, unless it was authenticated, the payload's checksum. `slot` is
// header and payload as read. Pure.
[[nodiscard]] SlotVerdict CheckDiskSlot(const SlotExpectation& expected,
                                        std::span<const std::byte> slot);

}  // namespace kvtier
