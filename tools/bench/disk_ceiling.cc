// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/disk_ceiling.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "base/result.h"
#include "tools/bench/bench.h"
#include "tools/bench/ceiling.h"

namespace kvtier {

Result<DiskCeiling> DiskCeiling::Find(const std::string& disk_directory, uint64_t slot_bytes,
                                      uint64_t blocks, uint64_t memory_bytes) {
  std::string largest;
  uint64_t largest_bytes = 0;
  std::error_code error;
  // The daemon runs: files of its index may vanish at any moment.
  for (std::filesystem::recursive_directory_iterator entry(disk_directory, error), end;
       !error && entry != end; entry.increment(error)) {
    std::error_code vanished;
    const bool is_file = entry->is_regular_file(vanished);
    const uint64_t bytes = entry->file_size(vanished);
    if (!is_file || vanished || bytes <= largest_bytes) continue;
    largest = entry->path();
    largest_bytes = bytes;
  }
  if (largest.empty()) return MakeError(ErrorCode::kNotFound, "no_data_file", disk_directory);
  return DiskCeiling(std::move(largest), slot_bytes, blocks, memory_bytes);
}

Status DiskCeiling::Measure() {
  const uint64_t turn = seconds_.front().size();
  for (size_t i = 0; i < kQueueBytes.size(); ++i) {
    // Each depth comes first in its turn, so that none profits from its place.
    const size_t depth = (i + turn) % kQueueBytes.size();
    const ReadWork work{.path = path_,
                        .offset = turn % 2 == 0 ? 0 : blocks_ * slot_bytes_,
                        .request_bytes = slot_bytes_,
                        .requests = blocks_,
                        .queue_bytes = kQueueBytes[depth],
                        .memory_bytes = memory_bytes_};
    KVT_ASSIGN_OR_RETURN(const double seconds, ReadWithIoUring(work));
    seconds_[depth].push_back(seconds);
  }
  return {};
}

DiskCeiling::Best DiskCeiling::best() const {
  KVT_CHECK(!seconds_.front().empty());
  const auto least = std::ranges::min_element(
      seconds_, {}, [](const std::vector<double>& seconds) { return Median(seconds); });
  return {kQueueBytes[static_cast<size_t>(least - seconds_.begin())], *least};
}

}  // namespace kvtier
