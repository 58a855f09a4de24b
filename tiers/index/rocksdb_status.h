// SPDX-License-Identifier: Apache-2.0
// Why RocksDB has failed, where its status has no code for it: its POSIX environment tells the
// system's error in the text alone.
#pragma once

#include <rocksdb/status.h>

#include <optional>
#include <string>

namespace kvtier {

// The file system is full, or a file has reached the limit on the size of files.
[[nodiscard]] bool IsForWantOfRoom(const rocksdb::Status& status);

// The reason, as of an errno, if the process lacks descriptors or memory: neither a rebuild nor
// another directory cures that.
[[nodiscard]] std::optional<std::string> LackOf(const rocksdb::Status& status);

}  // namespace kvtier
