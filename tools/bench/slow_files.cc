// SPDX-License-Identifier: Apache-2.0
// A directory seen through a file system whose server answers each request after a delay, as a
// server on a network does.
#define FUSE_USE_VERSION FUSE_MAKE_VERSION(3, 12)
#include <dirent.h>
#include <fcntl.h>
#include <fuse3/fuse.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

namespace {

struct Server {
  std::chrono::microseconds delay;
  std::string root;
  double cached_s;  // how long the kernel believes names and attributes
};

constexpr unsigned kThreads = 128;
constexpr unsigned kMostWriteBytes = 1U << 20;

const Server& Self() { return *static_cast<const Server*>(fuse_get_context()->private_data); }

// Each request comes by here once.
std::string At(const char* path) {
  std::this_thread::sleep_for(Self().delay);
  return Self().root + path;
}

template <typename Number>
int Answer(Number result) {
  return result < 0 ? -errno : static_cast<int>(result);
}

int Handle(const fuse_file_info* info) { return static_cast<int>(info->fh); }

int OpenWith(const char* path, int flags, mode_t mode, fuse_file_info* info) {
  const int file = ::open(At(path).c_str(), flags, mode);
  if (file >= 0) info->fh = static_cast<uint64_t>(file);
  return file < 0 ? -errno : 0;
}

int ReadDirectory(const char* path, void* buffer, fuse_fill_dir_t fill, off_t, fuse_file_info*,
                  fuse_readdir_flags) {
  DIR* const directory = ::opendir(At(path).c_str());
  if (directory == nullptr) return -errno;
  while (const dirent* entry = ::readdir(directory)) {
    if (fill(buffer, entry->d_name, nullptr, 0, fuse_fill_dir_flags{}) != 0) break;
  }
  ::closedir(directory);
  return 0;
}

void* Begin(fuse_conn_info* connection, fuse_config* config) {
  connection->max_write = kMostWriteBytes;
  config->entry_timeout = config->attr_timeout = Self().cached_s;
  return fuse_get_context()->private_data;
}

fuse_operations Operations() {
  fuse_operations operations{};
  operations.init = Begin;
  operations.getattr = [](const char* path, struct stat* found, fuse_file_info*) {
    return Answer(::lstat(At(path).c_str(), found));
  };
  operations.open = [](const char* path, fuse_file_info* info) {
    return OpenWith(path, info->flags, 0, info);
  };
  operations.create = [](const char* path, mode_t mode, fuse_file_info* info) {
    return OpenWith(path, info->flags | O_CREAT, mode, info);
  };
  operations.read = [](const char* path, char* data, size_t bytes, off_t at, fuse_file_info* info) {
    (void)At(path);
    return Answer(::pread(Handle(info), data, bytes, at));
  };
  operations.write = [](const char* path, const char* data, size_t bytes, off_t at,
                        fuse_file_info* info) {
    (void)At(path);
    return Answer(::pwrite(Handle(info), data, bytes, at));
  };
  operations.flush = [](const char* path, fuse_file_info*) { return At(path).empty() ? 1 : 0; };
  operations.release = [](const char*, fuse_file_info* info) { return ::close(Handle(info)); };
  operations.mkdir = [](const char* path, mode_t mode) {
    return Answer(::mkdir(At(path).c_str(), mode));
  };
  operations.rmdir = [](const char* path) { return Answer(::rmdir(At(path).c_str())); };
  operations.unlink = [](const char* path) { return Answer(::unlink(At(path).c_str())); };
  operations.rename = [](const char* from, const char* to, unsigned) {
    return Answer(::rename(At(from).c_str(), (Self().root + to).c_str()));
  };
  operations.utimens = [](const char* path, const timespec* times, fuse_file_info*) {
    return Answer(::utimensat(AT_FDCWD, At(path).c_str(), times, AT_SYMLINK_NOFOLLOW));
  };
  operations.truncate = [](const char* path, off_t size, fuse_file_info*) {
    return Answer(::truncate(At(path).c_str(), size));
  };
  operations.readdir = ReadDirectory;
  return operations;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: %s DELAY_US CACHED_S DIRECTORY MOUNTPOINT\n", argv[0]);
    return 2;
  }
  Server self{.delay = std::chrono::microseconds(std::atoi(argv[1])),
              .root = argv[3],
              .cached_s = std::atof(argv[2])};
  std::array<char*, 2> names = {argv[0], nullptr};
  fuse_args arguments = FUSE_ARGS_INIT(1, names.data());
  const fuse_operations operations = Operations();
  fuse* const server = fuse_new(&arguments, &operations, sizeof(operations), &self);
  if (server == nullptr || fuse_mount(server, argv[4]) != 0) return 1;
  (void)fuse_set_signal_handlers(fuse_get_session(server));
  fuse_loop_config* const config = fuse_loop_cfg_create();
  fuse_loop_cfg_set_max_threads(config, kThreads);
  fuse_loop_cfg_set_idle_threads(config, kThreads);
  const int ended = fuse_loop_mt(server, config);
  fuse_unmount(server);
  return ended < 0 ? 1 : 0;
}
