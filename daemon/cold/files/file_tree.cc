// SPDX-License-Identifier: Apache-2.0
#include "daemon/cold/files/file_tree.h"

#include <dirent.h>

#include <algorithm>
#include <memory>

namespace kvtier {
namespace {

constexpr size_t kMostPartBytes = 240;
constexpr size_t kBucketBytes = 2;

bool IsPlain(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
         std::string_view("-_.%").find(c) != std::string_view::npos;
}

// A tenant may have the name "..".
bool AddPart(std::string_view part, std::vector<std::string>* parts) {
  if (part.empty() || part.size() > kMostPartBytes || !std::ranges::all_of(part, IsPlain)) {
    return false;
  }
  parts->emplace_back(part);
  if (part.front() == '.') parts->back().replace(0, 1, "%2E");
  return true;
}

}  // namespace

std::optional<FilePlace> FilePlace::OfPrefix(std::string_view prefix) {
  FilePlace place;
  if (prefix.empty()) return std::nullopt;
  for (size_t end = prefix.find('/'); !prefix.empty(); end = prefix.find('/')) {
    if (end == std::string_view::npos) return std::nullopt;
    if (!AddPart(prefix.substr(0, end), &place.directories)) return std::nullopt;
    prefix.remove_prefix(end + 1);
  }
  return place;
}

std::optional<FilePlace> FilePlace::Of(std::string_view name) {
  const size_t slash = name.rfind('/');
  if (slash == std::string_view::npos) return std::nullopt;
  std::optional<FilePlace> place = OfPrefix(name.substr(0, slash + 1));
  std::vector<std::string> last;
  if (!place || !AddPart(name.substr(slash + 1), &last)) return std::nullopt;
  place->file = last.front();
  place->directories.push_back(place->file.substr(0, kBucketBytes));
  return place;
}

int FilePath::Enter(const std::vector<std::string>& directories, bool create) {
  if (parts_.empty()) {
    const int root = files_.OpenRoot(root_.c_str());
    if (root < 0) return root == -ENOENT ? kNoRoot : root;
    parts_.push_back({.name = {}, .directory = UniqueFd(root)});
  }
  for (size_t i = 0; i < directories.size(); ++i) {
    const std::string& name = directories[i];
    if (i + 1 < parts_.size() && parts_[i + 1].name == name) continue;
    parts_.resize(i + 1);
    const int parent = parts_.back().directory.get();
    constexpr int kFlags = O_PATH | O_DIRECTORY;
    int opened = files_.Open(parent, name.c_str(), kFlags);
    if (opened == -ENOENT && create) {
      const int made = files_.MakeDirectory(parent, name.c_str());
      if (made < 0 && made != -EEXIST) return made;
      opened = files_.Open(parent, name.c_str(), kFlags);
    }
    if (opened < 0) return opened;
    parts_.push_back({.name = name, .directory = UniqueFd(opened)});
  }
  return parts_[directories.size()].directory.get();
}

int FileTree::WalkBelow(int parent, const char* name, int depth) {
  UniqueFd opened(files_.Open(parent, name, O_RDONLY | O_DIRECTORY));
  if (!opened.valid()) return opened.get();
  const std::unique_ptr<DIR, int (*)(DIR*)> stream(::fdopendir(opened.get()), ::closedir);
  if (!stream) return -errno;
  const int directory = opened.Release();
  for (;;) {
    errno = 0;
    const dirent* const entry = ::readdir(stream.get());
    if (entry == nullptr) return errno == 0 ? 1 : -errno;
    const std::string_view found = entry->d_name;
    if (found == "." || found == "..") continue;
    const int walked = WalkEntry(directory, entry->d_name, depth);
    if (walked != 1) return walked;
  }
}

// Types in directories' entries are not told by each file system. An entry that has gone meanwhile
// is no error.
int FileTree::WalkEntry(int directory, const char* name, int depth) {
  struct stat found {};
  const int told = files_.Stat(directory, name, &found);
  if (told < 0) return told == -ENOENT ? 1 : told;
  if (!S_ISDIR(found.st_mode)) return visit_(directory, name, found) ? 1 : 0;
  if (depth == 0) return 1;
  const int walked = WalkBelow(directory, name, depth - 1);
  if (walked == 1 && prune_) (void)files_.Unlink(directory, name, AT_REMOVEDIR);
  return walked == -ENOENT ? 1 : walked;
}

}  // namespace kvtier
