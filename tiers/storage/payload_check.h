// SPDX-License-Identifier: Apache-2.0
// Reads payloads back from disk and compares their checksums, many at once.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/digest.h"
#include "base/result.h"
#include "tiers/storage/disk_geometry.h"
#include "tiers/storage/parallel_reader.h"

namespace kvtier {

struct PayloadToCheck {
  DiskLocation slot;
  uint64_t payload_bytes = 0;
  PayloadChecksum checksum;
};

// Calls `visit` once for each payload, in order. Blocks. Statuses: kCorrupt "payload_checksum"; the
// reader's.
void CheckPayloads(const DiskGeometry& geometry, const DiskReadFunction& read,
                   const std::vector<PayloadToCheck>& payloads,
                   const std::function<void(const PayloadToCheck&, const Status&)>& visit);

}  // namespace kvtier
