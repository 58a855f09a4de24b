// SPDX-License-Identifier: Apache-2.0
#include "tiers/index/rocksdb_status.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

namespace kvtier {

bool IsForWantOfRoom(const rocksdb::Status& status) {
  if (status.IsNoSpace()) return true;
  return status.IsIOError() && status.ToString().find(std::strerror(EFBIG)) != std::string::npos;
}

std::optional<std::string> LackOf(const rocksdb::Status& status) {
  constexpr std::array<std::pair<int, const char*>, 3> kLacks = {
      {{EMFILE, "EMFILE"}, {ENFILE, "ENFILE"}, {ENOMEM, "ENOMEM"}}};
  const std::string text = status.ToString();
  for (const auto& [number, name] : kLacks) {
    if (text.find(std::strerror(number)) != std::string::npos) return name;
  }
  return std::nullopt;
}

}  // namespace kvtier
