// SPDX-License-Identifier: Apache-2.0
// The disk files' side of the handshake with the index: a small file beside them that names the
// start in which the index was last opened. Without it a copy of the index from a backup could not
// be told from one that a crash kept from being opened.
#pragma once

#include <cstdint>
#include <filesystem>

#include "base/result.h"

namespace kvtier {

// Static functions only; they block. `directory` is that of the disk files.
class EpochMark {
 public:
  // The marked epoch, 0 if there is no mark, UINT64_MAX (no index is that new) if it cannot be
  // read.
  [[nodiscard]] static uint64_t Read(const std::filesystem::path& directory);
  // Durable and atomic. Errors: kIoError "epoch_mark".
  [[nodiscard]] static Status Write(const std::filesystem::path& directory, uint64_t epoch);
  // Durable. Errors: kIoError "epoch_mark".
  [[nodiscard]] static Status Remove(const std::filesystem::path& directory);
};

}  // namespace kvtier
