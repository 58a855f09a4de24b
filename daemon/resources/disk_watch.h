// SPDX-License-Identifier: Apache-2.0
// Notices that the disk tier's directory or data files are deleted while the daemon runs. It reads
// and writes them through descriptors, which go on working: without this, blocks would be called
// durable that end with the process.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/executor.h"
#include "base/gate.h"

namespace kvtier {

// Event loop only.
class DiskWatch {
 public:
  using OnGone = std::function<void(const std::filesystem::path&)>;
  // How long a deletion may stay unnoticed, but for the time that the file system takes to answer.
  static constexpr int64_t kLookEveryMs = 30 * 1000;

  // Asks the file system, which may block: before the loop runs. Later looks are work of
  // `executor`. `on_gone` is called from an event, once, with the first path that names another
  // file by now, or none. `clock` and `executor` are borrowed.
  DiskWatch(std::vector<std::filesystem::path> paths, const Clock* clock, Executor* executor,
            OnGone on_gone);

  // To be called every few seconds, or more often.
  void Tick();
  // Looks now. `done` is called from an event, as is `on_gone` before it if that was not yet.
  void Look(std::function<void(std::optional<std::filesystem::path>)> done);

 private:
  // A file of a file system; nothing if there is none. After an error of another kind nothing is
  // known, and the file counts as there.
  struct Identity {
    uint64_t device = 0;
    uint64_t inode = 0;
    friend bool operator==(const Identity&, const Identity&) = default;
  };
  struct Watched {
    std::filesystem::path path;
    Identity identity;
  };
  // Any thread.
  [[nodiscard]] static std::optional<std::filesystem::path> FirstGone(
      const std::vector<Watched>& watched);

  const Clock& clock_;
  Executor& executor_;
  OnGone on_gone_;  // empty: it was called, or there is nothing to watch
  std::vector<Watched> watched_;
  int64_t look_at_ms_ = 0;
  bool looking_ = false;
  Gate gate_;
};

}  // namespace kvtier
