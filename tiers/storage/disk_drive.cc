// SPDX-License-Identifier: Apache-2.0
#include "tiers/storage/disk_drive.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <system_error>

#include "base/posix.h"
#include "base/units.h"

namespace kvtier {
namespace {

// Is there while a file that a daemon may have used is being emptied.
constexpr std::string_view kEmptyingName = "emptying";
constexpr mode_t kPrivateFile = 0600;
// When the file system has less room than it said, this share of the slabs is given up at a time.
constexpr uint64_t kRetreatDivisor = 16;
// A file that serves changes its size by so much at a time: its reads stand still meanwhile. To cut
// 28 GiB at once took an ext4 a second.
constexpr uint64_t kResizeStepBytes = 256 * kMiB;

// Makes the directory's new entries durable.
Status SyncDirectory(const std::filesystem::path& directory) {
  const UniqueFd fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.valid() && ::fsync(fd.get()) == 0) return {};
  return tl::unexpected<Error>(
      ErrnoError(ErrorCode::kIoError, errno, "fsync " + directory.native()));
}

std::string GiveUp(const std::filesystem::path& file) {
  return fmt::format("give up its blocks: truncate -s 0 {}", file.native());
}

}  // namespace

Result<DiskDrive> DiskDrive::Open(const std::filesystem::path& directory, bool create, DriveUse use,
                                  std::chrono::steady_clock::time_point until) {
  DiskDrive drive(directory);
  if (use == DriveUse::kLook) {
    KVT_ASSIGN_OR_RETURN(const bool has_files, LookAtDiskDirectory(directory, create));
    if (has_files) KVT_RETURN_IF_ERROR(drive.Inspect(use, until));
    return drive;
  }
  KVT_ASSIGN_OR_RETURN(DiskDirectory opened, OpenDiskDirectory(directory, create, until));
  drive.lock_ = std::move(opened.lock);
  drive.note_ = std::move(opened.note);
  KVT_RETURN_IF_ERROR(drive.Inspect(use, until));
  return drive;
}

// The file is locked before its superblock is read: a killed daemon's I/O may be under way in it.
// A file that is being emptied holds nothing, whatever is in it.
Status DiskDrive::Inspect(DriveUse use, std::chrono::steady_clock::time_point until) {
  std::error_code error;
  emptying_ = std::filesystem::exists(directory_ / kEmptyingName, error);
  const std::filesystem::path path = directory_ / kDiskFileName;
  Result<DiskSetFile> file = DiskSetFile::Open(path, false);
  if (!file && file.error().code == ErrorCode::kNotFound) return {};
  if (!file) return tl::unexpected<Error>(file.error());
  if (use == DriveUse::kServe) KVT_RETURN_IF_ERROR(file->Lock(until));
  file_ = std::move(*file);
  if (emptying_) return {};
  Result<std::optional<Superblock>> found = file_->ReadSuperblock();
  if (!found) {
    Error damage = std::move(found).error();
    if (damage.code == ErrorCode::kCorrupt) damage.context.append("; " + GiveUp(path));
    return tl::unexpected<Error>(std::move(damage));
  }
  // Epoch 0 comes first, and blocks are written only after the next.
  if (!*found || (*found)->epoch == 0) return {};
  KVT_ASSIGN_OR_RETURN(const uint64_t size, file_->GetSize());
  if (size < (*found)->file_bytes) {
    return MakeError(ErrorCode::kWrongState, "file_truncated",
                     fmt::format("{} has {} bytes, its superblock says {}; {}", path.native(), size,
                                 (*found)->file_bytes, GiveUp(path)));
  }
  superblock_ = *found;
  return {};
}

// Durable before the file is emptied.
Status DiskDrive::MarkEmptying() {
  const std::filesystem::path path = directory_ / kEmptyingName;
  const UniqueFd fd(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, kPrivateFile));
  if (!fd.valid()) {
    return tl::unexpected<Error>(ErrnoError(ErrorCode::kIoError, errno, "create " + path.native()));
  }
  emptying_ = true;
  return SyncDirectory(directory_);
}

// Durable before the first block is written, which would be lost with the file otherwise.
Status DiskDrive::EndEmptying() {
  const std::filesystem::path path = directory_ / kEmptyingName;
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) {
    return tl::unexpected<Error>(ErrnoError(ErrorCode::kIoError, errno, "remove " + path.native()));
  }
  emptying_ = false;
  return SyncDirectory(directory_);
}

Status DiskDrive::Empty() {
  KVT_RETURN_IF_ERROR(MarkEmptying());
  superblock_.reset();
  return file_->Empty();
}

