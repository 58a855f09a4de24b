// SPDX-License-Identifier: Apache-2.0
// The calls of the system that the store of files makes, so that tests can let them fail and hang.
#pragma once

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <span>

namespace kvtier {

// As the calls of the system, but for a negative errno as the answer of one that fails. Names are
// relative to a directory, and no symbolic link is followed. Any thread.
class FileSystem {
 public:
  virtual ~FileSystem() = default;

  // The directory that the operator has named; links on the way to it are the operator's.
  [[nodiscard]] virtual int OpenRoot(const char* path) {
    return Answer(::open(path, O_PATH | O_DIRECTORY | O_CLOEXEC));
  }
  // `path` may go through directories, of which none is a symbolic link. Waits for no other end of
  // a FIFO.
  [[nodiscard]] virtual int Open(int directory, const char* path, int flags) {
    flags |= O_NOFOLLOW | O_CLOEXEC;
    if ((flags & O_PATH) == 0) flags |= O_NONBLOCK | O_NOCTTY;
    open_how how{};
    how.flags = static_cast<unsigned>(flags);
    how.mode = (flags & O_CREAT) != 0 ? 0660 : 0;
    how.resolve = RESOLVE_NO_SYMLINKS | RESOLVE_BENEATH;
    return Answer(static_cast<int>(::syscall(SYS_openat2, directory, path, &how, sizeof(how))));
  }
  [[nodiscard]] virtual int MakeDirectory(int directory, const char* name) {
    return Answer(::mkdirat(directory, name, 0770));
  }
  // Kind, size and time of modification alone, since some file systems ask their servers for the
  // time of access anew. An empty name: of the descriptor itself.
  [[nodiscard]] virtual int Stat(int directory, const char* name, struct stat* found) {
    constexpr unsigned kMask = STATX_TYPE | STATX_SIZE | STATX_MTIME;
    struct statx told {};
    const int answer = ::statx(directory, name, AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH, kMask, &told);
    found->st_mode = told.stx_mode;
    found->st_size = static_cast<off_t>(told.stx_size);
    found->st_mtime = told.stx_mtime.tv_sec;
    return Answer(answer);
  }
  [[nodiscard]] virtual ssize_t Read(int file, std::span<std::byte> into, off_t offset) {
    return Answer(::pread(file, into.data(), into.size(), offset));
  }
  [[nodiscard]] virtual ssize_t Write(int file, std::span<const std::byte> bytes, off_t offset) {
    return Answer(::pwrite(file, bytes.data(), bytes.size(), offset));
  }
  // Network file systems tell here that they are full.
  [[nodiscard]] virtual int Close(int file) { return Answer(::close(file)); }
  // Sets the time of modification, and that of access to a later one: a mount with `relatime` then
  // keeps both. Else each read would write the inode of a file whose end lies in the future.
  [[nodiscard]] virtual int SetTime(int directory, const char* name, time_t time_s) {
    const timespec times[] = {{.tv_sec = time_s + 1}, {.tv_sec = time_s}};
    return Answer(::utimensat(directory, name, times, AT_SYMLINK_NOFOLLOW));
  }
  // Sets both times to the present as the file system knows it: of a network's, its server's clock.
  [[nodiscard]] virtual int Touch(int file) { return Answer(::futimens(file, nullptr)); }
  [[nodiscard]] virtual int Rename(int directory, const char* from, const char* to) {
    return Answer(::renameat(directory, from, directory, to));
  }
  // `flags`: AT_REMOVEDIR or 0.
  [[nodiscard]] virtual int Unlink(int directory, const char* name, int flags) {
    return Answer(::unlinkat(directory, name, flags));
  }

 private:
  template <typename Number>
  [[nodiscard]] static Number Answer(Number answer) {
    return answer < 0 ? static_cast<Number>(-errno) : answer;
  }
};

}  // namespace kvtier
