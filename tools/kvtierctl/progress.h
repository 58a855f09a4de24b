// SPDX-License-Identifier: Apache-2.0
// Progress of a long admin call, on standard error.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tools/support/admin.h"

namespace kvtier {

struct BlockProgress {
  uint64_t done = 0;
  uint64_t total = 0;
  uint64_t bytes_per_second = 0;  // 0: not known
  double elapsed_s = 0;
};
// "verb [####....] done of total, rate, time left": a line of less than 80 columns.
[[nodiscard]] std::string FormatProgress(std::string_view verb, const BlockProgress& progress);

// Shows it where the output is a terminal; see terminal.h.
[[nodiscard]] AdminProgress ShowBlockProgress(std::string verb);
// Removes what was shown.
void ClearProgress();

}  // namespace kvtier
