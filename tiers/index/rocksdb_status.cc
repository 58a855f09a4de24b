// SPDX-License-Identifier: Apache-2.0
#include "tiers/index/rocksdb_status.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "tiers/index/process_lack.h"

namespace kvtier {

bool IsForWantOfRoom(const rocksdb::Status& status) {
  if (status.IsNoSpace()) return true;
  const std::string text = status.IsIOError() ? status.ToString() : std::string();
  return std::ranges::any_of(std::array{EFBIG, EDQUOT}, [&](int number) {
    return text.find(std::strerror(number)) != std::string::npos;
  });
}

std::optional<std::string> LackOf(const rocksdb::Status& status) {
  const std::string text = status.ToString();
  for (const int number : kProcessLacks) {
    if (text.find(std::strerror(number)) != std::string::npos) return ErrnoName(number);
  }
  return std::nullopt;
}

}  // namespace kvtier
