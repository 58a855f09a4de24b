// SPDX-License-Identifier: Apache-2.0
// The best that raw io_uring reads of the disk tier's own file reach.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/units.h"

namespace kvtier {

// One thread at a time; touches nothing but the file.
class DiskCeiling {
 public:
  // For the daemon whose disk tier lies in `disk_directory` and holds two sets of `blocks` slots of
  // `slot_bytes`. Reads land in `memory_bytes`: as many as the host tier has, or 0 for the few
  // buffers of the queue, again and again. (A disk that is a program, as in many virtual machines,
  // copies into the latter faster: they stay in the processor's caches.) Errors: kNotFound when
  // there is no data file.
  [[nodiscard]] static Result<DiskCeiling> Find(const std::string& disk_directory,
                                                uint64_t slot_bytes, uint64_t blocks,
                                                uint64_t memory_bytes);

  // Reads as many bytes as a set has, once with each depth of the queue; the two sets' stretches
  // take turns. Errors: those of ReadWithIoUring.
  [[nodiscard]] Status Measure();

  struct Best {
    uint64_t queue_bytes = 0;
    std::vector<double> seconds;  // of each Measure, in order
  };
  // The depth with the best median. REQUIRES: measured at least once.
  [[nodiscard]] Best best() const;

 private:
  static constexpr std::array<uint64_t, 4> kQueueBytes = {8 * kMiB, 16 * kMiB, 32 * kMiB,
                                                          64 * kMiB};

  DiskCeiling(std::string path, uint64_t slot_bytes, uint64_t blocks, uint64_t memory_bytes)
      : path_(std::move(path)),
        slot_bytes_(slot_bytes),
        blocks_(blocks),
        memory_bytes_(memory_bytes) {}

  std::string path_;
  uint64_t slot_bytes_;
  uint64_t blocks_;
  uint64_t memory_bytes_;
  std::array<std::vector<double>, kQueueBytes.size()> seconds_;
};

}  // namespace kvtier
