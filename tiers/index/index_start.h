// SPDX-License-Identifier: Apache-2.0
// How the index is opened at a start: as it was left, or rebuilt from the headers on disk when it
// is missing, damaged or of another history than the disk files.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/enum_names.h"
#include "base/executor.h"
#include "base/result.h"
#include "tiers/index/index.h"
#include "tiers/index/rocksdb_index.h"
#include "tiers/storage/disk_files.h"
#include "tiers/storage/disk_geometry.h"
#include "tiers/storage/header_scan.h"
#include "tiers/types/cache_options.h"

namespace kvtier {

class SlotCipher;

struct RebuildOptions {
  int64_t now_ms = 0;  // Unix time
  int64_t extended_ttl_ms = 24 * 60 * 60 * 1000;
  int64_t max_age_ms = 0;  // 0: no maximum
  // For these tenants their own settings count.
  std::vector<TenantQuota> tenants = {};
  // Null: nothing is encrypted, or there are no keys.
  std::shared_ptr<const SlotCipher> cipher = nullptr;
};

// Why a block that a slot claims to hold is not in the rebuilt index.
#define KVT_REBUILD_REJECTS(X)                                                   \
  X(kUnreadable, "unreadable", "the disk failed")                                \
  X(kDamaged, "damaged", "its header does not hold")                             \
  X(kMisplaced, "misplaced", "a header of another place")                        \
  X(kMisfit, "misfit", "its payload does not make up the slot")                  \
  X(kExpired, "expired", "its time to live had passed")                          \
  X(kMemoryClass, "memory_class", "retention `memory` has no business on disk")  \
  X(kDuplicate, "duplicate", "another slot holds the same block, written later") \
  X(kErased, "erased", "the key that it was encrypted with is gone")
KVT_NAMED_ENUM(RebuildReject, KVT_REBUILD_REJECTS)

struct RebuiltIndex {
  IndexSnapshot snapshot;
  uint64_t slabs = 0;
  uint64_t slabs_bad = 0;  // their blocks are forgotten
  std::array<uint64_t, kRebuildRejectCount> rejected{};
};

// Takes every slot with a valid header that lies where it says and has not expired; of several
// slots with one block the one written last. Times in the future are brought back to now.
// Namespaces are numbered anew. Says nothing of payloads: they are checked when they are read.
// Blocks; for `read` see parallel_reader.h; `on_progress` may be empty.
[[nodiscard]] RebuiltIndex RebuildIndex(
    const DiskGeometry& geometry, const DiskReadFunction& read, const RebuildOptions& options,
    const std::function<void(const ScanProgress&)>& on_progress = {});

struct StartedIndex {
  std::unique_ptr<Index> index;
  std::filesystem::path directory;  // it lies there
  IndexSnapshot snapshot;
  // The state of the index as found; if not good, it was rebuilt for that reason.
  IndexState found = IndexState::kGood;
  std::string found_detail;
  // The rebuild's counts (the snapshot is moved out); nothing if none was needed.
  std::optional<RebuiltIndex> rebuilt;
  // Lines of the marks of begun erasures and of distrust that a rebuild could not read.
  size_t damaged_marks = 0;
  // Why the rebuilt index could not be written, mostly for want of room: it serves all the same,
  // and batches fail until it could be. Nothing if it was.
  std::optional<Error> unwritten;
};

// The index of the drives: in the first of their directories that has one, or else in the first;
// `configured` says their order, and may name directories that none of the drives has.
[[nodiscard]] IndexPlace IndexPlaceFor(const std::vector<std::filesystem::path>& configured,
                                       const std::vector<StartedDrive>& drives);

// Blocks: call before the event loop runs, after OpenDiskFiles gave `files` and before anything is
// written to them. `on_progress` reports on a rebuild and may be empty. Errors: those of
// RocksdbIndex::Open, ParallelReader::Open; kInternal "index_rebuild" if a fresh index is not good
// either.
[[nodiscard]] Result<StartedIndex> StartIndex(
    const std::vector<std::filesystem::path>& configured, const DiskFiles& files,
    const RebuildOptions& options, EventQueue* loop,
    const std::function<void(const ScanProgress&)>& on_progress = {});

}  // namespace kvtier
