// SPDX-License-Identifier: Apache-2.0
#include "tiers/storage/disk_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <string_view>
#include <utility>

#include "tiers/storage/disk_set.h"

namespace kvtier {
namespace {

// A slab holds its header and at least one slot of a header and a page.
constexpr uint64_t kMinSlabBytes = kSlabHeaderBytes + 2 * kIoAlignment;

tl::unexpected<Error> BadOption(std::string context) {
  return MakeError(ErrorCode::kInvalidArgument, "bad_disk_options", std::move(context));
}

Status Validate(const DiskFilesOptions& options) {
  if (options.directory.empty()) return BadOption("no directory given");
  if (options.files == 0 || options.files > kMaxDiskFiles) {
    return BadOption(fmt::format("files = {}: 1 to {}", options.files, kMaxDiskFiles));
  }
  if (options.slab_bytes < kMinSlabBytes || options.slab_bytes % kIoAlignment != 0) {
    return BadOption(fmt::format("slab_bytes = {}: at least {} and a multiple of {}",
                                 options.slab_bytes, kMinSlabBytes, kIoAlignment));
  }
  const uint64_t least = options.files * kFirstSlabOffset + options.slab_bytes;
  if (options.bytes < least) {
    return BadOption(fmt::format("bytes = {}: {} files with one slab of {} take at least {}",
                                 options.bytes, options.files, options.slab_bytes, least));
  }
  return {};
}

// Why nothing that usable files hold can be served; nothing if it can.
std::optional<std::string> WhyAnew(const DiskSet& set, const DiskFilesOptions& options,
                                   bool has_keys) {
  const bool encrypted = options.has_keys != nullptr;
  if (set.encrypted() != encrypted) {
    return fmt::format("emptied the disk tier because disk.encryption was turned {}",
                       encrypted ? "on" : "off");
  }
  if (encrypted && !has_keys) {
    return "emptied the disk tier because the keys that it was encrypted with are gone";
  }
  return std::nullopt;
}

// Brings the files to the configured shape, keeping what they hold if that is possible.
Result<DiskSet> OpenSet(const DiskFilesOptions& options, DiskFiles* result) {
  const DiskSetShape shape{.files = options.files,
                           .slab_bytes = options.slab_bytes,
                           .bytes = options.bytes,
                           .free_floor_bytes = options.free_floor_bytes,
                           .encrypted = options.has_keys != nullptr};
  bool has_keys = false;
  if (options.has_keys) {
    KVT_ASSIGN_OR_RETURN(has_keys, options.has_keys());
  }
  KVT_ASSIGN_OR_RETURN(DiskSet set, DiskSet::Inspect(options.directory, shape));
  KVT_RETURN_IF_ERROR(set.CheckUsable());
  result->created = set.IsNew();
  if (!result->created) {
    if (std::optional<std::string> why = WhyAnew(set, options, has_keys)) {
      result->notes.push_back(*std::move(why));
      result->created = true;
    }
  }
  if (result->created) KVT_RETURN_IF_ERROR(set.Reset());
  KVT_RETURN_IF_ERROR(set.SizeAndBegin());
  return set;
}

std::vector<EngineFile> TakeEngineFiles(DiskSet* set) {
  std::vector<EngineFile> files;
  for (DiskSetFile& file : set->TakeFiles()) {
    const auto number = static_cast<uint32_t>(files.size());
    files.push_back({file.TakeFd(), set->geometry().FileBytes(number)});
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

// The directory's lock comes before the first look at the files, so that no other daemon changes
// them between; each file's own before its superblock is read, so that the kernel does not either,
// on behalf of a daemon that was killed.
Result<DiskFiles> OpenDiskFiles(const DiskFilesOptions& options, EventQueue* loop) {
  KVT_RETURN_IF_ERROR(Validate(options));
  DiskFiles result;
  KVT_ASSIGN_OR_RETURN(DiskDirectory directory, OpenDiskDirectory(options.directory));
  result.lock = std::move(directory.lock);
  if (directory.note) result.notes.push_back(std::move(*directory.note));
  KVT_ASSIGN_OR_RETURN(DiskSet set, OpenSet(options, &result));
  result.geometry = set.geometry();
  result.set_uuid = set.set_uuid();
  result.epoch = set.epoch();
  result.degraded = set.degraded();
  std::ranges::move(set.TakeNotes(), std::back_inserter(result.notes));
  KVT_RETURN_IF_ERROR(StartEngine(options, TakeEngineFiles(&set), loop, &result));
  return result;
}

}  // namespace kvtier
