// SPDX-License-Identifier: Apache-2.0
// Objects as files below a directory that hosts share. Each call waits for the file system.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "daemon/cold/cold_backend.h"
#include "daemon/cold/files/file_system.h"
#include "daemon/cold/files/file_tree.h"

namespace kvtier {

// How a call ended.
struct FileOutcome {
  int status = KVT_COLD_OK;
  std::string text;  // the call's data; of an error, the reason
  uint64_t bytes = 0;
  RootDirectory::Descriptor root;  // lets calls share it until this one is told

  // KVT_COLD_ABSENT: nothing is there. KVT_COLD_REFUSED: full, read-only, not permitted, or a
  // foreign file in the place. KVT_COLD_UNAVAILABLE: the file system itself fails.
  [[nodiscard]] static FileOutcome Of(int answer);
};

// A file's time of modification is its object's end, in Unix time, so that each host can tell it
// from the file alone; a file past its end is absent. A file is written beside its place and
// renamed, so that no reader meets half of one, and no host waits for another. Any thread.
class ObjectFiles {
 public:
  // `files` is shared with calls that hang. Names of this object's temporary files are its own on
  // all hosts.
  ObjectFiles(std::string root, std::shared_ptr<FileSystem> files);

  [[nodiscard]] FilePath MakePath() { return {files_.get(), &root_}; }
  // Ends with KVT_COLD_OK or KVT_COLD_ABSENT. `path` serves many of a thread's calls.
  [[nodiscard]] FileOutcome Find(const std::string& name, FilePath* path);
  [[nodiscard]] FileOutcome Get(const std::string& name, std::span<std::byte> into);
  [[nodiscard]] FileOutcome Put(const std::string& name, std::span<const std::byte> bytes,
                                int64_t ttl_s);
  [[nodiscard]] FileOutcome Remove(const std::vector<std::string>& names);
  [[nodiscard]] FileOutcome RemoveSome(const std::string& prefix, uint64_t cursor);

 private:
  [[nodiscard]] int FindIn(const FilePlace& place, FilePath* path);
  [[nodiscard]] int Read(const FilePlace& place, FilePath* path, std::span<std::byte> into,
                         uint64_t* bytes);
  [[nodiscard]] int Write(const FilePlace& place, FilePath* path, std::span<const std::byte> bytes,
                          int64_t ttl_s);
  [[nodiscard]] int WriteTemporary(int directory, const char* name,
                                   std::span<const std::byte> bytes, int64_t ttl_s);
  [[nodiscard]] int RemoveOne(const FilePlace& place, FilePath* path);
  void RemoveIfEmpty(const FilePlace& place, FilePath* path);

  const std::shared_ptr<FileSystem> files_;
  RootDirectory root_;
  const std::string writer_;
  std::atomic<uint64_t> next_temporary_ = 0;
};

}  // namespace kvtier
