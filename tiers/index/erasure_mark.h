// SPDX-License-Identifier: Apache-2.0
// Names, on each drive, the erasures that have begun, for an index that is rebuilt: no header tells
// them, and the drive with the index may be away when one begins.
#pragma once

#include <filesystem>
#include <vector>

#include "base/result.h"
#include "tiers/index/index.h"

namespace kvtier {

// As DistrustMark.
class ErasureMark {
 public:
  // Adds those of the directory to `erasures`, but for the ones that are there, under new numbers.
  // Returns how many lines are damaged, and lost.
  [[nodiscard]] static size_t AddTo(std::vector<ErasureRecord>* erasures,
                                    const std::filesystem::path& directory);
  [[nodiscard]] static Status Write(const std::filesystem::path& directory,
                                    const std::vector<ErasureRecord>& begun);
};

}  // namespace kvtier
