// SPDX-License-Identifier: Apache-2.0
// Looks now and then whether the disk tier that a start had to do without can be had by now. A tier
// cannot join a cache that runs, so that the daemon has to be started again to use it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <utility>

#include "base/executor.h"
#include "base/gate.h"
#include "base/result.h"
#include "daemon/config/config.h"
#include "daemon/runtime/event_loop.h"

namespace kvtier {

// Whether a start that failed so may succeed later without an operator's doing: there was no room,
// or the file system was not there, could not be written to or failed.
[[nodiscard]] bool DiskMayComeBack(const Error& why);

// Any thread; may wait for the disk. In one directory at least a file can be written, and beside
// the floor there is room for a slab, in free space or in the tier's own file. Errors: by
// errno name; kResourceExhausted "disk_full".
[[nodiscard]] Status ProbeDisk(const DiskConfig& disk, uint64_t slab_bytes);

// A probe asks for less than a start does, so that one may succeed on a disk that no start can
// have. The daemon must not end every few seconds for it: a note, a file that outlives the process,
// says how long a start without its disk is to wait before the first probe. All may wait for the
// file system.
class RetryNote {
 public:
  static constexpr int64_t kFirstPauseMs = 5'000;
  explicit RetryNote(std::filesystem::path path) : path_(std::move(path)) {}
  // The first pause, unless a start that a probe had asked for went without its disk again.
  [[nodiscard]] int64_t PauseMs() const;
  // The daemon is to be started again: if that is in vain, the pause is four times as long, up to a
  // day. Errors: by errno name.
  [[nodiscard]] Status WriteNextPause() const;
  // A start has its disk.
  void Remove() const;

 private:
  const std::filesystem::path path_;
};

// Event loop only.
class DiskRetry {
 public:
  // `loop` and `executor` are borrowed. `probe` runs on the executor; `on_back` is called once,
  // when it has succeeded. Pauses between probes double from `pause_ms` on, to a minute at most.
  DiskRetry(EventLoop* loop, Executor* executor, std::function<Status()> probe,
            std::function<void()> on_back, int64_t pause_ms);
  DiskRetry(const DiskRetry&) = delete;
  DiskRetry& operator=(const DiskRetry&) = delete;

 private:
  static constexpr int64_t kLongestPauseMs = 60'000;
  void Wait();
  void Probe();

  Executor& executor_;
  const std::function<Status()> probe_;
  const std::function<void()> on_back_;
  int64_t pause_ms_;
  Timer timer_;
  Gate gate_;
};

}  // namespace kvtier
