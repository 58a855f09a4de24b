// SPDX-License-Identifier: Apache-2.0
// Many blocking reads of the disk files at once, for start-up, which has no event loop.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <vector>

#include "base/posix.h"
#include "base/result.h"

namespace kvtier {

// One of many. Offset, size and address of `into` are aligned for direct I/O.
struct DiskRead {
  uint32_t file = 0;
  uint64_t offset = 0;
  std::span<std::byte> into;
  Status status;  // set by the reader
};

// Carries out all reads, in any order; returns when all are done.
using DiskReadFunction = std::function<void(std::span<DiskRead>)>;

// Move-only. Reads do not depend on the calling thread, but one call at a time.
class ParallelReader {
 public:
  static constexpr int kDefaultThreads = 16;

  // The file in each of the directories, in their order. Errors: those of DiskSetFile::Open.
  [[nodiscard]] static Result<ParallelReader> Open(
      const std::vector<std::filesystem::path>& directories, int threads = kDefaultThreads);

  // Statuses: kIoError with the errno's name or "short_io"; kInvalidArgument "no_such_file".
  void Read(std::span<DiskRead> reads) const;

 private:
  ParallelReader(std::vector<UniqueFd> files, int threads)
      : files_(std::move(files)), threads_(threads) {}
  [[nodiscard]] Status ReadOne(const DiskRead& read) const;

  std::vector<UniqueFd> files_;
  int threads_;
};

}  // namespace kvtier
