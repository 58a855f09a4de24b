// SPDX-License-Identifier: Apache-2.0
// Directories of the store of files: how an object's is reached, and how all below one is walked.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/posix.h"
#include "daemon/cold/files/file_system.h"

namespace kvtier {

// Names of files being written begin so, which no object's name does.
inline constexpr std::string_view kTemporaryPrefix = ".tmp.";
// The answer if the store's own directory is not there, as when it is not mounted.
inline constexpr int kNoRoot = -ENODEV;

// An object's file: "A/B/HASH" lies in A/B/HA, so that no directory has more than some thousands.
struct FilePlace {
  std::string directory;
  std::string file;

  // Nothing for a name that cannot be one: an empty part, a long one, or a byte that is none of
  // letters, digits and "-_.%". A part's first dot becomes "%2E".
  [[nodiscard]] static std::optional<FilePlace> Of(std::string_view name);
  // "A/B/": the directory alone.
  [[nodiscard]] static std::optional<FilePlace> OfPrefix(std::string_view prefix);
  [[nodiscard]] std::string path() const { return directory + '/' + file; }
};

// The store's own directory. Calls that overlap share one descriptor, because to find it anew is a
// tenth of a read from the page cache. None stays open once all calls were told, so that the
// directory can be unmounted, and none is handed out for long, so that another one in its place is
// seen. Any thread.
class RootDirectory {
 public:
  using Descriptor = std::shared_ptr<const UniqueFd>;

  // `files` is borrowed.
  RootDirectory(FileSystem* files, std::string path) : files_(*files), path_(std::move(path)) {}

  // Its descriptor, opened now if it has to be `anew`; one that is not valid has a negative errno.
  [[nodiscard]] Descriptor Open(bool anew);

 private:
  FileSystem& files_;
  const std::string path_;
  std::mutex mutex_;  // guards what follows
  std::weak_ptr<const UniqueFd> shared_;
  std::chrono::steady_clock::time_point opened_;
};

// The way from the store's own directory to others. For one call, on its thread; the descriptors
// end with it.
class FilePath {
 public:
  // Both are borrowed.
  FilePath(FileSystem* files, RootDirectory* root) : files_(*files), root_(*root) {}

  // A descriptor as FileSystem::Open opens it, which is the caller's, or a negative errno.
  [[nodiscard]] int Open(const std::string& path, int flags);
  // A descriptor of the directory, which is borrowed until the next call, or a negative errno. With
  // `create` those that are not there are made, but for the store's own.
  [[nodiscard]] int Enter(const std::string& directory, bool create);
  // Null before the first call.
  [[nodiscard]] const RootDirectory::Descriptor& root() const { return top_; }
  // All is found again by names.
  void Forget() {
    top_.reset();
    directory_.Reset();
    is_anew_ = true;
  }

 private:
  [[nodiscard]] int MakeAll(std::string_view directory);

  FileSystem& files_;
  RootDirectory& root_;
  RootDirectory::Descriptor top_;
  bool is_anew_ = false;
  UniqueFd directory_;
};

// Walks all that lies below a directory. Files that come or go meanwhile may be met or not.
class FileTree {
 public:
  enum class Step : uint8_t {
    kKept,  // the entry stays
    kGone,  // it was removed
    kEnd,   // the walk ends
  };
  struct Visitor {
    using Visit = std::function<Step(int directory, const char* name, const struct stat& found)>;
    // An entry that is no directory.
    Visit file;
    // A directory of which all entries have gone; `found` is as it was before.
    Visit emptied;
    // An entry that could not be read, in whole or in part; false ends the walk. If it is empty,
    // the first such entry does.
    std::function<bool(int directory, const char* name, int error)> skip;
  };

  FileTree(FileSystem* files, Visitor visitor) : files_(*files), visitor_(std::move(visitor)) {}

  // `directory` is left as it is. The answer: 1 at the end, 0 if the visitor ended it, or the
  // negative errno that did.
  [[nodiscard]] int Walk(int directory);

 private:
  // The store has five.
  static constexpr int kMostDepth = 8;

  // kGone: nothing is left in the directory. `error` is this directory's own.
  [[nodiscard]] Step WalkBelow(int parent, const char* name, int depth, int* error);
  [[nodiscard]] Step WalkEntry(int directory, const char* name, int depth);
  [[nodiscard]] Step GoOnWithout(int directory, const char* name, int error);

  FileSystem& files_;
  const Visitor visitor_;
  int failure_ = 0;  // that ended the walk
};

}  // namespace kvtier
