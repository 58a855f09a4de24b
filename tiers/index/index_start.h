// SPDX-License-Identifier: Apache-2.0
// Brings the disk tier's index to life at start-up: from RocksDB, or from the headers when that
// cannot be trusted.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/executor.h"
#include "base/result.h"
#include "tiers/index/index_rebuild.h"
#include "tiers/index/rocksdb_index.h"
#include "tiers/storage/disk_files.h"

namespace kvtier {

struct StartedIndex {
  std::unique_ptr<RocksdbIndex> index;
  IndexSnapshot snapshot;
  // What was found; if not good, it was rebuilt for that reason.
  IndexState found = IndexState::kGood;
  std::string found_detail;
  // The rebuild's counts (the snapshot is moved out); nothing if none was needed.
  std::optional<RebuiltIndex> rebuilt;
};

// The index of the disk files in `directory`.
[[nodiscard]] IndexPlace IndexPlaceIn(const std::filesystem::path& directory);

// Blocks: call before the event loop runs, after OpenDiskFiles gave `files` and before anything is
// written to them. `on_progress` reports on a rebuild and may be empty. Errors: those of
// RocksdbIndex::Open and Replace, ParallelReader::Open; kInternal "index_rebuild" if a fresh index
// is not good either.
[[nodiscard]] Result<StartedIndex> StartIndex(
    const std::filesystem::path& directory, const DiskFiles& files, const RebuildOptions& options,
    EventQueue* loop, const std::function<void(const ScanProgress&)>& on_progress = {});

}  // namespace kvtier