Status DiskDrive::Create() {
  if (superblock_) return {};
  if (!file_) {
    KVT_ASSIGN_OR_RETURN(file_, DiskSetFile::Open(directory_ / kDiskFileName, true));
    KVT_RETURN_IF_ERROR(file_->Lock(LastIoDeadline()));
  }
  KVT_RETURN_IF_ERROR(file_->Empty());
  return SyncDirectory(directory_);
}

Status DiskDrive::Preallocate(uint64_t slabs, uint64_t slab_bytes) {
  const uint64_t kept = superblock_ ? superblock_->file_bytes : 0;
  while (slabs > 0) {
    const uint64_t bytes = kFirstSlabOffset + slabs * slab_bytes;
    // Frees the space that an earlier, larger attempt got.
    KVT_RETURN_IF_ERROR(file_->Cut(std::max(kept, bytes)));
    const Result<bool> allocated = file_->Preallocate(bytes);
    if (allocated) {
      if (!*allocated) {
        note_ = fmt::format(
            "{}: this file system cannot preallocate, so that writes may fail for "
            "want of space",
            file_->path().native());
      }
      slabs_ = slabs;
      return {};
    }
    if (allocated.error().code != ErrorCode::kResourceExhausted) {
      return tl::unexpected<Error>(allocated.error());
    }
    slabs -= std::max<uint64_t>(1, slabs / kRetreatDivisor);
  }
  return MakeError(ErrorCode::kResourceExhausted, "disk_full",
                   fmt::format("{} has no room for one slab", directory_.native()));
}

// The order keeps the superblock true at every moment: space was taken before it speaks of it, and
// is cut off only after it has ceased to speak of it. A new file has epoch 0 first, so that one
// torn page leaves another.
Status DiskDrive::Begin(const Superblock& superblock) {
  if (!superblock_) {
    Superblock first = superblock;
    first.epoch = 0;
    KVT_RETURN_IF_ERROR(file_->WriteSuperblock(first));
  }
  KVT_RETURN_IF_ERROR(file_->WriteSuperblock(superblock));
  if (emptying_) KVT_RETURN_IF_ERROR(EndEmptying());
  superblock_ = superblock;
  return file_->Cut(superblock.file_bytes);
}

// The order is that of a start. Both pages get the new size, because of two with one epoch a start
// may read either.
Status DiskDrive::Resize(uint64_t slabs, uint64_t free_floor_bytes) {
  const uint64_t slab_bytes = superblock_->slab_bytes;
  const uint64_t before = slabs_;
  if (slabs > before) {
    KVT_ASSIGN_OR_RETURN(const DiskSetFile::Namespace name_space, file_->GetNamespace());
    const uint64_t free_bytes = name_space.file_system_free_bytes;
    const uint64_t room = free_bytes - std::min(free_bytes, free_floor_bytes);
    slabs = std::min(slabs, before + room / slab_bytes);
    ExtendInSteps(kFirstSlabOffset + slabs * slab_bytes);
    const Status got = Preallocate(slabs, slab_bytes);
    slabs = got ? std::max(slabs_, before) : before;
    slabs_ = before;
    if (!got) {
      (void)file_->Cut(superblock_->file_bytes);
      return got;
    }
  }
  if (slabs == before) return {};
  Superblock resized = *superblock_;
  resized.file_bytes = kFirstSlabOffset + slabs * slab_bytes;
  // From here on a page may speak of the larger size, even if the writing fails: it is not cut off.
  if (slabs > before) superblock_->file_bytes = resized.file_bytes;
  for (int page = 0; page < 2; ++page) KVT_RETURN_IF_ERROR(file_->WriteSuperblock(resized));
  superblock_ = resized;
  slabs_ = slabs;
  return CutInSteps(resized.file_bytes);
}

// No error matters: the whole is preallocated afterwards, which finds these parts done.
void DiskDrive::ExtendInSteps(uint64_t bytes) {
  uint64_t part = superblock_->file_bytes;
  while (bytes - part > kResizeStepBytes) {
    part += kResizeStepBytes;
    if (!file_->Preallocate(part)) return;
  }
}

Status DiskDrive::CutInSteps(uint64_t bytes) {
  KVT_ASSIGN_OR_RETURN(uint64_t size, file_->GetSize());
  while (size > bytes) {
    size -= std::min(size - bytes, kResizeStepBytes);
    KVT_RETURN_IF_ERROR(file_->Cut(size));
  }
  return {};
}

}  // namespace kvtier
