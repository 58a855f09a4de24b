// SPDX-License-Identifier: Apache-2.0
#include "tiers/storage/disk_directory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <thread>

#include "base/machine.h"
#include "base/posix.h"
#include "tiers/storage/slot_header.h"

namespace kvtier {
namespace {

constexpr const char* kLockName = "lock";
// How long the lock is waited for while its holder lives: it may be about to end.
constexpr auto kHolderPatience = std::chrono::milliseconds(500);
// How long the locks of a process that has ended are waited for. The lock of a data file lasts
// until the kernel has ended the last I/O: seconds as a rule, more on a machine that is short of
// disk or processor. It is less than systemd's start time-out of 120 s, so that the error is told.
constexpr auto kLastIoPatience = std::chrono::seconds(90);
constexpr auto kLockPoll = std::chrono::milliseconds(1);
constexpr mode_t kPrivateDirectory = 0700;
constexpr mode_t kPrivateFile = 0600;

tl::unexpected<Error> Failed(std::string_view call, const std::filesystem::path& path) {
  return tl::unexpected<Error>(
      ErrnoError(ErrorCode::kIoError, errno, fmt::format("{} {}", call, path.native())));
}

// The number that the holder wrote into its lock file; 0 if that is no process's.
pid_t HolderOf(int lock) {
  std::array<char, 16> text{};
  const ssize_t count = ::pread(lock, text.data(), text.size(), 0);
  pid_t pid = 0;
  const auto end = text.data() + std::max<ssize_t>(count, 0);
  if (std::from_chars(text.data(), end, pid).ec != std::errc()) return 0;
  return std::max<pid_t>(pid, 0);
}

std::string NameOfHolder(pid_t pid) {
  return pid == 0 ? "an unknown process" : fmt::format("process {}", pid);
}

Status CheckOwner(const struct stat& status, const std::filesystem::path& path) {
  if (status.st_uid == ::geteuid()) return {};
  return MakeError(ErrorCode::kPermissionDenied, "directory_owner",
                   fmt::format("{} belongs to uid {}, this process runs as uid {}", path.native(),
                               status.st_uid, ::geteuid()));
}

// False if another open file has the lock of the file `path` at `until`, or until `is_enough` says
// so of the time waited.
template <typename IsEnough>
Result<bool> WaitForLock(int fd, const std::filesystem::path& path,
                         std::chrono::steady_clock::time_point until, IsEnough is_enough) {
  const auto start = std::chrono::steady_clock::now();
  while (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return Failed("flock", path);
    const auto now = std::chrono::steady_clock::now();
    if (now >= until || is_enough(now - start)) return false;
    std::this_thread::sleep_for(kLockPoll);
  }
  return true;
}

// The file is not removed on unlock: a second daemon might lock the removed file while a third
// creates and locks a new one. O_NOFOLLOW, because the number overwrites the file's contents.
Status TakeLock(DiskDirectory* directory, const std::filesystem::path& path,
                std::chrono::steady_clock::time_point until) {
  const int flags = O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW;
  UniqueFd fd(::openat(directory->fd.get(), kLockName, flags, kPrivateFile));
  if (!fd.valid()) return Failed("open", path / kLockName);
  const auto is_enough = [&](std::chrono::nanoseconds waited) {
    return waited >= kHolderPatience && !IsGone(HolderOf(fd.get()));
  };
  KVT_ASSIGN_OR_RETURN(const bool locked,
                       WaitForLock(fd.get(), path / kLockName, until, is_enough));
  const pid_t holder = HolderOf(fd.get());
  if (!locked && IsGone(holder)) {
    // An error of I/O, because it passes by itself: the service is started again.
    return MakeError(ErrorCode::kIoError, "last_io_under_way",
                     fmt::format("process {}, which used {}, has ended, but the kernel is still "
                                 "busy with its last disk I/O, for which a start waits {} s",
                                 holder, path.native(), kLastIoPatience.count()));
  }
  if (!locked) {
    return MakeError(ErrorCode::kAlreadyExists, "directory_locked",
                     fmt::format("{} is in use by {}; one daemon to a directory", path.native(),
                                 NameOfHolder(holder)));
  }
  const std::string pid = fmt::format("{}\n", ::getpid());
  // Written over the old number and then cut: a full file system has no room for a new block.
  if (::pwrite(fd.get(), pid.data(), pid.size(), 0) != static_cast<ssize_t>(pid.size()) ||
      ::ftruncate(fd.get(), static_cast<off_t>(pid.size())) != 0) {
    return Failed("write", path / kLockName);
  }
  directory->lock = DirectoryLock(std::move(fd));
  return {};
}

}  // namespace

DirectoryLock& DirectoryLock::operator=(DirectoryLock&& other) noexcept {
  Unlock();
  fd_ = std::move(other.fd_);
  return *this;
}

DirectoryLock::~DirectoryLock() { Unlock(); }

// Closing would not do while a child that is about to become another program has the open file.
void DirectoryLock::Unlock() {
  if (fd_.valid()) ::flock(fd_.get(), LOCK_UN);
  fd_.Reset();
}

std::chrono::steady_clock::time_point LastIoDeadline() {
  return std::chrono::steady_clock::now() + kLastIoPatience;
}

Result<DiskDirectory> OpenDiskDirectory(const std::filesystem::path& path, bool create,
                                        std::chrono::steady_clock::time_point until) {
  if (create && ::mkdir(path.c_str(), kPrivateDirectory) != 0 && errno != EEXIST) {
    return Failed("mkdir", path);
  }
  DiskDirectory directory;
  directory.fd = UniqueFd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  struct stat status {};
  if (!directory.fd.valid()) {
    // Closed to us, it most likely belongs to another user, which is the better error.
    const int open_errno = errno;
    if (open_errno == EACCES && ::stat(path.c_str(), &status) == 0) {
      KVT_RETURN_IF_ERROR(CheckOwner(status, path));
    }
    errno = open_errno;
    return Failed("open", path);
  }
  if (::fstat(directory.fd.get(), &status) != 0) return Failed("fstat", path);
  KVT_RETURN_IF_ERROR(CheckOwner(status, path));
  // The files below are made from the prompts of all tenants, so that no other user may read them.
  const mode_t mode = status.st_mode & 07777;
  if ((mode & 077) != 0) {
    if (::fchmod(directory.fd.get(), kPrivateDirectory) != 0) return Failed("chmod", path);
    directory.note =
        fmt::format("{} was open to others (mode {:04o}); it is 0700 now", path.native(), mode);
  }
  KVT_RETURN_IF_ERROR(TakeLock(&directory, path, until));
  return directory;
}

Result<bool> LookAtDiskDirectory(const std::filesystem::path& path, bool create) {
  struct stat status {};
  const bool there = ::stat(path.c_str(), &status) == 0;
  if (!there && (errno != ENOENT || !create)) return Failed("open", path);
  // Also where the path ends with a slash.
  const auto into = there ? path : (path / "").parent_path().parent_path();
  if (there && ::geteuid() != 0) KVT_RETURN_IF_ERROR(CheckOwner(status, path));
  if (::access((into / ".").c_str(), W_OK | X_OK) != 0) return Failed("write into", into);
  return there && status.st_uid == ::geteuid();
}

// A lock of flock(2) belongs to the open file, which the kernel lets go of when the last descriptor
// is closed and the last request that uses it has ended. So whatever is read or written through
// `fd`, by either engine, holds the lock exactly as long as it can still arrive. No io_uring may
// have registered the file: a ring keeps such files until it has unpinned all memory that it knows,
// which for tens of GiB takes up to a second after the last request.
Status LockDataFile(int fd, const std::filesystem::path& path,
                    std::chrono::steady_clock::time_point until) {
  const auto until_the_end = [](std::chrono::nanoseconds) { return false; };
  KVT_ASSIGN_OR_RETURN(const bool locked, WaitForLock(fd, path, until, until_the_end));
  if (locked) return {};
  return MakeError(ErrorCode::kIoError, "last_io_under_way",
                   fmt::format("the process that used {} has ended, but the kernel is still busy "
                               "with its last disk I/O, for which a start waits {} s",
                               path.native(), kLastIoPatience.count()));
}

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMarkName = "index.epoch";
constexpr std::string_view kDistrustName = "distrusted";
constexpr size_t kMaxMarkBytes = 32;  // twenty digits and a newline
constexpr size_t kSumDigits = 16;     // of a line's xxh3-64

tl::unexpected<Error> MarkFailed(const char* what, const fs::path& path) {
  return MakeError(ErrorCode::kIoError, "epoch_mark",
                   ErrnoError(ErrorCode::kIoError, errno, what + (" " + path.native())).context);
}

Status SyncDirectory(const fs::path& directory) {
  const UniqueFd fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid() || ::fsync(fd.get()) != 0) return MarkFailed("sync", directory);
  return {};
}

