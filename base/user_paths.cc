// SPDX-License-Identifier: Apache-2.0
#include "base/user_paths.h"

#include <fmt/format.h>
#include <pwd.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "base/posix.h"

namespace kvtier {
namespace {

// Empty if it is not set. A program with more rights than its caller must not be led by the
// caller's environment.
std::string Variable(const char* name) {
  const char* const value = ::secure_getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

std::string TemporaryUserDirectory() {
  std::string temporary = Variable("TMPDIR");
  if (!temporary.starts_with('/')) temporary = "/tmp";
  return fmt::format("{}/kvtier-{}", temporary, ::geteuid());
}

// Empty unless the variable names a directory of this user's: after `su` or in a container it may
// name another user's, or one that is not there.
std::string RuntimeUserDirectory() {
  const std::string runtime = Variable("XDG_RUNTIME_DIR");
  struct stat facts {};
  if (!runtime.starts_with('/') || ::stat(runtime.c_str(), &facts) != 0) return {};
  if (!S_ISDIR(facts.st_mode) || facts.st_uid != ::geteuid()) return {};
  return runtime + "/kvtier";
}

}  // namespace

std::string UserDiskDirectory() {
  std::string cache = Variable("XDG_CACHE_HOME");
  if (!cache.starts_with('/')) {
    std::string home = Variable("HOME");
    const passwd* const user = home.starts_with('/') ? nullptr : ::getpwuid(::geteuid());
    if (user != nullptr) home = user->pw_dir;
    if (!home.starts_with('/')) return {};
    cache = home + "/.cache";
  }
  return cache + "/kvtier/disk";
}

std::string UserSocketDirectory() {
  const std::string runtime = RuntimeUserDirectory();
  return runtime.empty() ? TemporaryUserDirectory() : runtime;
}

std::string WhyNotPrivate(const std::string& directory) {
  struct stat facts {};
  if (::lstat(directory.c_str(), &facts) != 0) {
    return fmt::format("{}: {}", directory, ::strerrordesc_np(errno));
  }
  if (S_ISLNK(facts.st_mode)) return directory + " is a symbolic link";
  if (!S_ISDIR(facts.st_mode)) return directory + " is no directory";
  if (facts.st_uid != ::geteuid()) {
    return fmt::format("{} belongs to user {}, not to {}", directory, facts.st_uid, ::geteuid());
  }
  if ((facts.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return fmt::format("{} can be written by other users", directory);
  }
  return {};
}

Result<std::string> MakeUserSocketDirectory() {
  const std::string directory = UserSocketDirectory();
  if (::mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) {
    return tl::unexpected(
        ErrnoError(ErrorCode::kIoError, errno,
                   "making " + directory + " ($XDG_RUNTIME_DIR or $TMPDIR names another place)"));
  }
  if (const std::string why = WhyNotPrivate(directory); !why.empty()) {
    return MakeError(ErrorCode::kPermissionDenied, "socket_directory_owner", why);
  }
  return directory;
}

std::string WhyNotTrusted(const std::string& path) {
  struct stat facts {};
  if (::lstat(path.c_str(), &facts) != 0) return {};
  if (std::string why = WhyNotPrivate(std::filesystem::path(path).parent_path()); !why.empty()) {
    return why;
  }
  if (!S_ISSOCK(facts.st_mode)) return path + " is no socket";
  if (facts.st_uid == ::geteuid()) return {};
  return fmt::format("{} belongs to user {}, not to {}", path, facts.st_uid, ::geteuid());
}

std::string FindSocket() {
  if (std::string named = Variable(kSocketVariable); !named.empty()) return named;
  // Both directories are tried: the daemon may have been started in a session whose XDG_RUNTIME_DIR
  // differs.
  for (const std::string& directory : {RuntimeUserDirectory(), TemporaryUserDirectory()}) {
    if (directory.empty()) continue;
    std::string socket = fmt::format("{}/{}", directory, kSocketName);
    if (::access(socket.c_str(), F_OK) == 0 && WhyNotTrusted(socket).empty()) return socket;
  }
  return std::string(kSystemSocket);
}

std::string AdminSocketBeside(std::string_view socket) {
  return std::filesystem::path(socket).parent_path() / kAdminSocketName;
}

}  // namespace kvtier
