// SPDX-License-Identifier: Apache-2.0
// kvtier-record-writes STREAM BACKING MOUNTPOINT: a file system that passes everything on to the
// empty directory BACKING and writes down, in STREAM, each request and when it was answered, so
// that any moment can later be looked at as a power loss would have left it. For Linux with FUSE;
// runs until it is unmounted. Exit: 0, or 1 with a message.
//
// A request that changes something is written down twice: when it arrives, with its bytes, and just
// before it is answered, with how much of it failed. A sync therefore promises the requests that
// were answered before the sync arrived, and nothing else. Syncs, and some writes, are answered
// late, since on a disk they take their time and overlap. Nothing is cached: each write() above is
// a write here.
//
// STREAM is a sequence of events, in little-endian integers:
//   kind (1 byte, see Kind) zero (3) request (4) value (8) file (8) bytes (4), and the bytes.
// `file` numbers the files in the order in which they were made; a name is a path from the root.
#define FUSE_USE_VERSION 31
#include <dirent.h>
#include <fcntl.h>
#include <fuse3/fuse.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

namespace kvtier {
namespace {

enum class Kind : char {
  kCreate = 'C',         // file; bytes: its name
  kMakeDirectory = 'M',  // bytes: its name
  kRename = 'R',         // bytes: both names, each with a zero
  kUnlink = 'U',         // bytes: the name
  kRemoveDirectory = 'D',
  kWrite = 'W',          // file; value: the offset
  kTruncate = 'T',       // file; value: the size
  kAllocate = 'A',       // file; value: the size that it has at least
  kSync = 'S',           // file
  kSyncDirectory = 'Y',  // bytes: the name
  kAnswer = 'E',         // of the request; value: bytes at its end that were not written, 1 if it
                         // has none and failed
  kNote = 'N',           // bytes: those written to /.note
};

constexpr std::string_view kNotePath = "/.note";
constexpr uint64_t kNoteFile = 0;
// On an NVMe drive a sync takes about this long; it makes requests overlap.
constexpr uint32_t kSlowestSyncUs = 1500;
constexpr uint32_t kSlowestWriteUs = 400;
constexpr uint32_t kWritesToASlowOne = 4;

struct Event {
  Kind kind;
  std::array<char, 3> zero;
  uint32_t request;
  uint64_t value;
  uint64_t file;
  uint32_t bytes;
} __attribute__((packed));

// The stream and the files' numbers. Threads of FUSE call it at the same time.
class Recorder {
 public:
  Recorder(std::string backing, std::FILE* stream)
      : backing_(std::move(backing)), stream_(stream) {}

  [[nodiscard]] std::string Backing(const char* path) const { return backing_ + path; }

  // Returns the request's number, for Answer.
  uint32_t Note(Kind kind, uint64_t value, uint64_t file, std::string_view bytes) {
    const std::lock_guard lock(stream_mutex_);
    const uint32_t request = next_request_++;
    Append({kind, {}, request, value, file, static_cast<uint32_t>(bytes.size())}, bytes);
    return request;
  }

  void Answer(uint32_t request, uint64_t failed = 0) {
    const std::lock_guard lock(stream_mutex_);
    Append({Kind::kAnswer, {}, request, failed, 0, 0}, {});
  }

  std::mutex& names_mutex() { return names_mutex_; }
  // Held while a name is changed and noted, so that both have one order. REQUIRED of what follows.
  uint64_t NumberOf(const std::string& path) { return numbers_[path]; }
  uint64_t NewNumber(const std::string& path) { return numbers_[path] = ++last_number_; }
  void Forget(const std::string& path) { numbers_.erase(path); }
  void Move(const std::string& from, const std::string& to) {
    std::map<std::string, uint64_t> moved;
    for (auto it = numbers_.begin(); it != numbers_.end();) {
      const bool below = it->first == from || it->first.starts_with(from + "/");
      if (below) moved[to + it->first.substr(from.size())] = it->second;
      it = below ? numbers_.erase(it) : std::next(it);
    }
    for (const auto& [path, number] : moved) numbers_[path] = number;
  }

 private:
  void Append(const Event& event, std::string_view bytes) {
    const bool whole = std::fwrite(&event, sizeof(event), 1, stream_) == 1 &&
                       (bytes.empty() || std::fwrite(bytes.data(), bytes.size(), 1, stream_) == 1);
    if (whole) return;
    std::perror("kvtier-record-writes: the stream");
    std::abort();
  }

