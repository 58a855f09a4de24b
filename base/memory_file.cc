// SPDX-License-Identifier: Apache-2.0
#include "base/memory_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>

namespace kvtier {
namespace {

constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;

tl::unexpected<Error> Failed(const char* call, const char* name, uint64_t bytes) {
  const int error = errno;
  const ErrorCode code = error == ENOSYS ? ErrorCode::kUnsupported : ErrorCode::kResourceExhausted;
  return tl::unexpected<Error>(
      ErrnoError(code, error, fmt::format("{} for {}, {} bytes of memory", call, name, bytes)));
}

}  // namespace

Result<UniqueFd> MakeMemoryFile(const char* name, uint64_t bytes) {
  UniqueFd fd(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return Failed("memfd_create", name, bytes);
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0)
    return Failed("ftruncate", name, bytes);
  if (::fcntl(fd.get(), F_ADD_SEALS, kSizeSeals | F_SEAL_SEAL) != 0) {
    return Failed("sealing", name, bytes);
  }
  return fd;
}

std::optional<std::string> MemoryFileRefusal(int fd, uint64_t bytes) {
  // Asked first: only memory files have an answer, and any other file's system may keep fstat
  // waiting for as long as it likes.
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & kSizeSeals) != kSizeSeals) return "not_sealed";
  struct stat info = {};
  if (::fstat(fd, &info) != 0) return ErrnoName(errno);
  if (static_cast<uint64_t>(info.st_size) != bytes) return "size_changed";
  return std::nullopt;
}

uint64_t FileBytes(int fd) {
  struct stat info = {};
  return ::fstat(fd, &info) == 0 ? static_cast<uint64_t>(info.st_size) : 0;
}

uint64_t FileNumber(int fd) {
  struct stat info = {};
  return ::fstat(fd, &info) == 0 ? static_cast<uint64_t>(info.st_ino) : 0;
}

Digest128 ReadBootId() {
  std::string text;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> text;
  std::erase(text, '-');
  return Digest128::FromHex(text).value_or(Digest128{});
}

}  // namespace kvtier
