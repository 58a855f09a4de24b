// SPDX-License-Identifier: Apache-2.0
// Removes files past their end, those beyond a bound, those that a killed writer left, and empty
// directories.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "daemon/cold/files/file_system.h"
#include "daemon/cold/files/file_tree.h"

namespace kvtier {

// Any host may sweep, one at a time, and each may be killed: nothing is remembered but the time of
// the last sweep, as that of a file, which the host that sweeps sets again and again. Blocks; for
// one thread.
class FileSweep {
 public:
  // `pause` waits after each part of a sweep; it returns false to end it.
  using Pause = std::function<bool()>;
  // This host's Unix time in seconds, which is only compared with the file system's.
  using Now = std::function<int64_t()>;
  // `root` and `files` are borrowed. `max_bytes` 0: no bound.
  FileSweep(const std::string* root, FileSystem* files, uint64_t max_bytes, Pause pause, Now now)
      : root_(files, *root),
        files_(*files),
        max_bytes_(max_bytes),
        pause_(std::move(pause)),
        now_(std::move(now)) {}

  // To be called each minute: sweeps if none of the hosts has done so in the last minutes. Another
  // host that takes over ends a sweep: a later one goes on. Whatever cannot be read or removed is
  // left out. Tells an operator why, once for each first reason.
  [[nodiscard]] std::optional<std::string> Look();

  static constexpr int64_t kEveryS = 600;
  // A file being written is not older than this, nor a directory that was made for it.
  static constexpr int64_t kMaxTemporaryAgeS = 3600;
  // Files and directories between two pauses.
  static constexpr uint64_t kEntriesOfPart = 256;

 private:
  // Whether it is this host's turn. If so, says that it sweeps.
  [[nodiscard]] bool Begin();
  void Run();
  // Counts an entry, and pauses after each part of a sweep: whether the sweep goes on.
  [[nodiscard]] bool CountEntry() { return ++seen_ % kEntriesOfPart != 0 || GoOn(); }
  [[nodiscard]] bool GoOn();
  // Whether no other host has taken over.
  [[nodiscard]] bool RenewStamp();
  // The time in the stamp, which is made if there is none. The answer may be a negative errno.
  [[nodiscard]] int ReadStamp(int directory, int64_t* time_s);
  // The file system's time. The answer may be a negative errno, also if this host has another time.
  [[nodiscard]] int AskTime(int directory, int64_t* now_s);
  [[nodiscard]] bool MustGo(const char* name, const struct stat& found);
  // REQUIRES: MustGo has counted the file.
  [[nodiscard]] bool IsExcess(const char* name, const struct stat& found);
  // Whether it came to the end.
  [[nodiscard]] bool Pass();
  // Tell the pass how an entry fared.
  [[nodiscard]] FileTree::Step VisitFile(int directory, const char* name, const struct stat& found);
  [[nodiscard]] FileTree::Step VisitEmptied(int directory, const char* name,
                                            const struct stat& found);
  // `flags` as those of FileSystem::Unlink.
  [[nodiscard]] FileTree::Step Remove(int directory, const char* name, int flags);
  // `attempt` failed at `path`.
  void Fail(std::string_view attempt, const std::string& path, int error);

  RootDirectory root_;
  FileSystem& files_;
  const uint64_t max_bytes_;
  const Pause pause_;
  const Now now_;
  std::optional<int64_t> last_stamp_;  // of the last look
  int64_t now_s_ = 0;                  // in a sweep, the file system's; the stamp has it, too
  int64_t renewed_at_s_ = 0;           // by this host's clock
  uint64_t seen_ = 0;
  std::map<int64_t, uint64_t> bytes_;  // that end in each period
  int64_t last_period_ = 0;            // those before it are removed as a whole
  uint64_t excess_bytes_ = 0;          // still to be removed of the last one
  bool removes_excess_ = false;        // in the second pass
  std::string failure_;                // the first of this look
  bool has_others_ = false;            // of failures
  std::string told_;                   // that of the last look that has one or has swept
};

}  // namespace kvtier
