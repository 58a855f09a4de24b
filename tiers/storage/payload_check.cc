// SPDX-License-Identifier: Apache-2.0
#include "tiers/storage/payload_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "base/aligned_buffer.h"
#include "base/byte_size.h"
#include "base/checksum.h"
#include "tiers/storage/block_file.h"
#include "tiers/storage/slot_header.h"

namespace kvtier {
namespace {

// Read together; a single larger payload is read alone.
constexpr uint64_t kBatchBytes = 64 * kMiB;

uint64_t ReadBytes(const PayloadToCheck& payload) {
  return (payload.payload_bytes + kIoAlignment - 1) / kIoAlignment * kIoAlignment;
}

Status Compare(const DiskGeometry& geometry, const DiskRead& read, const PayloadToCheck& payload) {
  if (!read.status) return read.status;
  if (ChecksumPayload(read.into.first(payload.payload_bytes)) == payload.checksum) return {};
  return MakeError(ErrorCode::kCorrupt, "payload_checksum",
                   fmt::format("slot in file {} at {}", geometry.FileOf(payload.slot),
                               geometry.OffsetInFile(payload.slot)));
}

}  // namespace

void CheckPayloads(const DiskGeometry& geometry, const DiskReadFunction& read,
                   const std::vector<PayloadToCheck>& payloads,
                   const std::function<void(const PayloadToCheck&, const Status&)>& visit) {
  uint64_t buffer_bytes = kBatchBytes;
  for (const PayloadToCheck& payload : payloads) {
    buffer_bytes = std::max(buffer_bytes, ReadBytes(payload));
  }
  AlignedBuffer buffer(payloads.empty() ? 0 : buffer_bytes);
  std::vector<DiskRead> reads;
  for (size_t first = 0; first < payloads.size(); first += reads.size()) {
    reads.clear();
    uint64_t used = 0;
    for (size_t i = first; i < payloads.size(); ++i) {
      const uint64_t bytes = ReadBytes(payloads[i]);
      if (used + bytes > buffer_bytes) break;
      reads.push_back({.file = geometry.FileOf(payloads[i].slot),
                       .offset = geometry.OffsetInFile(payloads[i].slot) + kSlotHeaderBytes,
                       .into = buffer.span().subspan(used, bytes)});
      used += bytes;
    }
    read(reads);
    for (size_t i = 0; i < reads.size(); ++i) {
      visit(payloads[first + i], Compare(geometry, reads[i], payloads[first + i]));
    }
  }
}

}  // namespace kvtier
