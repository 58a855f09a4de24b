// SPDX-License-Identifier: Apache-2.0
#include "tiers/storage/disk_set_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

#include "base/posix.h"
#include "tiers/storage/block_file.h"
#include "tiers/storage/header_page.h"
#include "tiers/storage/superblock.h"

namespace kvtier {
namespace {

constexpr mode_t kPrivateFile = 0600;
// Superblocks alternate between two pages, so that a write torn by a crash leaves the other one.
constexpr size_t kSuperblockPages = 2;
constexpr uint64_t kStatBlockBytes = 512;

struct alignas(kIoAlignment) SuperblockArea {
  std::array<std::byte, kSuperblockPages * kSuperblockBytes> bytes{};

  [[nodiscard]] std::span<const std::byte, kSuperblockBytes> Page(size_t i) const {
    return std::span<const std::byte, kSuperblockBytes>(bytes.data() + i * kSuperblockBytes,
                                                        kSuperblockBytes);
  }
};

}  // namespace

// Some file systems (tmpfs on older kernels) refuse O_DIRECT with EINVAL; their files are used
// through the page cache. Only regular files of this user are taken: another user could change what
// such a file holds at any time.
Result<DiskSetFile> DiskSetFile::Open(const std::filesystem::path& path, bool create) {
  const int flags = O_RDWR | O_CLOEXEC | (create ? O_CREAT : 0);
  bool direct = true;
  UniqueFd fd(::open(path.c_str(), flags | O_DIRECT, kPrivateFile));
  if (!fd.valid() && errno == EINVAL) {
    direct = false;
    fd = UniqueFd(::open(path.c_str(), flags, kPrivateFile));
  }
  if (!fd.valid() && errno == ENOENT) {
    return MakeError(ErrorCode::kNotFound, "file_missing", path.native());
  }
  DiskSetFile file(path, std::move(fd), direct);
  struct stat status {};
  if (!file.fd_.valid()) return file.Failed("open");
  if (::fstat(file.fd_.get(), &status) != 0) return file.Failed("fstat");
  if (!S_ISREG(status.st_mode)) {
    return MakeError(ErrorCode::kWrongState, "not_a_file", path.native());
  }
  if (status.st_uid != ::geteuid()) {
    return MakeError(ErrorCode::kPermissionDenied, "file_owner",
                     fmt::format("{} belongs to uid {}", path.native(), status.st_uid));
  }
  return file;
}

// A file shorter than the two pages leaves zeros in the area. All zeros mean that the file was
// never begun; one sound page is enough, since the other may have been torn. Only a file with bytes
// and without a sound page is corrupt, and it is never silently begun anew.
Result<std::optional<Superblock>> DiskSetFile::ReadSuperblock() {
  SuperblockArea area;
  const ssize_t count = ::pread(fd_.get(), area.bytes.data(), area.bytes.size(), 0);
  if (count < 0) return Failed("read");
  if (IsAllZero(area.bytes)) return std::nullopt;
  std::optional<Superblock> newest;
  std::string complaints;
  for (size_t i = 0; i < kSuperblockPages; ++i) {
    if (IsAllZero(area.Page(i))) continue;
    Result<Superblock> page = DecodeSuperblock(area.Page(i));
    if (!page) {
      complaints += fmt::format("; page {}: {}", i, page.error().ToString());
    } else if (!newest || page->epoch > newest->epoch) {
      newest = *page;
      next_page_ = (i + 1) % kSuperblockPages;
    }
  }
  if (newest) return newest;
  return MakeError(ErrorCode::kCorrupt, "bad_superblock", path_.native() + complaints);
}

// The page of the start before stays untouched. The superblock is durable on return: blocks of this
// epoch are written only after that.
Status DiskSetFile::WriteSuperblock(const Superblock& superblock) {
  SuperblockArea area;
  EncodeSuperblock(superblock, std::span(area.bytes).first<kSuperblockBytes>());
  const auto offset = static_cast<off_t>(next_page_ * kSuperblockBytes);
  const ssize_t count = ::pwrite(fd_.get(), area.bytes.data(), kSuperblockBytes, offset);
  if (count < 0) return Failed("write");
  if (count != static_cast<ssize_t>(kSuperblockBytes)) {
    return MakeError(ErrorCode::kIoError, "short_io", "superblock of " + path_.native());
  }
  if (::fsync(fd_.get()) != 0) return Failed("fsync");
  next_page_ = (next_page_ + 1) % kSuperblockPages;
  return {};
}

Status DiskSetFile::Empty() {
  next_page_ = 0;
  if (::ftruncate(fd_.get(), 0) != 0) return Failed("ftruncate");
  return {};
}

// The size is durable before a superblock speaks of it: a power loss may keep the superblock, which
// overwrites bytes that were there, and not the size, which is metadata. A size that is there
// already may have come with an attempt that found the file system full, and not be durable yet.
Result<bool> DiskSetFile::Preallocate(uint64_t bytes) {
  KVT_ASSIGN_OR_RETURN(const bool set_aside, Allocate(bytes));
  if (::fsync(fd_.get()) != 0) return Failed("fsync");
  return set_aside;
}

// True if the file system has set the bytes aside, so that later writes cannot run out of space.
// False where it cannot do so: the file is made that long, and a write may still fail. Running out
// of space is an error of its own, because the caller answers it with a smaller size.
Result<bool> DiskSetFile::Allocate(uint64_t bytes) const {
  const auto size = static_cast<off_t>(bytes);
  int outcome = 0;
  do {
    outcome = ::fallocate(fd_.get(), 0, 0, size);
  } while (outcome != 0 && errno == EINTR);
  if (outcome == 0) return true;
  if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG) {
    return MakeError(ErrorCode::kResourceExhausted, "ENOSPC",
                     fmt::format("{} to {} bytes: {}", path_.native(), bytes, ErrnoName(errno)));
  }
  if (errno != EOPNOTSUPP) return Failed("fallocate");
  KVT_ASSIGN_OR_RETURN(const uint64_t size_now, GetSize());
  if (size_now < bytes && ::ftruncate(fd_.get(), size) != 0) return Failed("ftruncate");
  return false;
}

