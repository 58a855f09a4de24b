// SPDX-License-Identifier: Apache-2.0
#include "daemon/cold/files/file_tree.h"

#include <dirent.h>

#include <algorithm>
#include <memory>
#include <utility>

namespace kvtier {
namespace {

constexpr size_t kMostPartBytes = 240;
constexpr size_t kBucketBytes = 2;

bool IsPlain(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
         std::string_view("-_.%").find(c) != std::string_view::npos;
}

// A tenant may have the name "..".
bool AddPart(std::string_view part, std::string* path) {
  if (part.empty() || part.size() > kMostPartBytes || !std::ranges::all_of(part, IsPlain)) {
    return false;
  }
  if (!path->empty()) *path += '/';
  if (part.front() == '.') *path += "%2E";
  *path += part.front() == '.' ? part.substr(1) : part;
  return true;
}

}  // namespace

std::optional<FilePlace> FilePlace::OfPrefix(std::string_view prefix) {
  FilePlace place;
  if (prefix.empty()) return std::nullopt;
  for (size_t end = prefix.find('/'); !prefix.empty(); end = prefix.find('/')) {
    if (end == std::string_view::npos) return std::nullopt;
    if (!AddPart(prefix.substr(0, end), &place.directory)) return std::nullopt;
    prefix.remove_prefix(end + 1);
  }
  return place;
}

std::optional<FilePlace> FilePlace::Of(std::string_view name) {
  const size_t slash = name.rfind('/');
  if (slash == std::string_view::npos) return std::nullopt;
  std::optional<FilePlace> place = OfPrefix(name.substr(0, slash + 1));
  if (!place || !AddPart(name.substr(slash + 1), &place->file)) return std::nullopt;
  place->directory += '/' + place->file.substr(0, kBucketBytes);
  return place;
}

// The file system is asked without the lock: it may hang.
RootDirectory::Descriptor RootDirectory::Open(bool anew) {
  using std::chrono::steady_clock;
  constexpr std::chrono::seconds kMostAge{1};
  const auto now = steady_clock::now();
  // If this is the last to have it, the system closes it without the lock, which may take long.
  Descriptor shared;
  if (!anew) {
    const std::lock_guard lock(mutex_);
    shared = shared_.lock();
    if (shared && now - opened_ < kMostAge) return shared;
  }
  auto opened = std::make_shared<const UniqueFd>(files_.OpenRoot(path_.c_str()));
  if (!opened->valid()) return opened;
  const std::lock_guard lock(mutex_);
  shared_ = opened;
  opened_ = now;
  return opened;
}

int FilePath::Open(const std::string& path, int flags) {
  if (!top_) {
    RootDirectory::Descriptor top = root_.Open(std::exchange(is_anew_, false));
    if (!top->valid()) return top->get() == -ENOENT ? kNoRoot : top->get();
    top_ = std::move(top);
  }
  return files_.Open(top_->get(), path.c_str(), flags);
}

int FilePath::Enter(const std::string& directory, bool create) {
  constexpr int kFlags = O_PATH | O_DIRECTORY;
  int opened = Open(directory, kFlags);
  if (opened == -ENOENT && create) {
    const int made = MakeAll(directory);
    if (made < 0) return made;
    opened = Open(directory, kFlags);
  }
  directory_ = UniqueFd(opened);
  return opened;
}

// Each from its parent's descriptor, so that none is made behind a link.
int FilePath::MakeAll(std::string_view directory) {
  UniqueFd parent;
  while (!directory.empty()) {
    const std::string part(directory.substr(0, directory.find('/')));
    directory.remove_prefix(std::min(part.size() + 1, directory.size()));
    const int at = parent.valid() ? parent.get() : top_->get();
    const int made = files_.MakeDirectory(at, part.c_str());
    if (made < 0 && made != -EEXIST) return made;
    const int opened = files_.Open(at, part.c_str(), O_PATH | O_DIRECTORY);
    if (opened < 0) return opened;
    parent = UniqueFd(opened);
  }
  return 0;
}

int FileTree::Walk(int directory) {
  failure_ = 0;
  int error = 0;
  const Step walked = WalkBelow(directory, ".", kMostDepth, &error);
  if (error < 0) return error;
  return walked == Step::kEnd ? failure_ : 1;
}

FileTree::Step FileTree::WalkBelow(int parent, const char* name, int depth, int* error) {
  UniqueFd opened(files_.Open(parent, name, O_RDONLY | O_DIRECTORY));
  *error = opened.valid() ? 0 : opened.get();
  if (*error < 0) return Step::kKept;
  const std::unique_ptr<DIR, int (*)(DIR*)> stream(::fdopendir(opened.get()), ::closedir);
  if (!stream) *error = -errno;
  if (*error < 0) return Step::kKept;
  const int directory = opened.Release();
  for (Step left = Step::kGone;;) {
    errno = 0;
    const dirent* const entry = ::readdir(stream.get());
    if (entry == nullptr) {
      *error = -errno;
      return left;
    }
    const std::string_view found = entry->d_name;
    if (found == "." || found == "..") continue;
    const Step walked = WalkEntry(directory, entry->d_name, depth);
    if (walked == Step::kEnd) return walked;
    if (walked == Step::kKept) left = walked;
  }
}

// Types in directories' entries are not told by each file system.
FileTree::Step FileTree::WalkEntry(int directory, const char* name, int depth) {
  struct stat found {};
  int error = files_.Stat(directory, name, &found);
  if (error < 0) return GoOnWithout(directory, name, error);
  if (!S_ISDIR(found.st_mode)) return visitor_.file(directory, name, found);
  if (depth == 0) return Step::kKept;
  const Step walked = WalkBelow(directory, name, depth - 1, &error);
  if (error < 0) return GoOnWithout(directory, name, error);
  return walked == Step::kGone ? visitor_.emptied(directory, name, found) : walked;
}

// An entry that has gone meanwhile is no error.
FileTree::Step FileTree::GoOnWithout(int directory, const char* name, int error) {
  if (error == -ENOENT) return Step::kGone;
  if (visitor_.skip) return visitor_.skip(directory, name, error) ? Step::kKept : Step::kEnd;
  failure_ = error;
  return Step::kEnd;
}

}  // namespace kvtier
