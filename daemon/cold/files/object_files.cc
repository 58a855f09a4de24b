// SPDX-License-Identifier: Apache-2.0
#include "daemon/cold/files/object_files.h"

#include <sys/random.h>

#include <array>
#include <ctime>
#include <optional>
#include <utility>

#include "base/posix.h"

namespace kvtier {
namespace {

// Files and directories removed by one call.
constexpr size_t kRemovedAtOnce = 256;
// Walks over a tenant's files to which other hosts go on writing.
constexpr uint64_t kMostWalks = 3;
// Something else than a file stands in an object's place.
constexpr int kForeign = -EMEDIUMTYPE;

bool IsForeign(int answer) {
  return answer == kForeign || answer == -ELOOP || answer == -ENOTDIR || answer == -EISDIR ||
         answer == -ENXIO;
}

int StatusOf(int answer) {
  switch (-answer) {
    case ENOENT:
      return KVT_COLD_ABSENT;
    case ENODEV:
    case EIO:
    case ESTALE:
    case ENOTCONN:
    case ECONNABORTED:
    case ECONNREFUSED:
    case ECONNRESET:
    case EHOSTDOWN:
    case EHOSTUNREACH:
    case ESHUTDOWN:
    case ETIMEDOUT:
      return KVT_COLD_UNAVAILABLE;
    case EMFILE:
    case ENFILE:
    case ENOMEM:
      return KVT_COLD_BUSY;
    default:
      return KVT_COLD_REFUSED;
  }
}

// A handle is stale when another host has replaced a directory or the server has restarted: by
// names all is found again.
template <typename Try>
int AgainIfStale(FilePath* path, const Try& once) {
  const int answer = once();
  if (answer != -ESTALE) return answer;
  path->Forget();
  return once();
}

// No two processes have the same one, whatever hosts and containers are called.
std::string MakeWriter() {
  std::array<char, 64> host{};
  (void)::gethostname(host.data(), host.size() - 1);
  uint64_t random = 0;
  (void)::getrandom(&random, sizeof(random), 0);
  return std::string(host.data()) + '.' + std::to_string(::getpid()) + '.' +
         std::to_string(random) + '.';
}

int CheckObject(const struct stat& found) {
  if (!S_ISREG(found.st_mode)) return kForeign;
  return found.st_mtime <= std::time(nullptr) ? -ENOENT : 0;
}

}  // namespace

FileOutcome FileOutcome::Of(int answer) {
  if (answer >= 0) return {};
  const char* const text = ::strerrordesc_np(-answer);
  std::string reason = ErrnoName(-answer) + ": " + (text == nullptr ? "" : text);
  if (answer == kNoRoot) reason = "ENODEV: the directory is not there";
  if (IsForeign(answer)) reason = ErrnoName(-answer) + ": a foreign file stands there";
  return {.status = StatusOf(answer), .text = std::move(reason)};
}

ObjectFiles::ObjectFiles(std::string root, std::shared_ptr<FileSystem> files)
    : files_(std::move(files)), root_(files_.get(), std::move(root)), writer_(MakeWriter()) {}

// The attributes come with the name, so that a server is asked once.
int ObjectFiles::FindIn(const FilePlace& place, FilePath* path) {
  const UniqueFd file(path->Open(place.path(), O_PATH));
  if (!file.valid()) return file.get();
  struct stat found {};
  const int told = files_->Stat(file.get(), "", &found);
  return told < 0 ? told : CheckObject(found);
}

// Foreign files are absent here, and tell their kind when they are read or written.
FileOutcome ObjectFiles::Find(const std::string& name, FilePath* path) {
  const std::optional<FilePlace> place = FilePlace::Of(name);
  if (!place) return FileOutcome::Of(-ENOENT);
  const int found = AgainIfStale(path, [&] { return FindIn(*place, path); });
  return FileOutcome::Of(IsForeign(found) ? -ENOENT : found);
}

int ObjectFiles::Read(const FilePlace& place, FilePath* path, std::span<std::byte> into,
                      uint64_t* bytes) {
  const int opened = path->Open(place.path(), O_RDONLY);
  if (opened < 0) return opened;
  const UniqueFd file(opened);
  struct stat found {};
  if (const int told = files_->Stat(opened, "", &found); told < 0) return told;
  if (const int checked = CheckObject(found); checked < 0) return checked;
  // A file that is as long as it should be needs no second read to find its end.
  const bool is_expected = static_cast<uint64_t>(found.st_size) + 1 == into.size();
  const uint64_t most = is_expected ? into.size() - 1 : into.size();
  for (*bytes = 0; *bytes < most;) {
    const ssize_t read = files_->Read(opened, into.subspan(*bytes), static_cast<off_t>(*bytes));
    if (read == -EINTR) continue;
    if (read < 0) return static_cast<int>(read);
    if (read == 0) break;
    *bytes += static_cast<uint64_t>(read);
  }
  return 0;
}

FileOutcome ObjectFiles::Get(const std::string& name, std::span<std::byte> into) {
  const std::optional<FilePlace> place = FilePlace::Of(name);
  if (!place) return FileOutcome::Of(-EINVAL);
  FilePath path = MakePath();
  uint64_t bytes = 0;
  FileOutcome outcome =
      FileOutcome::Of(AgainIfStale(&path, [&] { return Read(*place, &path, into, &bytes); }));
  outcome.bytes = bytes;
  outcome.root = path.root();
  return outcome;
}

// The time is set when all bytes have arrived, so that a late write does not change it.
int ObjectFiles::WriteTemporary(int directory, const char* name, std::span<const std::byte> bytes,
                                int64_t ttl_s) {
  const int file = files_->Open(directory, name, O_WRONLY | O_CREAT | O_EXCL);
  if (file < 0) return file;
  int failed = 0;
  for (size_t done = 0; done < bytes.size() && failed == 0;) {
    const ssize_t written = files_->Write(file, bytes.subspan(done), static_cast<off_t>(done));
    if (written > 0) done += static_cast<size_t>(written);
    if (written == 0) failed = -ENOSPC;
    if (written < 0 && written != -EINTR) failed = static_cast<int>(written);
  }
  const int closed = files_->Close(file);
  if (failed < 0 || closed < 0) return failed < 0 ? failed : closed;
  return files_->SetTime(directory, name, std::time(nullptr) + ttl_s);
}

// Not synced: a file that a power failure leaves short or empty is a miss.
int ObjectFiles::Write(const FilePlace& place, FilePath* path, std::span<const std::byte> bytes,
                       int64_t ttl_s) {
  const int directory = path->Enter(place.directory, true);
  if (directory < 0) return directory;
  const std::string temporary =
      std::string(kTemporaryPrefix) + writer_ + std::to_string(next_temporary_++);
  int failed = WriteTemporary(directory, temporary.c_str(), bytes, ttl_s);
  if (failed >= 0) failed = files_->Rename(directory, temporary.c_str(), place.file.c_str());
  if (failed < 0) (void)files_->Unlink(directory, temporary.c_str(), 0);
  return failed;
}

// An erasure, or a sweep, may remove the directory just before the file is made.
FileOutcome ObjectFiles::Put(const std::string& name, std::span<const std::byte> bytes,
                             int64_t ttl_s) {
  const std::optional<FilePlace> place = FilePlace::Of(name);
  if (!place) return FileOutcome::Of(-EINVAL);
  FilePath path = MakePath();
  int written = AgainIfStale(&path, [&] { return Write(*place, &path, bytes, ttl_s); });
  if (written == -ENOENT) {
    path.Forget();
    written = Write(*place, &path, bytes, ttl_s);
  }
  FileOutcome outcome = FileOutcome::Of(written);
  outcome.root = path.root();
  return outcome;
}

int ObjectFiles::RemoveOne(const FilePlace& place, FilePath* path) {
  const int directory = path->Enter(place.directory, false);
  return directory < 0 ? directory : files_->Unlink(directory, place.file.c_str(), 0);
}

FileOutcome ObjectFiles::Remove(const std::vector<std::string>& names) {
  FilePath path = MakePath();
  for (const std::string& name : names) {
    const std::optional<FilePlace> place = FilePlace::Of(name);
    if (!place) continue;
    const int removed = AgainIfStale(&path, [&] { return RemoveOne(*place, &path); });
    if (removed < 0 && removed != -ENOENT) return FileOutcome::Of(removed);
  }
  return {};
}

void ObjectFiles::RemoveIfEmpty(const FilePlace& place, FilePath* path) {
  const size_t slash = place.directory.rfind('/');
  if (slash == std::string::npos) return;
  const std::string name = place.directory.substr(slash + 1);
  const int parent = path->Enter(place.directory.substr(0, slash), false);
  if (parent >= 0) (void)files_->Unlink(parent, name.c_str(), AT_REMOVEDIR);
}

// A walk beside deletions may miss files on some servers, so the last one is to find none. The
// cursor is one more than the walks that have ended.
FileOutcome ObjectFiles::RemoveSome(const std::string& prefix, uint64_t cursor) {
  const std::optional<FilePlace> place = FilePlace::OfPrefix(prefix);
  if (!place) return FileOutcome::Of(-EINVAL);
  FilePath path = MakePath();
  size_t removed = 0;
  int failed = 0;
  const auto count = [&removed] {
    return ++removed < kRemovedAtOnce ? FileTree::Step::kGone : FileTree::Step::kEnd;
  };
  const auto remove = [&](int directory, const char* name, const struct stat&) {
    const int answer = files_->Unlink(directory, name, 0);
    if (answer < 0 && answer != -ENOENT) failed = answer;
    return failed == 0 ? count() : FileTree::Step::kEnd;
  };
  // A writer may have come to it.
  const auto prune = [&](int directory, const char* name, const struct stat&) {
    const int answer = files_->Unlink(directory, name, AT_REMOVEDIR);
    return answer < 0 ? FileTree::Step::kKept : count();
  };
  FileTree tree(files_.get(), {.file = remove, .emptied = prune, .skip = nullptr});
  int walked = AgainIfStale(&path, [&] {
    const int directory = path.Enter(place->directory, false);
    return directory < 0 ? directory : tree.Walk(directory);
  });
  if (failed < 0) walked = failed;
  if (walked == -ENOENT) walked = 1;
  FileOutcome outcome = FileOutcome::Of(walked);
  if (walked < 0) return outcome;
  const uint64_t walks = (cursor == 0 ? 0 : cursor - 1) + static_cast<uint64_t>(walked);
  const bool ended = walked == 1 && (removed == 0 || walks >= kMostWalks);
  const uint64_t next = ended ? 0 : walks + 1;
  if (ended) RemoveIfEmpty(*place, &path);
  outcome.text.assign(reinterpret_cast<const char*>(&next), sizeof(next));
  return outcome;
}

}  // namespace kvtier
