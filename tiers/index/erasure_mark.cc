// SPDX-License-Identifier: Apache-2.0
#include "tiers/index/erasure_mark.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
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

void ErasureMark::AddTo(std::vector<ErasureRecord>* erasures,
                        const std::filesystem::path& directory) {
  std::ifstream file(directory / kErasuresName);
  for (std::string line; std::getline(file, line);) {
    std::istringstream fields(line);
    ErasureRecord begun;
    fields >> begun.end_hour >> begun.begun_s;
    if (fields.get() != ' ' || !std::getline(fields, begun.tenant)) continue;
    if (begun.tenant.size() > kMaxTenantBytes) continue;
    const bool known = std::ranges::any_of(*erasures, [&begun](const ErasureRecord& other) {
      return std::tie(other.tenant, other.end_hour, other.begun_s) ==
             std::tie(begun.tenant, begun.end_hour, begun.begun_s);
    });
    if (known) continue;
    begun.number = static_cast<uint32_t>(erasures->size());
    erasures->push_back(std::move(begun));
  }
}

Status ErasureMark::Write(const std::filesystem::path& directory,
                          const std::vector<ErasureRecord>& begun) {
  std::string text;
  for (const ErasureRecord& one : begun) {
    text += fmt::format("{} {} {}\n", one.end_hour, one.begun_s, one.tenant);
  }
  return WriteMark(directory, kErasuresName, text);
}

}  // namespace kvtier
