// SPDX-License-Identifier: Apache-2.0
#include "tiers/storage/disk_geometry.h"

#include <cstring>
#include <string_view>

#include "base/result.h"
#include "tiers/storage/block_file.h"
#include "tiers/storage/header_page.h"
#include "tiers/storage/slot_header.h"
#include "tiers/types/block_key.h"

namespace kvtier {
namespace {

constexpr std::string_view kMagic = "KVTCHNK1";

struct SlabFields {
  HeaderPagePrefix prefix;
  uint64_t slab;
  uint64_t slot_bytes;
  uint32_t generation;
  uint8_t tenant_bytes;
  uint8_t zero[3];
  ModelFingerprint model;
  char tenant[kMaxTenantBytes];
};
static_assert(sizeof(SlabFields) == 144, "no holes: docs/DISK_FORMAT.md lists every byte");
static_assert(kSlabHeaderBytes == kHeaderPageBytes);

// The bound keeps sums of addresses far from overflow when a damaged header gives the size.
bool IsSlotSize(uint64_t bytes) {
  return bytes % kIoAlignment == 0 && bytes > kSlotHeaderBytes &&
         bytes <= kSlotHeaderBytes + kMaxPayloadBytes;
}

}  // namespace

void EncodeSlabHeader(const SlabHeader& header, std::span<std::byte, kSlabHeaderBytes> out) {
  KVT_CHECK(header.tenant.size() <= kMaxTenantBytes && IsSlotSize(header.slot_bytes));
  SlabFields f{};
  std::memcpy(f.prefix.magic, kMagic.data(), kMagic.size());
  f.prefix.version = kSlabFormatVersion;
  f.slab = header.slab;
  f.slot_bytes = header.slot_bytes;
  f.generation = header.generation;
  f.tenant_bytes = static_cast<uint8_t>(header.tenant.size());
  f.model = header.model;
  std::memcpy(f.tenant, header.tenant.data(), header.tenant.size());
  SealHeaderPage(std::as_bytes(std::span(&f, 1)), out);
}

Result<SlabHeader> DecodeSlabHeader(std::span<const std::byte, kSlabHeaderBytes> in) {
  KVT_RETURN_IF_ERROR(CheckHeaderPage(in, kMagic, kSlabFormatVersion, sizeof(SlabFields)));
  SlabFields f;
  std::memcpy(&f, in.data(), sizeof(f));
  if (!IsSlotSize(f.slot_bytes)) return BadField("slot_bytes", f.slot_bytes);
  if (!IsAllZero(std::as_bytes(std::span(f.zero)))) return BadField("zero", 1);
  if (f.tenant_bytes > kMaxTenantBytes) return BadField("tenant_bytes", f.tenant_bytes);
  if (!IsAllZero(std::as_bytes(std::span(f.tenant)).subspan(f.tenant_bytes))) {
    return BadField("tenant", f.tenant_bytes);
  }
  SlabHeader header;
  header.slab = f.slab;
  header.slot_bytes = f.slot_bytes;
  header.generation = f.generation;
  header.tenant.assign(f.tenant, f.tenant_bytes);
  header.model = f.model;
  return header;
}

}  // namespace kvtier