Status DiskSetFile::Cut(uint64_t bytes) {
  KVT_ASSIGN_OR_RETURN(const uint64_t size, GetSize());
  if (size <= bytes) return {};
  if (::ftruncate(fd_.get(), static_cast<off_t>(bytes)) != 0) return Failed("ftruncate");
  return {};
}

Result<DiskSetFile::Namespace> DiskSetFile::GetNamespace() const {
  struct stat status {};
  struct statvfs file_system {};
  if (::fstat(fd_.get(), &status) != 0) return Failed("fstat");
  if (::fstatvfs(fd_.get(), &file_system) != 0) return Failed("fstatvfs");
  // Free space is what an unprivileged process may still take (f_bavail), without the blocks that
  // are kept for root.
  return Namespace{.device = status.st_dev,
                   .allocated_bytes = static_cast<uint64_t>(status.st_blocks) * kStatBlockBytes,
                   .file_system_free_bytes = file_system.f_bavail * file_system.f_frsize};
}

Result<UniqueFd> DiskSetFile::DuplicateFd() const {
  UniqueFd duplicate(::fcntl(fd_.get(), F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
  if (!duplicate.valid()) return Failed("duplicate");
  return duplicate;
}

Result<uint64_t> DiskSetFile::GetSize() const {
  struct stat status {};
  if (::fstat(fd_.get(), &status) != 0) return Failed("fstat");
  return static_cast<uint64_t>(status.st_size);
}

tl::unexpected<Error> DiskSetFile::Failed(std::string_view call) const {
  return tl::unexpected<Error>(
      ErrnoError(ErrorCode::kIoError, errno, fmt::format("{} {}", call, path_.native())));
}

}  // namespace kvtier
