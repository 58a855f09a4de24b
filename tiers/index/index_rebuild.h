// SPDX-License-Identifier: Apache-2.0
// The index, made anew from the headers on disk.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string_view>

#include "tiers/index/index.h"
#include "tiers/storage/disk_geometry.h"
#include "tiers/storage/header_scan.h"
#include "tiers/types/tenant_quota.h"

namespace kvtier {

struct RebuildOptions {
  int64_t now_ms = 0;  // Unix time
  int64_t extended_ttl_ms = 24 * 60 * 60 * 1000;
  int64_t max_age_ms = 0;  // 0: no maximum
  // Of these, what they have of their own counts.
  std::vector<TenantQuota> tenants = {};
};

// Whether a block with this header has outlived its time to live since last use, or its maximum
// age.
[[nodiscard]] bool IsExpired(const SlotHeader& header, const RebuildOptions& options);

// Why a block that a slot claims to hold is not in the rebuilt index.
enum class RebuildReject : uint8_t {
  kUnreadable = 0,
  kDamaged,
  kMisplaced,
  kMisfit,
  kExpired,
  kMemoryClass,  // retention `memory` has no business on disk
  kDuplicate,    // another slot holds the same block, written later
};
inline constexpr int kRebuildRejectCount = 7;
// "unreadable", "damaged", "misplaced", "misfit", "expired", "memory_class", "duplicate".
[[nodiscard]] std::string_view RebuildRejectName(RebuildReject reject);

struct RebuiltIndex {
  IndexSnapshot snapshot;
  uint64_t slabs = 0;
  uint64_t slabs_uncut = 0;  // never used: nothing in them
  uint64_t slabs_bad = 0;    // what was in them is forgotten
  uint64_t slots = 0;
  uint64_t slots_empty = 0;
  std::array<uint64_t, kRebuildRejectCount> rejected{};
};

// Takes every slot with a valid header that lies where it says and has not expired; of several
// slots with one block the one written last. Times in the future are brought back to now.
// Namespaces are numbered anew. Says nothing of payloads: they are checked when they are read.
// Blocks; for `read` see parallel_reader.h; `on_progress` may be empty.
[[nodiscard]] RebuiltIndex RebuildIndex(
    const DiskGeometry& geometry, const DiskReadFunction& read, const RebuildOptions& options,
    const std::function<void(const ScanProgress&)>& on_progress = {});

}  // namespace kvtier
