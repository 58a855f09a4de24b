// SPDX-License-Identifier: Apache-2.0
// Where a slot lies on disk.
#pragma once

#include <compare>
#include <cstdint>

namespace kvtier {

// A byte offset in the tier's address space, a multiple of 4 KiB. With F files, slab c of the
// space lies in file c % F, as that file's slab c / F (see docs/DISK_FORMAT.md).
struct DiskLocation {
  uint64_t offset = UINT64_MAX;
  friend constexpr auto operator<=>(const DiskLocation&, const DiskLocation&) = default;
  [[nodiscard]] bool valid() const { return offset != UINT64_MAX; }
};

}  // namespace kvtier
