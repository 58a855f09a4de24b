// SPDX-License-Identifier: Apache-2.0
#include "tiers/storage/disk_set.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <system_error>
#include <utility>

#include "base/posix.h"
#include "base/result.h"
#include "base/units.h"

namespace kvtier {
namespace {

// Is there while files that a daemon may have used are being emptied: some are then of the old set,
// some empty, some of the new one.
constexpr std::string_view kEmptyingName = "emptying";
constexpr mode_t kPrivateFile = 0600;
// Through symbolic links, too. Files that hold nothing begin a new set.
constexpr std::string_view kGiveUp =
    "give up the files' blocks: truncate -s 0 blocks-*.kvt in the directory";
// When the file system has less room than it said, this share of the slabs is given up at a time.
constexpr uint64_t kRetreatDivisor = 16;

Result<Digest128> RandomUuid() {
  Digest128 uuid;
  if (::getrandom(uuid.bytes.data(), uuid.bytes.size(), 0) !=
      static_cast<ssize_t>(uuid.bytes.size())) {
    return tl::unexpected<Error>(ErrnoError(ErrorCode::kIoError, errno, "getrandom"));
  }
  uuid.bytes[6] = static_cast<uint8_t>((uuid.bytes[6] & 0x0f) | 0x40);  // RFC 9562 version 4
  uuid.bytes[8] = static_cast<uint8_t>((uuid.bytes[8] & 0x3f) | 0x80);
  return uuid;
}

// Makes the directory's new entries durable.
Status SyncDirectory(const std::filesystem::path& directory) {
  const UniqueFd fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.valid() && ::fsync(fd.get()) == 0) return {};
  return tl::unexpected<Error>(
      ErrnoError(ErrorCode::kIoError, errno, "fsync " + directory.native()));
}

tl::unexpected<Error> Unusable(std::string reason, std::string what) {
  return MakeError(ErrorCode::kWrongState, std::move(reason),
                   fmt::format("{}; change it back, or {}", what, kGiveUp));
}

}  // namespace

// Looks for every number that a set could have, not only for those configured: files beyond the
// configured number show that `files` was lowered, and their blocks must not be lost unasked. All
// are locked, since a killed daemon's I/O may be under way in any of them. Nothing is created or
// changed here.
Result<DiskSet> DiskSet::Inspect(const std::filesystem::path& directory,
                                 const DiskSetShape& shape) {
  DiskSet set(directory, shape);
  std::error_code error;
  set.emptying_ = std::filesystem::exists(directory / kEmptyingName, error);
  for (uint32_t i = 0; i < kMaxDiskFiles; ++i) KVT_RETURN_IF_ERROR(set.InspectFile(i));
  return set;
}

// Damage is noted, not returned: nothing of it counts while the files are being emptied. Errors of
// the file system are returned, because they say nothing of the file's contents.
Status DiskSet::InspectFile(uint32_t number) {
  Result<DiskSetFile> file = DiskSetFile::Open(directory_ / DiskSetFileName(number), false);
  found_.emplace_back();
  if (!file && file.error().code == ErrorCode::kNotFound) return {};
  if (!file) return tl::unexpected<Error>(file.error());
  KVT_RETURN_IF_ERROR(file->Lock());
  Result<std::optional<Superblock>> superblock = file->ReadSuperblock();
  if (superblock) {
    found_.back().superblock = *superblock;
  } else if (superblock.error().code == ErrorCode::kCorrupt) {
    found_.back().damage = superblock.error();
  } else {
    return tl::unexpected<Error>(superblock.error());
  }
  found_.back().file = std::move(*file);
  return {};
}

bool DiskSet::IsNew() const {
  if (emptying_) return true;
  // Every file gets epoch 0 before any gets epoch 1, and blocks are written only after that.
  return std::ranges::none_of(found_, [](const Found& found) {
    return found.damage || (found.superblock && found.superblock->epoch > 0);
  });
}

bool DiskSet::encrypted() const { return found_.front().superblock->encrypted; }

Status DiskSet::CheckUsable() const {
  if (emptying_) return {};
  for (const Found& found : found_) {
    if (!found.damage) continue;
    Error error = *found.damage;
    error.context.append("; ").append(kGiveUp);
    return tl::unexpected<Error>(std::move(error));
  }
  if (IsNew()) return {};
  const auto first =
      std::ranges::find_if(found_, [](const Found& found) { return found.superblock.has_value(); });
  const Superblock& superblock = *first->superblock;
  if (superblock.file_count != shape_.files) {
    return Unusable("files_changed",
                    fmt::format("{} was made with files = {}, configured is {}",
                                directory_.native(), superblock.file_count, shape_.files));
  }
  if (superblock.slab_bytes != shape_.slab_bytes) {
    return Unusable("slab_bytes_changed",
                    fmt::format("{} was made with slab_bytes = {}, configured is {}",
                                directory_.native(), superblock.slab_bytes, shape_.slab_bytes));
  }
  for (uint32_t i = 0; i < found_.size(); ++i) KVT_RETURN_IF_ERROR(CheckFile(i, superblock));
  return {};
}