Status RemoveMark(const fs::path& directory, std::string_view name) {
  const fs::path path = directory / name;
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) return MarkFailed("remove", path);
  return SyncDirectory(directory);
}

std::string SumOf(std::string_view line) {
  return fmt::format("{:0{}x}", ChecksumHeader(std::as_bytes(std::span(line))), kSumDigits);
}

// Written beside and renamed, so that a crash leaves the old mark or the new one, never half.
Status WriteText(const fs::path& directory, std::string_view name, const std::string& text) {
  const fs::path path = directory / name;
  const fs::path fresh = path.string() + ".new";
  {
    const UniqueFd fd(
        ::open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!fd.valid()) return MarkFailed("create", fresh);
    if (::write(fd.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
      return MarkFailed("write", fresh);
    }
    if (::fsync(fd.get()) != 0) return MarkFailed("sync", fresh);
  }
  if (::rename(fresh.c_str(), path.c_str()) != 0) return MarkFailed("rename", fresh);
  return SyncDirectory(directory);
}

}  // namespace

Status WriteMark(const fs::path& directory, std::string_view name,
                 const std::vector<std::string>& lines) {
  if (lines.empty()) return RemoveMark(directory, name);
  std::string text;
  for (const std::string& line : lines) text += SumOf(line) + " " + line + "\n";
  return WriteText(directory, name, text);
}

