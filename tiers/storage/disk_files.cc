// SPDX-License-Identifier: Apache-2.0
#include "tiers/storage/disk_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "tiers/storage/disk_drive.h"
#include "tiers/storage/disk_set.h"

namespace kvtier {
namespace {

// A slab holds its header and at least one slot of a header and a page.
constexpr uint64_t kMinSlabBytes = kSlabHeaderBytes + 2 * kIoAlignment;

tl::unexpected<Error> BadOption(std::string context) {
  return MakeError(ErrorCode::kInvalidArgument, "bad_disk_options", std::move(context));
}

Status Validate(const DiskFilesOptions& options) {
  const size_t directories = options.directories.size();
  if (directories == 0 || std::ranges::any_of(options.directories, &std::filesystem::path::empty)) {
    return BadOption("no directory given");
  }
  if (directories > kMaxDrives) {
    return BadOption(fmt::format("{} directories: 1 to {}", directories, kMaxDrives));
  }
  if (options.slab_bytes < kMinSlabBytes || options.slab_bytes % kIoAlignment != 0) {
    return BadOption(fmt::format("slab_bytes = {}: at least {} and a multiple of {}",
                                 options.slab_bytes, kMinSlabBytes, kIoAlignment));
  }
  const uint64_t least = directories * (kFirstSlabOffset + options.slab_bytes);
  if (options.bytes < least) {
    return BadOption(fmt::format("bytes = {}: {} directories with one slab of {} take at least {}",
                                 options.bytes, directories, options.slab_bytes, least));
  }
  return {};
}

// Brings the files to the configured shape, keeping what they hold if that is possible.
Result<DiskSet> OpenSet(const DiskFilesOptions& options) {
  const bool encrypted = options.has_keys != nullptr;
  const DiskSetShape shape{.slab_bytes = options.slab_bytes,
                           .bytes = options.bytes,
                           .free_floor_bytes = options.free_floor_bytes,
                           .encrypted = encrypted,
                           .now_s = static_cast<uint32_t>(options.now_ms / 1000),
                           .forget_after_s = static_cast<uint32_t>(
                               std::min<int64_t>(options.forget_after_ms / 1000, UINT32_MAX)),
                           .locks_until = options.locks_until};
  KVT_ASSIGN_OR_RETURN(DiskSet set, DiskSet::Open(options.directories, shape));
  bool has_keys = false;
  if (encrypted) {
    KVT_ASSIGN_OR_RETURN(has_keys, options.has_keys(set.directories()));
  }
  // Why nothing that the drive holds can be served; nothing if it can.
  KVT_RETURN_IF_ERROR(set.EmptyIf([&](const Superblock& found) -> std::optional<std::string> {
    if (found.encrypted != encrypted) {
      return fmt::format("emptied the disk tier because disk.encryption was turned {}",
                         encrypted ? "on" : "off");
    }
    if (encrypted && !has_keys) {
      return "emptied the disk tier because the keys that it was encrypted with are gone";
    }
    return std::nullopt;
  }));
  KVT_RETURN_IF_ERROR(set.SizeAndBegin());
  return set;
}

Result<std::vector<EngineFile>> TakeEngineFiles(DiskSet* set, DiskFiles* result) {
  std::vector<EngineFile> files;
  for (DiskDrive& drive : set->TakeDrives()) {
    const auto number = static_cast<uint32_t>(files.size());
    KVT_ASSIGN_OR_RETURN(UniqueFd fd, drive.file().DuplicateFd());
    files.push_back({std::move(fd), set->geometry().FileBytes(number)});
    result->locks.push_back(drive.TakeLock());
    result->opened->push_back(std::move(drive));
  }
  return files;
}

Status StartEngine(const DiskFilesOptions& options, std::vector<EngineFile> files, EventQueue* loop,
                   DiskFiles* result) {
  if (options.engine != DiskEngine::kPread) {
    Error refusal{ErrorCode::kUnsupported, "io_uring_refused", "refused for a test"};
    if (!options.refuse_uring) {
      auto made = MakeUringBlockFiles(&files, options.io, loop);
      if (made) {
        result->files = std::move(*made);
        return {};
      }
      refusal = made.error();
    }
    if (options.engine == DiskEngine::kUring) return tl::unexpected<Error>(std::move(refusal));
    result->notes.push_back("disk I/O by pread threads instead of io_uring: " + refusal.ToString());
  }
  result->files = MakePreadBlockFiles(std::move(files), options.io, loop);
  return {};
}

}  // namespace

// The directories' locks come before the first look at the files, so that no other daemon changes
// them between; each file's own before its superblock is read, so that the kernel does not either,
// on behalf of a daemon that was killed.
Result<DiskFiles> OpenDiskFiles(const DiskFilesOptions& options, EventQueue* loop) {
  KVT_RETURN_IF_ERROR(Validate(options));
  DiskFiles result;
  KVT_ASSIGN_OR_RETURN(DiskSet set, OpenSet(options));
  result.geometry = set.geometry();
  result.set_uuid = set.set_uuid();
  result.epoch = set.epoch();
  result.created = set.created();
  result.degraded = set.degraded();
  result.drives = set.started();
  result.left_out = set.left_out();
  result.drives_away = set.drives_away();
  result.notes = set.TakeNotes();
  KVT_ASSIGN_OR_RETURN(std::vector<EngineFile> files, TakeEngineFiles(&set, &result));
  KVT_RETURN_IF_ERROR(StartEngine(options, std::move(files), loop, &result));
  return result;
}

}  // namespace kvtier