// A superblock with a good checksum may still come from a copied or swapped file: identity, number
// and shape must agree with the first one, or slots would be looked for in the wrong file.
Status DiskSet::CheckFile(uint32_t number, const Superblock& first) const {
  const Found& found = found_[number];
  const std::string name = (directory_ / DiskSetFileName(number)).native();
  if (number >= shape_.files) {
    if (!found.superblock) return {};
    return Unusable("foreign_file", fmt::format("{} does not belong to the {} files of this set",
                                                name, shape_.files));
  }
  if (!found.superblock) {
    return Unusable("file_missing", fmt::format("{} is {}, others of its set are there", name,
                                                found.file ? "empty" : "missing"));
  }
  const Superblock& own = *found.superblock;
  if (own.set_uuid != first.set_uuid || own.file_number != number ||
      own.file_count != first.file_count || own.slab_bytes != first.slab_bytes ||
      own.encrypted != first.encrypted) {
    return Unusable("foreign_file",
                    fmt::format("{} is file {} of set {}, expected file {} of set {}", name,
                                own.file_number, own.set_uuid.Hex(), number, first.set_uuid.Hex()));
  }
  KVT_ASSIGN_OR_RETURN(const uint64_t size, found.file->GetSize());
  if (size < own.file_bytes) {
    return Unusable("file_truncated", fmt::format("{} has {} bytes, its superblock says {}", name,
                                                  size, own.file_bytes));
  }
  return {};
}

// Durable before the first file is emptied.
Status DiskSet::MarkEmptying() {
  const std::filesystem::path path = directory_ / kEmptyingName;
  const UniqueFd fd(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, kPrivateFile));
  if (!fd.valid()) {
    return tl::unexpected<Error>(ErrnoError(ErrorCode::kIoError, errno, "create " + path.native()));
  }
  emptying_ = true;
  return SyncDirectory(directory_);
}

// Durable before the first block is written, which would be lost with the files otherwise.
Status DiskSet::EndEmptying() {
  const std::filesystem::path path = directory_ / kEmptyingName;
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) {
    return tl::unexpected<Error>(ErrnoError(ErrorCode::kIoError, errno, "remove " + path.native()));
  }
  emptying_ = false;
  return SyncDirectory(directory_);
}

Status DiskSet::Reset() {
  if (!IsNew()) KVT_RETURN_IF_ERROR(MarkEmptying());
  for (uint32_t i = 0; i < found_.size(); ++i) {
    Found& found = found_[i];
    found.superblock.reset();
    found.damage.reset();
    const std::filesystem::path path = directory_ / DiskSetFileName(i);
    if (i >= shape_.files) {
      std::error_code ignored;  // it stays behind, unused
      if (found.file) std::filesystem::remove(path, ignored);
      found.file.reset();
      continue;
    }
    if (!found.file) {
      KVT_ASSIGN_OR_RETURN(found.file, DiskSetFile::Open(path, true));
      KVT_RETURN_IF_ERROR(found.file->Lock());
    }
    KVT_RETURN_IF_ERROR(found.file->Empty());
  }
  return SyncDirectory(directory_);
}

// The order keeps every superblock true at every moment: space is taken before superblocks speak of
// it, and files are cut only after superblocks have ceased to speak of the part that is cut off.
// After a crash between two steps, CheckFile finds no file shorter than it should be.
Status DiskSet::SizeAndBegin() {
  found_.resize(shape_.files);
  geometry_ = {.slab_bytes = shape_.slab_bytes, .files = shape_.files, .slabs = 0};
  uint64_t slabs_before = 0;
  for (const Found& found : found_) {
    if (!found.superblock) continue;
    set_uuid_ = found.superblock->set_uuid;
    epoch_ = std::max(epoch_, found.superblock->epoch);
    slabs_before += (found.superblock->file_bytes - kFirstSlabOffset) / shape_.slab_bytes;
  }
  const bool is_new = slabs_before == 0;
  if (is_new) {
    KVT_ASSIGN_OR_RETURN(set_uuid_, RandomUuid());
  }
  KVT_RETURN_IF_ERROR(Preallocate());
  // A new set is whole before it is begun; see IsNew.
  if (is_new) KVT_RETURN_IF_ERROR(Begin());
  epoch_ += 1;
  KVT_RETURN_IF_ERROR(Begin());
  if (emptying_) KVT_RETURN_IF_ERROR(EndEmptying());
  KVT_RETURN_IF_ERROR(CutToSize());
  NoteSize(slabs_before);
  return {};
}

uint64_t DiskSet::SlabsWithinCap() const {
  const uint64_t superblocks = shape_.files * kFirstSlabOffset;
  return shape_.bytes > superblocks ? (shape_.bytes - superblocks) / shape_.slab_bytes : 0;
}

