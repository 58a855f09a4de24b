// SPDX-License-Identifier: Apache-2.0
#include "tools/support/short_names.h"

#include <string_view>
#include <vector>

namespace kvtier {
namespace {

constexpr std::string_view kEllipsis = "..";

// Where each code point begins, and the end.
std::vector<size_t> Beginnings(std::string_view text) {
  std::vector<size_t> beginnings;
  for (size_t i = 0; i < text.size(); ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xc0) != 0x80) beginnings.push_back(i);
  }
  beginnings.push_back(text.size());
  return beginnings;
}

// Shows one third of the beginning and two of the end.
std::string CutMiddle(const std::string& name, size_t length) {
  const std::vector<size_t> at = Beginnings(name);
  const size_t points = at.size() - 1;
  if (points <= length) return name;
  const size_t head = (length - kEllipsis.size()) / 3;
  const size_t tail = length - kEllipsis.size() - head;
  return name.substr(0, at[head]).append(kEllipsis).append(name.substr(at[points - tail]));
}

}  // namespace

const std::string& ShortNames::Of(const std::string& name) {
  if (const auto known = shown_.find(name); known != shown_.end()) return known->second;
  std::string cut = CutMiddle(name, length_);
  for (size_t length = length_ + 1; taken_.contains(cut) && cut != name; ++length) {
    cut = CutMiddle(name, length);
  }
  taken_.insert(cut);
  return shown_.emplace(name, std::move(cut)).first->second;
}

}  // namespace kvtier
