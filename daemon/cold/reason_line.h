// SPDX-License-Identifier: Apache-2.0
// A server's reason for the log.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>

namespace kvtier {

// The text's beginning, fit for a line of the log, whatever the server sent.
[[nodiscard]] inline std::string ReasonLine(std::string_view text) {
  constexpr size_t kMostBytes = 300;
  std::string line(text.substr(0, kMostBytes));
  std::ranges::replace_if(
      line, [](char c) { return c < ' ' || c > '~'; }, '?');
  return line;
}

}  // namespace kvtier
