// SPDX-License-Identifier: Apache-2.0
// Which of many objects are there: one thread asks for what a search asks for, one file after the
// other, and others help where the file system answers slowly.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "daemon/cold/files/object_files.h"
#include "daemon/cold/prefix_search.h"

namespace kvtier {

// Any thread. A file system of which nothing is found is asked once, a fast one by one thread, and
// a slow one that has the first object by many at a time, which give way to other tenants'
// questions. The first object of a prefix that was not answered for ends it.
class FileQuestion {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // At `end` a prefix is told as far as it is known, if its first object was answered for, and a
  // question for each object fails.
  FileQuestion(std::shared_ptr<ObjectFiles> objects, std::vector<std::string> names, bool each,
               Time end);

  [[nodiscard]] Time end() const { return end_; }
  // Each thread enters before it is to ask, and leaves when it has asked or could not.
  void Enter(size_t threads);
  // Asks until nothing is left to be asked for, or some milliseconds have passed and `others_wait`:
  // then the rest is left to another thread. `call_help` lets so many more threads do the same.
  void Ask(const std::function<void(size_t threads)>& call_help,
           const std::function<bool()>& others_wait);
  // The last thread that leaves ends a question that is not answered, because others could not ask:
  // with as much of a prefix as is known, or with the failure of one.
  void Leave(const FileOutcome& outcome);
  // Something once, as soon as the answer is known or the end has been passed.
  [[nodiscard]] std::optional<FileOutcome> TakeEnd();

 private:
  [[nodiscard]] std::optional<size_t> TakeNext();
  [[nodiscard]] bool IsLeft();
  // Returns how many threads are to help.
  [[nodiscard]] size_t Answer(size_t position, const FileOutcome& outcome, bool is_slow);
  // REQUIRES, both: `mutex_` is held.
  void Fail(const FileOutcome& outcome);
  [[nodiscard]] bool HasEnded();

  const std::shared_ptr<ObjectFiles> objects_;
  const std::vector<std::string> names_;
  const bool each_;
  const Time end_;
  std::mutex mutex_;  // guards what follows
  PrefixSearch search_;
  FileOutcome failure_;
  FileOutcome refusal_;       // of a thread that could not ask
  size_t inside_ = 0;         // threads
  bool is_answered_ = false;  // once at least
  bool has_help_ = false;
  bool has_ended_ = false;
  bool is_told_ = false;
};

}  // namespace kvtier
