// SPDX-License-Identifier: Apache-2.0
// The store of files as cold_backend.h has it: calls that return at once, and a sweep now and then.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "daemon/cold/cold_backend.h"
#include "daemon/cold/files/call_threads.h"
#include "daemon/cold/files/file_system.h"
#include "daemon/cold/files/object_files.h"
#include "daemon/cold/files/question_clock.h"

namespace kvtier {

// For one thread. Questions, reads and writes have threads each, so that a short one does not stand
// behind a long one.
class FilesStore {
 public:
  // `root` is an absolute path. `max_bytes` bounds all hosts' files, 0: no bound.
  FilesStore(std::string root, uint64_t max_bytes, std::shared_ptr<FileSystem> files,
             kvt_cold_done done, void* context);

  void Exists(uint64_t number, std::vector<std::string> names, bool each, int64_t timeout_ms);
  void Get(uint64_t number, std::string name, void* into, uint64_t bytes, int64_t timeout_ms);
  void Put(uint64_t number, std::string name, const void* data, size_t bytes, int64_t ttl_s,
           int64_t timeout_ms);
  void Remove(uint64_t number, std::vector<std::string> names, int64_t timeout_ms);
  void RemoveSome(uint64_t number, std::string prefix, uint64_t cursor, int64_t timeout_ms);
  // Lets calls begin that were made before.
  void Send();
  // As `close` of the table.
  [[nodiscard]] bool Stop();

 private:
  using Teller = std::function<void(const FileOutcome&, bool more)>;
  struct Ending;
  // Threads, and the calls for them until the next Send.
  struct Lane {
    explicit Lane(const CallThreads::Limits& limits) : threads(limits) {}
    CallThreads threads;
    std::vector<FileCall> next;
  };
  [[nodiscard]] Teller TellerOf(uint64_t number) const;
  void Start(Lane* lane, uint64_t number, int64_t timeout_ms, std::function<FileOutcome()> work,
             std::string_view tenant = {});
  void StartSweeps(uint64_t max_bytes, std::shared_ptr<FileSystem> files, std::string root);

  const kvt_cold_done done_;
  void* const context_;
  const std::shared_ptr<ObjectFiles> objects_;
  const std::shared_ptr<Ending> ending_;
  const std::shared_ptr<CallThreads> questions_;  // threads of a question add others
  QuestionClock clock_;                           // of questions for prefixes
  Lane reads_;
  Lane writes_;
  std::map<std::string, std::weak_ptr<const void>> puts_;  // under way, by name; others have ended
  CallThreads sweeps_;
};

}  // namespace kvtier
