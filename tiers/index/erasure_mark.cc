// SPDX-License-Identifier: Apache-2.0
#include "tiers/index/erasure_mark.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "tiers/storage/disk_directory.h"

namespace kvtier {
namespace {

constexpr std::string_view kErasuresName = "erasures";

}  // namespace

size_t ErasureMark::AddTo(std::vector<ErasureRecord>* erasures,
                          const std::filesystem::path& directory) {
  return ReadMark(directory, kErasuresName, [erasures](std::istringstream* fields) {
    ErasureRecord begun;
    *fields >> begun.end_hour >> begun.begun_s;
    if (fields->get() != ' ' || !std::getline(*fields, begun.tenant)) return false;
    if (begun.tenant.size() > kMaxTenantBytes) return false;
    const bool known = std::ranges::any_of(*erasures, [&begun](const ErasureRecord& other) {
      return std::tie(other.tenant, other.end_hour, other.begun_s) ==
             std::tie(begun.tenant, begun.end_hour, begun.begun_s);
    });
    if (known) return true;
    begun.number = static_cast<uint32_t>(erasures->size());
    erasures->push_back(std::move(begun));
    return true;
  });
}

Status ErasureMark::Write(const std::filesystem::path& directory,
                          const std::vector<ErasureRecord>& begun) {
  std::vector<std::string> lines;
  for (const ErasureRecord& one : begun) {
    lines.push_back(fmt::format("{} {} {}", one.end_hour, one.begun_s, one.tenant));
  }
  return WriteMark(directory, kErasuresName, lines);
}

}  // namespace kvtier