// No line without a checksum has a first field of that length.
size_t ReadMark(const fs::path& directory, std::string_view name,
                const std::function<bool(std::istringstream*)>& take) {
  const fs::path path = directory / name;
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found) return 0;
  std::ifstream file;
  // To open a pipe that no process writes to would wait for ever.
  if (fs::is_regular_file(status)) file.open(path);
  size_t damaged = file.is_open() ? 0 : 1;
  for (std::string line; std::getline(file, line);) {
    const bool summed = line.find(' ') == kSumDigits;
    const std::string text = summed ? line.substr(kSumDigits + 1) : line;
    std::istringstream fields(text);
    damaged += (summed && line.compare(0, kSumDigits, SumOf(text)) != 0) || !take(&fields);
  }
  // The disk failed.
  return damaged + (file.bad() ? 1 : 0);
}

// A mark that cannot be read or parsed counts as the highest epoch: any index then looks stale and
// is rebuilt from the headers, which takes longer but trusts nothing that may be old.
uint64_t EpochMark::Read(const fs::path& directory) {
  const UniqueFd fd(
      ::open((directory / kMarkName).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!fd.valid()) return errno == ENOENT ? 0 : UINT64_MAX;
  std::array<char, kMaxMarkBytes> text;
  const ssize_t bytes = ::read(fd.get(), text.data(), text.size());
  if (bytes < 2 || text[static_cast<size_t>(bytes) - 1] != '\n') return UINT64_MAX;
  uint64_t epoch = 0;
  const char* const end = text.data() + bytes - 1;
  const auto parsed = std::from_chars(text.data(), end, epoch);
  return parsed.ec == std::errc() && parsed.ptr == end ? epoch : UINT64_MAX;
}

Status EpochMark::Write(const fs::path& directory, uint64_t epoch) {
  return WriteText(directory, kMarkName, std::to_string(epoch) + "\n");
}

Status EpochMark::Remove(const fs::path& directory) { return RemoveMark(directory, kMarkName); }

size_t DistrustMark::AddTo(std::vector<NamespaceIdentity>* distrusted, const fs::path& directory) {
  return ReadMark(directory, kDistrustName, [distrusted](std::istringstream* fields) {
    NamespaceIdentity identity;
    std::string model;
    *fields >> model >> identity.block_bytes;
    if (fields->get() != ' ' || !std::getline(*fields, identity.tenant)) return false;
    const auto fingerprint = ModelFingerprint::FromHex(model);
    if (!fingerprint || identity.tenant.size() > kMaxTenantBytes) return false;
    if (identity.block_bytes == 0 || identity.block_bytes > kMaxPayloadBytes) return false;
    identity.model = *fingerprint;
    distrusted->push_back(std::move(identity));
    return true;
  });
}

Status DistrustMark::Write(const fs::path& directory,
                           const std::vector<NamespaceIdentity>& distrusted) {
  std::vector<std::string> lines;
  for (const NamespaceIdentity& one : distrusted) {
    lines.push_back(fmt::format("{} {} {}", one.model.Hex(), one.block_bytes, one.tenant));
  }
  return WriteMark(directory, kDistrustName, lines);
}

}  // namespace kvtier
