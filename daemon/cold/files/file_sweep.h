// SPDX-License-Identifier: Apache-2.0
// Removes files past their end, those beyond a bound, and those that a killed writer left.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "daemon/cold/files/file_system.h"
#include "daemon/cold/files/file_tree.h"

namespace kvtier {

// Any host may sweep at any time, several at once, and each may be killed: nothing is remembered
// but the time of the last sweep, as that of a file. Blocks; for one thread.
class FileSweep {
 public:
  // `pause` waits after each part of a sweep; it returns false to end it.
  using Pause = std::function<bool()>;
  // All are borrowed but `pause`. `max_bytes` 0: no bound.
  FileSweep(const std::string* root, FileSystem* files, uint64_t max_bytes, Pause pause)
      : root_(files, *root), files_(*files), max_bytes_(max_bytes), pause_(std::move(pause)) {}

  // Whether none of the hosts has begun a sweep in the last minutes; if so, says that this one
  // does.
  [[nodiscard]] bool Begin(int64_t now_s);
  // Failures end it: a later one goes on.
  void Run(int64_t now_s);

  static constexpr int64_t kEveryS = 600;
  // A file being written is not older than this.
  static constexpr int64_t kMaxTemporaryAgeS = 3600;

 private:
  [[nodiscard]] bool MustGo(const char* name, const struct stat& found);
  // REQUIRES: MustGo has counted the file.
  [[nodiscard]] bool IsExcess(const char* name, const struct stat& found);
  // Whether it came to the end.
  [[nodiscard]] bool Pass();

  RootDirectory root_;
  FileSystem& files_;
  const uint64_t max_bytes_;
  const Pause pause_;
  int64_t now_s_ = 0;
  uint64_t seen_ = 0;
  std::map<int64_t, uint64_t> bytes_;  // that end in each period
  int64_t last_period_ = 0;            // those before it are removed as a whole
  uint64_t excess_bytes_ = 0;          // still to be removed of the last one
};

}  // namespace kvtier