// Files on one file system share its free space; space that the files have taken already counts as
// available, since a start sizes them anew. The floor is left free on each file system.
Result<uint64_t> DiskSet::SlabsThatFit() const {
  struct FileSystem {
    uint64_t room_bytes = 0;
    uint32_t files = 0;
  };
  std::map<uint64_t, FileSystem> file_systems;
  std::vector<uint64_t> device_of;
  for (const Found& found : found_) {
    KVT_ASSIGN_OR_RETURN(const DiskSetFile::Namespace name_space, found.file->GetNamespace());
    FileSystem& file_system = file_systems[name_space.device];
    if (file_system.files == 0) file_system.room_bytes = name_space.file_system_free_bytes;
    file_system.room_bytes += name_space.allocated_bytes;
    file_system.files += 1;
    device_of.push_back(name_space.device);
  }
  // The file with the least room decides for all: slabs go round the files in turn.
  uint64_t fit = SlabsWithinCap();
  for (uint32_t i = 0; i < shape_.files; ++i) {
    const FileSystem& file_system = file_systems[device_of[i]];
    const uint64_t room =
        file_system.room_bytes - std::min(file_system.room_bytes, shape_.free_floor_bytes);
    const uint64_t share = room / file_system.files;
    const uint64_t slabs =
        share > kFirstSlabOffset ? (share - kFirstSlabOffset) / shape_.slab_bytes : 0;
    fit = std::min(fit, slabs * shape_.files + i);
  }
  return fit;
}

Status DiskSet::Preallocate() {
  KVT_ASSIGN_OR_RETURN(geometry_.slabs, SlabsThatFit());
  while (geometry_.slabs > 0) {
    KVT_ASSIGN_OR_RETURN(const bool enough, PreallocateAll());
    if (enough) return {};
    geometry_.slabs -= std::max<uint64_t>(1, geometry_.slabs / kRetreatDivisor);
  }
  return MakeError(ErrorCode::kResourceExhausted, "disk_full",
                   fmt::format("{} has no room for one slab of {} above the free-space floor of {}",
                               directory_.native(), FormatByteSize(shape_.slab_bytes),
                               FormatByteSize(shape_.free_floor_bytes)));
}

// False if the file system ran out of space.
Result<bool> DiskSet::PreallocateAll() {
  // Frees the space that an earlier, larger attempt got, except for slabs that the superblocks
  // still speak of.
  for (uint32_t i = 0; i < shape_.files; ++i) {
    const uint64_t kept = found_[i].superblock ? found_[i].superblock->file_bytes : 0;
    KVT_RETURN_IF_ERROR(found_[i].file->Cut(std::max(kept, geometry_.FileBytes(i))));
  }
  for (uint32_t i = 0; i < shape_.files; ++i) {
    const Result<bool> allocated = found_[i].file->Preallocate(geometry_.FileBytes(i));
    if (!allocated && allocated.error().code == ErrorCode::kResourceExhausted) return false;
    if (!allocated) return tl::unexpected<Error>(allocated.error());
    if (!*allocated && notes_.empty()) {
      notes_.push_back(
          fmt::format("{}: this file system cannot preallocate, so that writes may "
                      "fail for want of space",
                      found_[i].file->path().native()));
    }
  }
  return true;
}

Status DiskSet::Begin() {
  for (uint32_t i = 0; i < shape_.files; ++i) {
    KVT_RETURN_IF_ERROR(found_[i].file->WriteSuperblock({.set_uuid = set_uuid_,
                                                         .file_number = i,
                                                         .file_count = shape_.files,
                                                         .slab_bytes = shape_.slab_bytes,
                                                         .file_bytes = geometry_.FileBytes(i),
                                                         .epoch = epoch_,
                                                         .encrypted = shape_.encrypted}));
  }
  return {};
}

Status DiskSet::CutToSize() {
  for (uint32_t i = 0; i < shape_.files; ++i) {
    KVT_RETURN_IF_ERROR(found_[i].file->Cut(geometry_.FileBytes(i)));
  }
  return {};
}

void DiskSet::NoteSize(uint64_t slabs_before) {
  if (degraded()) {
    notes_.push_back(fmt::format(
        "{} has room for {} of the {} configured for the disk tier (free-space floor {})",
        directory_.native(), FormatByteSize(geometry_.bytes()),
        FormatByteSize(SlabsWithinCap() * shape_.slab_bytes),
        FormatByteSize(shape_.free_floor_bytes)));
  }
  if (slabs_before != 0 && slabs_before != geometry_.slabs) {
    notes_.push_back(fmt::format("{}: disk tier resized from {} to {}", directory_.native(),
                                 FormatByteSize(slabs_before * shape_.slab_bytes),
                                 FormatByteSize(geometry_.bytes())));
  }
  if (std::ranges::any_of(found_, [](const Found& f) { return !f.file->direct(); })) {
    notes_.push_back(
        fmt::format("{}: this file system has no direct I/O; blocks go through the "
                    "page cache",
                    directory_.native()));
  }
}

std::vector<DiskSetFile> DiskSet::TakeFiles() {
  std::vector<DiskSetFile> files;
  for (Found& found : found_) files.push_back(std::move(*found.file));
  found_.clear();
  return files;
}

}  // namespace kvtier
