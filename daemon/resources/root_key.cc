// SPDX-License-Identifier: Apache-2.0
#include "daemon/resources/root_key.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <span>
#include <utility>

#include "base/posix.h"

namespace kvtier {
namespace {

tl::unexpected<Error> Failed(const char* what, const std::string& path) {
  return tl::unexpected<Error>(ErrnoError(ErrorCode::kIoError, errno, what + (" " + path)));
}

// Directory and mode of a credential are systemd's matter: it may let the user in by an access
// list, which shows as a group's mode.
Status CheckFile(int fd, const std::string& path, bool is_credential) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) return Failed("fstat", path);
  if (!S_ISREG(status.st_mode)) {
    return MakeError(ErrorCode::kInvalidArgument, "root_key_size", path + " is no file");
  }
  if (is_credential) return {};
  if ((status.st_uid != ::geteuid() && status.st_uid != 0) || (status.st_mode & 077) != 0) {
    return MakeError(ErrorCode::kPermissionDenied, "root_key_open",
                     fmt::format("{} has mode {:04o} and belongs to user {}: it must be this "
                                 "user's or root's, with mode 0400 or 0600",
                                 path, status.st_mode & 07777, status.st_uid));
  }
  return {};
}

}  // namespace

Result<RootKey> LoadRootKey(const std::string& where) {
  const bool is_credential = where.find('/') == std::string::npos;
  std::string path = where;
  if (is_credential) {
    const char* const directory = std::getenv("CREDENTIALS_DIRECTORY");
    if (directory == nullptr) {
      return MakeError(ErrorCode::kNotFound, "no_credentials",
                       where + " names one of systemd's credentials, but there are none");
    }
    path = std::filesystem::path(directory) / where;
  }
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) {
    Error error = ErrnoError(ErrorCode::kPermissionDenied, errno, "open " + path);
    error.reason = "root_key_open";
    return tl::unexpected(std::move(error));
  }
  KVT_RETURN_IF_ERROR(CheckFile(fd.get(), path, is_credential));
  std::array<std::byte, kGcmKeyBytes + 1> bytes{};
  const ssize_t read = ::read(fd.get(), bytes.data(), bytes.size());
  if (read < 0) return Failed("read", path);
  if (read != kGcmKeyBytes) {
    WipeBytes(bytes);
    return MakeError(ErrorCode::kInvalidArgument, "root_key_size",
                     fmt::format("{} must have {} bytes", path, kGcmKeyBytes));
  }
  RootKey key(std::span<const std::byte>(bytes).first<kGcmKeyBytes>());
  WipeBytes(bytes);
  return key;
}

Result<RootKeys> LoadRootKeys(const DiskConfig& disk) {
  KVT_ASSIGN_OR_RETURN(RootKey root, LoadRootKey(disk.root_key));
  RootKeys keys{.root = std::move(root), .previous = {}};
  if (disk.previous_root_key.empty()) return keys;
  Result<RootKey> previous = LoadRootKey(disk.previous_root_key);
  if (!previous) {
    previous.error().reason = "previous_root_key";
    return tl::unexpected<Error>(std::move(previous).error());
  }
  keys.previous.emplace(*std::move(previous));
  return keys;
}

}  // namespace kvtier