  const std::string backing_;
  std::mutex stream_mutex_;
  std::FILE* const stream_;
  uint32_t next_request_ = 1;
  std::mutex names_mutex_;
  std::map<std::string, uint64_t> numbers_;
  uint64_t last_number_ = kNoteFile;
};

struct OpenFile {
  int fd;
  uint64_t number;
};

Recorder& Self() { return *static_cast<Recorder*>(fuse_get_context()->private_data); }

OpenFile& Handle(const fuse_file_info* info) { return *reinterpret_cast<OpenFile*>(info->fh); }

int Outcome(int result) { return result < 0 ? -errno : 0; }

// Without a generator that threads would share.
void Pause(uint32_t slowest_us) {
  static std::atomic<uint32_t> state{1};
  const uint32_t draw = state.fetch_add(0x9E3779B9u) * 0x85EBCA6Bu;
  std::this_thread::sleep_for(std::chrono::microseconds((draw >> 8) % slowest_us));
}

int GetAttributes(const char* path, struct stat* status, fuse_file_info* info) {
  if (info != nullptr && info->fh != 0) return Outcome(::fstat(Handle(info).fd, status));
  return Outcome(::lstat(Self().Backing(path).c_str(), status));
}

int OpenWith(const char* path, int flags, mode_t mode, bool is_new, fuse_file_info* info) {
  Recorder& self = Self();
  // Direct I/O would ask for aligned memory, and appending is made of offsets by the kernel.
  const int fd = ::open(self.Backing(path).c_str(), flags & ~(O_DIRECT | O_APPEND), mode);
  if (fd < 0) return -errno;
  const uint64_t number = is_new ? self.NewNumber(path) : self.NumberOf(path);
  info->fh = reinterpret_cast<uint64_t>(new OpenFile{fd, path == kNotePath ? kNoteFile : number});
  return 0;
}

int Create(const char* path, mode_t mode, fuse_file_info* info) {
  Recorder& self = Self();
  const std::lock_guard lock(self.names_mutex());
  struct stat status {};
  const bool is_new = ::lstat(self.Backing(path).c_str(), &status) != 0;
  const int outcome = OpenWith(path, info->flags | O_CREAT, mode, is_new, info);
  if (outcome == 0 && is_new && path != kNotePath) {
    self.Answer(self.Note(Kind::kCreate, 0, Handle(info).number, path));
  }
  return outcome;
}

int Open(const char* path, fuse_file_info* info) {
  Recorder& self = Self();
  const std::lock_guard lock(self.names_mutex());
  const int outcome = OpenWith(path, info->flags, 0, false, info);
  if (outcome == 0 && (info->flags & O_TRUNC) != 0) {
    self.Answer(self.Note(Kind::kTruncate, 0, Handle(info).number, {}));
  }
  return outcome;
}

int Release(const char*, fuse_file_info* info) {
  ::close(Handle(info).fd);
  delete &Handle(info);
  return 0;
}

int Read(const char*, char* data, size_t bytes, off_t offset, fuse_file_info* info) {
  const ssize_t count = ::pread(Handle(info).fd, data, bytes, offset);
  return count < 0 ? -errno : static_cast<int>(count);
}

int Write(const char*, const char* data, size_t bytes, off_t offset, fuse_file_info* info) {
  const OpenFile& file = Handle(info);
  Recorder& self = Self();
  const std::string_view content(data, bytes);
  if (file.number == kNoteFile) {
    self.Note(Kind::kNote, 0, kNoteFile, content);
    return static_cast<int>(bytes);
  }
  const uint32_t request =
      self.Note(Kind::kWrite, static_cast<uint64_t>(offset), file.number, content);
  const ssize_t count = ::pwrite(file.fd, data, bytes, offset);
  const int error = errno;
  if (request % kWritesToASlowOne == 0) Pause(kSlowestWriteUs);
  self.Answer(request, bytes - static_cast<size_t>(std::max<ssize_t>(count, 0)));
  return count < 0 ? -error : static_cast<int>(count);
}

int Truncate(const char* path, off_t size, fuse_file_info* info) {
  Recorder& self = Self();
  const std::lock_guard lock(self.names_mutex());
  if (path == kNotePath) return 0;
  const uint64_t number = info != nullptr ? Handle(info).number : self.NumberOf(path);
  const uint32_t request = self.Note(Kind::kTruncate, static_cast<uint64_t>(size), number, {});
  const int outcome = Outcome(::truncate(self.Backing(path).c_str(), size));
  self.Answer(request, outcome == 0 ? 0 : 1);
  return outcome;
}

int Allocate(const char*, int mode, off_t offset, off_t bytes, fuse_file_info* info) {
  if ((mode & ~FALLOC_FL_KEEP_SIZE) != 0) return -EOPNOTSUPP;
  const OpenFile& file = Handle(info);
  if (mode != 0) return Outcome(::fallocate(file.fd, mode, offset, bytes));
  const auto size = static_cast<uint64_t>(offset + bytes);
  const uint32_t request = Self().Note(Kind::kAllocate, size, file.number, {});
  const int outcome = Outcome(::fallocate(file.fd, mode, offset, bytes));
  Self().Answer(request, outcome == 0 ? 0 : 1);
  return outcome;
}

// The backing directory needs no sync: the data left after a power loss comes from the stream.
int Sync(const char*, int, fuse_file_info* info) {
  const uint32_t request = Self().Note(Kind::kSync, 0, Handle(info).number, {});
  Pause(kSlowestSyncUs);
  Self().Answer(request);
  return 0;
}

int SyncDirectory(const char* path, int, fuse_file_info*) {
  const uint32_t request = Self().Note(Kind::kSyncDirectory, 0, 0, path);
  Pause(kSlowestSyncUs);
  Self().Answer(request);
  return 0;
}

int MakeDirectory(const char* path, mode_t mode) {
  Recorder& self = Self();
  const std::lock_guard lock(self.names_mutex());
  const int outcome = Outcome(::mkdir(self.Backing(path).c_str(), mode));
  if (outcome == 0) self.Answer(self.Note(Kind::kMakeDirectory, 0, 0, path));
  return outcome;
}

int Remove(const char* path, Kind kind, int (*remove)(const char*)) {
  Recorder& self = Self();
  const std::lock_guard lock(self.names_mutex());
  const int outcome = Outcome(remove(self.Backing(path).c_str()));
  if (outcome != 0) return outcome;
  self.Answer(self.Note(kind, 0, self.NumberOf(path), path));
  self.Forget(path);
  return 0;
}

int Unlink(const char* path) { return Remove(path, Kind::kUnlink, ::unlink); }

int RemoveDirectory(const char* path) { return Remove(path, Kind::kRemoveDirectory, ::rmdir); }

int Rename(const char* from, const char* to, unsigned flags) {
  if (flags != 0) return -EINVAL;
  Recorder& self = Self();
  const std::lock_guard lock(self.names_mutex());
  const int outcome = Outcome(::rename(self.Backing(from).c_str(), self.Backing(to).c_str()));
  if (outcome != 0) return outcome;
  std::string names = std::string(from) + '\0' + to + '\0';
  self.Answer(self.Note(Kind::kRename, 0, self.NumberOf(from), names));
  self.Move(from, to);
  return 0;
}

int ReadDirectory(const char* path, void* buffer, fuse_fill_dir_t fill, off_t, fuse_file_info*,
                  fuse_readdir_flags) {
  DIR* const directory = ::opendir(Self().Backing(path).c_str());
  if (directory == nullptr) return -errno;
  while (const dirent* entry = ::readdir(directory)) {
    if (fill(buffer, entry->d_name, nullptr, 0, static_cast<fuse_fill_dir_flags>(0)) != 0) break;
  }
  ::closedir(directory);
  return 0;
}

int FileSystemStatus(const char*, struct statvfs* status) {
  return Outcome(::statvfs(Self().Backing("/").c_str(), status));
}

int ChangeMode(const char* path, mode_t mode, fuse_file_info*) {
  return Outcome(::chmod(Self().Backing(path).c_str(), mode));
}

int SetTimes(const char* path, const timespec* times, fuse_file_info*) {
  return Outcome(::utimensat(AT_FDCWD, Self().Backing(path).c_str(), times, AT_SYMLINK_NOFOLLOW));
}

fuse_operations Operations() {
  fuse_operations operations{};
  operations.getattr = GetAttributes;
  operations.create = Create;
  operations.open = Open;
  operations.release = Release;
  operations.read = Read;
  operations.write = Write;
  operations.truncate = Truncate;
  operations.fallocate = Allocate;
  operations.fsync = Sync;
  operations.fsyncdir = SyncDirectory;
  operations.mkdir = MakeDirectory;
  operations.unlink = Unlink;
  operations.rmdir = RemoveDirectory;
  operations.rename = Rename;
  operations.readdir = ReadDirectory;
  operations.statfs = FileSystemStatus;
  operations.chmod = ChangeMode;
  operations.utimens = SetTimes;
  return operations;
}

}  // namespace
}  // namespace kvtier

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: kvtier-record-writes STREAM BACKING MOUNTPOINT\n");
    return 1;
  }
  std::FILE* const stream = std::fopen(argv[1], "wb");
  if (stream == nullptr) {
    std::perror(argv[1]);
    return 1;
  }
  kvtier::Recorder recorder(argv[2], stream);
  const fuse_operations operations = kvtier::Operations();
  std::string name = argv[0];
  std::string foreground = "-f";
  std::array<char*, 3> arguments = {name.data(), foreground.data(), argv[3]};
  const int outcome =
      ::fuse_main(static_cast<int>(arguments.size()), arguments.data(), &operations, &recorder);
  return std::fclose(stream) == 0 && outcome == 0 ? 0 : 1;
}
