// SPDX-License-Identifier: Apache-2.0
#include "tiers/index/index_start.h"

#include <utility>

#include "tiers/storage/parallel_reader.h"

namespace kvtier {
namespace {

Result<RebuiltIndex> Rebuild(const std::filesystem::path& directory, const DiskFiles& files,
                             const RebuildOptions& options,
                             const std::function<void(const ScanProgress&)>& on_progress) {
  if (files.created) return RebuiltIndex{};
  KVT_ASSIGN_OR_RETURN(const ParallelReader reader,
                       ParallelReader::Open(directory, files.geometry.files));
  return RebuildIndex(
      files.geometry, [&](std::span<DiskRead> reads) { reader.Read(reads); }, options, on_progress);
}

}  // namespace

IndexPlace IndexPlaceIn(const std::filesystem::path& directory) {
  return {.index = directory / "index", .files = directory};
}

Result<StartedIndex> StartIndex(const std::filesystem::path& directory, const DiskFiles& files,
                                const RebuildOptions& options, EventQueue* loop,
                                const std::function<void(const ScanProgress&)>& on_progress) {
  const IndexPlace place = IndexPlaceIn(directory);
  const IndexMeta start{.file_set = files.set_uuid, .epoch = files.epoch};
  KVT_ASSIGN_OR_RETURN(OpenedIndex opened, RocksdbIndex::Open(place, start, loop));
  StartedIndex result{.found = opened.contents.state, .found_detail = opened.contents.detail};
  if (result.found != IndexState::kGood) {
    KVT_ASSIGN_OR_RETURN(result.rebuilt, Rebuild(directory, files, options, on_progress));
    KVT_RETURN_IF_ERROR(RocksdbIndex::Replace(place, start, result.rebuilt->snapshot));
    result.rebuilt->snapshot = {};
    KVT_ASSIGN_OR_RETURN(opened, RocksdbIndex::Open(place, start, loop));
  }
  if (opened.index == nullptr) {
    return MakeError(ErrorCode::kInternal, "index_rebuild",
                     "the rebuilt index is not good either: " + opened.contents.detail);
  }
  result.snapshot = std::move(opened.contents.snapshot);
  result.index = std::move(opened.index);
  return result;
}

}  // namespace kvtier
