// SPDX-License-Identifier: Apache-2.0
// Many blocking reads of the disk files at once, for start-up and offline tools, which have no
// event loop; and, by such reads, the comparison of many payloads with their checksums.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <vector>

#include "base/digest.h"
#include "base/posix.h"
#include "base/result.h"
#include "tiers/storage/disk_geometry.h"

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

struct PayloadToCheck {
  DiskLocation slot;
  uint64_t payload_bytes = 0;
  PayloadChecksum checksum;
};

// Calls `visit` once for each payload, in order. Blocks. Statuses: kCorrupt "payload_checksum"; the
// reader's.
void CheckPayloads(const DiskGeometry& geometry, const DiskReadFunction& read,
                   const std::vector<PayloadToCheck>& payloads,
                   const std::function<void(const PayloadToCheck&, const Status&)>& visit);

}  // namespace kvtier
